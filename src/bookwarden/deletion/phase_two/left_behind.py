"""Phase two for ledgers that a broker dropped and left behind: prove that the offloaded copy is there and whole.

The list is read again after the copy was examined, and must be unchanged.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence

from bookwarden.clusters.offload.stores import OffloadStores
from bookwarden.clusters.pulsar.references.live import MetadataReferences
from bookwarden.deletion.phase_two.decide import Action, Decision, retry
from bookwarden.deletion.phase_two.guards import Candidate, Guard
from bookwarden.ledgers.kinds import Holder
from bookwarden.ledgers.left_behind import copy_left, why_not_whole
from bookwarden.ledgers.live_references import LiveReferences
from bookwarden.ledgers.managed_ledger import LedgerInfo
from bookwarden.ledgers.metadata import LedgerReading, StoredLedger
from bookwarden.ledgers.offloaded_copies import OffloadedCopy
from bookwarden.ledgers.outcomes import Outcome

logger = logging.getLogger(__name__)

_PROVEN = Decision(Action.DELETE, Outcome.DELETED, "its offloaded copy is there and whole")
_CHANGED = retry("its list changed while the offloaded copy was looked at")


class LeftBehindGuard(Guard):
    """Guard of BookKeeper's ledger where the offloaded copy in its place is not proven to be whole."""

    actions = (Action.PROVE_LEFT,)

    def __init__(self, stores: Callable[[], OffloadStores], references: MetadataReferences) -> None:
        self._stores = stores
        self._references = references

    def review(self, candidates: Sequence[Candidate]) -> list[Decision]:
        """Examine each copy, and read the lists of the whole ones again; StoreError as of a metadata root."""
        listed = {(one.holder, one.mark.ledger_id): _listed(one) for one in candidates}
        copies = {(holder, ledger_id): _copy(info, holder) for (holder, ledger_id), info in listed.items()}
        distinct = list(dict.fromkeys(copies.values()))
        found = dict(zip(distinct, self._stores().examine_many(distinct), strict=True))
        verdicts: dict[tuple[Holder, int], Decision] = {}
        whole: defaultdict[Holder, list[int]] = defaultdict(list)
        for one in candidates:
            key = one.holder, one.mark.ledger_id
            if key not in verdicts:
                problem = why_not_whole(copies[key], found[copies[key]], *_extent(one.reading, listed[key]))
                verdicts[key] = _PROVEN if problem is None else _kept(copies[key], problem)
                if problem is None:
                    whole[one.holder].append(one.mark.ledger_id)
        now = self._references.read(list(whole), whole) if whole else {}
        for holder, references in now.items():
            for ledger_id in whole[holder]:
                again = references.left_behind.get(ledger_id) if isinstance(references, LiveReferences) else None
                if again != listed[holder, ledger_id]:
                    verdicts[holder, ledger_id] = _CHANGED
        return [verdicts[one.holder, one.mark.ledger_id] for one in candidates]


def _listed(one: Candidate) -> LedgerInfo:
    if not isinstance(one.references, LiveReferences):
        raise ValueError(f"ledger {one.mark.ledger_id} is of a holder whose references are not known")
    return one.references.left_behind[one.mark.ledger_id]


def _copy(listed: LedgerInfo, holder: Holder) -> OffloadedCopy:
    if listed.offload is None:
        raise ValueError(f"ledger {listed.ledger_id} of {holder} was not offloaded")
    return copy_left(listed, listed.offload, str(holder))


def _extent(reading: LedgerReading, listed: LedgerInfo) -> tuple[int, int]:
    """Return the least bytes and last entry of a whole copy: the larger of what metadata and list say."""
    if not isinstance(reading, StoredLedger) or reading.metadata.last_entry_id is None:
        return listed.size, listed.entries - 1
    return max(reading.metadata.length, listed.size), max(reading.metadata.last_entry_id, listed.entries - 1)


def _kept(copy: OffloadedCopy, problem: str) -> Decision:
    reason = (
        f"the list says that only the offloaded copy {copy.uuid} in {copy.location} is left, which is not proven, so "
        f"BookKeeper's ledger is kept: {problem}"
    )
    logger.warning("ledger %d of %s: %s", copy.ledger_id, copy.managed_ledger, reason)
    return retry(reason)
