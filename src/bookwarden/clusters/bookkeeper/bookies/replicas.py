"""The bookies that hold an entry, and when enough of them have answered. Pure.

Format: client.RoundRobinDistributionSchedule of BookKeeper 4.17.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from bookwarden.errors import FormatError
from bookwarden.ledgers.metadata import LedgerMetadata


class Replicas:
    """Finds the bookies of each entry of one ledger."""

    def __init__(self, metadata: LedgerMetadata) -> None:
        self._firsts = [segment.first_entry_id for segment in metadata.segments]
        self._sets = [_write_sets(segment.ensemble, metadata.write_quorum) for segment in metadata.segments]

    def of(self, entry_id: int) -> tuple[str, ...]:
        """List the bookies that the entry was written to, in the order in which BookKeeper asks them."""
        index = bisect_right(self._firsts, entry_id) - 1
        if index < 0:
            raise FormatError(f"no segment of the ledger's metadata has entry {entry_id}")
        sets = self._sets[index]
        return sets[entry_id % len(sets)]


def is_covered(known: Sequence[bool], write_quorum: int, ack_quorum: int) -> bool:
    """Return whether no entry can have been acknowledged by silent bookies alone.

    ``known`` says for each bookie of an ensemble, in its order, whether it has answered.
    """
    size = len(known)
    return all(
        sum(not known[(start + index) % size] for index in range(write_quorum)) < ack_quorum for start in range(size)
    )


def _write_sets(ensemble: tuple[str, ...], write_quorum: int) -> tuple[tuple[str, ...], ...]:
    twice = ensemble + ensemble
    return tuple(twice[start : start + write_quorum] for start in range(len(ensemble)))
