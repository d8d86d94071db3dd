"""The places that a pending deletion is about, where a ledger may be in several bookie clusters.

Of a ledger that no cluster has whole an unfinished copy may be left, of a copier that was killed. No broker reads it,
and it may have the only bytes: so it is judged as a ledger is. It goes once nothing names it, or the list names an
offloaded copy in its place that is proven, after the time of grace, and is journaled first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from bookwarden.ledgers.metadata import AbsentLedger, DeleteResult, LedgerReading, StoredLedger, place_in
from bookwarden.ledgers.pending_deletion import LedgerType, PendingDeletion

# What is left to do comes before what is done.
_WORST_FIRST: Final = (DeleteResult.UNKNOWN, DeleteResult.LOST_RACE, DeleteResult.DELETED, DeleteResult.ABSENT)


def in_its_place(mark: PendingDeletion, reading: LedgerReading) -> LedgerReading:
    """Return the ledger as the bookie cluster has it that the mark names; as it was read if it names none.

    An offloaded copy is in no bookie cluster, and is judged by the ledger wherever that is.
    """
    if mark.ledger_type is LedgerType.OFFLOAD_LEDGER:
        return reading
    if isinstance(reading, AbsentLedger):
        left = [one for one in reading.unfinished if mark.bookie_cluster in ("", one.bookie_cluster)]
        return left[0]._replace(elsewhere=tuple(left[1:])) if left else AbsentLedger(reading.ledger_id)
    if not isinstance(reading, StoredLedger) or not reading.bookie_cluster or not mark.bookie_cluster:
        return reading
    return place_in(reading, mark.bookie_cluster) or AbsentLedger(reading.ledger_id)


def worst(results: Iterable[DeleteResult]) -> DeleteResult:
    """Return the result for a ledger of which each place has one."""
    found = frozenset(results)
    return next(result for result in _WORST_FIRST if result in found)
