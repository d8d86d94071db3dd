"""Phase two for ledgers that a broker dropped and left behind: prove that the offloaded copy is there and whole.

The list is read again after the copy was examined, and must be unchanged.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence

from bookwarden.deletion.phase_two.decide import Action, Decision, DeletionPolicy, limit_retries
from bookwarden.deletion.ports import OffloadedCopies, ReferenceReader
from bookwarden.ledgers.kinds import Holder
from bookwarden.ledgers.left_behind import copy_left, why_not_whole
from bookwarden.ledgers.live_references import LiveReferences, References
from bookwarden.ledgers.managed_ledger import LedgerInfo
from bookwarden.ledgers.metadata import LedgerReading, StoredLedger
from bookwarden.ledgers.offloaded_copies import OffloadedCopy
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.ledgers.received import ReceivedMark

logger = logging.getLogger(__name__)

_PROVEN = Decision(Action.DELETE, Outcome.DELETED, "its offloaded copy is there and whole")
_CHANGED = Decision(Action.RETRY, Outcome.RETRY, "its list changed while the offloaded copy was looked at")


class LeftBehind:
    """Proves the offloaded copies of ledgers that were left behind; changes nothing."""

    def __init__(self, copies: OffloadedCopies, references: ReferenceReader, policy: DeletionPolicy) -> None:
        self._copies = copies
        self._references = references
        self._policy = policy

    def prove(
        self,
        decided: Sequence[tuple[ReceivedMark, Decision]],
        readings: Mapping[int, LedgerReading],
        references: Mapping[Holder, References],
    ) -> list[tuple[ReceivedMark, Decision]]:
        """Turn PROVE_LEFT decisions into deletes and retries; other decisions stay as they are.

        Raises StoreError when a metadata root does not answer.
        """
        asked = [
            (message.mark.holder(), message.mark.ledger_id)
            for message, decision in decided
            if decision.action is Action.PROVE_LEFT and message.mark is not None
        ]
        if not asked:
            return list(decided)
        verdicts = self.verdicts(asked, readings, references)
        after = []
        for message, decision in decided:
            if decision.action is Action.PROVE_LEFT and message.mark is not None:
                verdict = verdicts[message.mark.holder(), message.mark.ledger_id]
                decision = limit_retries(verdict, message.attempts, self._policy)
            after.append((message, decision))
        return after

    def verdicts(
        self,
        asked: Sequence[tuple[Holder, int]],
        readings: Mapping[int, LedgerReading],
        references: Mapping[Holder, References],
    ) -> dict[tuple[Holder, int], Decision]:
        """Decide about ledgers of holders whose references say that they were left behind."""
        copies = {one: _copy(one, references) for one in asked}
        distinct = list(dict.fromkeys(copies.values()))
        looked = dict(zip(distinct, self._copies.examine_many(distinct), strict=True))
        verdicts = {}
        for (holder, ledger_id), copy in copies.items():
            length, last = _extent(readings[ledger_id], _listed(references[holder], ledger_id))
            problem = why_not_whole(copy, looked[copy], length, last)
            verdicts[holder, ledger_id] = _PROVEN if problem is None else _kept(copy, problem)
        proven = [one for one, verdict in verdicts.items() if verdict is _PROVEN]
        ledgers: defaultdict[Holder, list[int]] = defaultdict(list)
        for holder, ledger_id in proven:
            ledgers[holder].append(ledger_id)
        now = self._references.read(list(ledgers), ledgers) if proven else {}
        for holder, ledger_id in proven:
            found = now[holder]
            unchanged = isinstance(found, LiveReferences) and found.left_behind.get(ledger_id) == _listed(
                references[holder], ledger_id
            )
            if not unchanged:
                verdicts[holder, ledger_id] = _CHANGED
        return verdicts


def _copy(one: tuple[Holder, int], references: Mapping[Holder, References]) -> OffloadedCopy:
    holder, ledger_id = one
    listed = _listed(references[holder], ledger_id)
    if listed.offload is None:
        raise ValueError(f"ledger {ledger_id} of {holder} was not offloaded")
    return copy_left(listed, listed.offload, str(holder))


def _listed(references: References, ledger_id: int) -> LedgerInfo:
    if not isinstance(references, LiveReferences):
        raise ValueError(f"ledger {ledger_id} is of a holder whose references are not known")
    return references.left_behind[ledger_id]


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
    return Decision(Action.RETRY, Outcome.RETRY, reason)
