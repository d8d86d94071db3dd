"""Whether the ledger ids that a migrated store gives are new ones.

Why they may not be: no copy carries ZooKeeper's count of children over, which numbers ledgers there, so in the target
the numbers begin anew (docs/metadata-migration.md, "Ledger ids").
"""

from __future__ import annotations

from dataclasses import dataclass

from bookwarden.ledgers.numbering import NUMBERS_OF_HALF, LedgerNumbers


@dataclass(frozen=True, slots=True)
class LedgerIds:
    """The counters of source and target, None where no ledger was numbered, and the target's largest ledger id.

    The latter is of those ids alone that the target's counter can give; None if there is no ledger.
    """

    source: LedgerNumbers | None
    target: LedgerNumbers | None
    largest_id: int | None

    @property
    def safe_number(self) -> int:
        """The smallest number from which on the target's counter gives ids that no ledger had, as far as is known."""
        if self.target is None:
            return 0
        given = [self.target.next_number]
        if self.source is not None and self.source.path == self.target.path:
            given.append(self.source.next_number)
        if self.largest_id is not None:
            given.append(self.largest_id - self.target.first_id + 1)
        return min(max(given), max(NUMBERS_OF_HALF, self.target.next_number))

    @property
    def behind(self) -> int:
        """How many ids the target would give, or try to give, once more."""
        return 0 if self.target is None else self.safe_number - self.target.next_number
