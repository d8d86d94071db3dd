"""Source of the next ledger's id."""

from __future__ import annotations

from typing import Final, NamedTuple

# Each half of an id has so many numbers: Java's positive ints but the largest.
NUMBERS_OF_HALF: Final = 2**31 - 1


class LedgerNumbers(NamedTuple):
    """The counter of a metadata store: its node, the upper 32 bits of its ids, and the next number."""

    path: str
    upper: int
    next_number: int

    @property
    def first_id(self) -> int:
        """The smallest id of this counter."""
        return self.id_of(0)

    @property
    def end_id(self) -> int:
        """The id after its largest."""
        return self.id_of(NUMBERS_OF_HALF)

    def id_of(self, number: int) -> int:
        """Return the ledger with this number."""
        return (self.upper << 32) + number
