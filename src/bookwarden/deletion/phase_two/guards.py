"""Guards: each may keep what would be deleted. A guard reads, and changes nothing.

The sweep, its dry run and `ledger explain` ask the same guards in the same order (`guards_of` in wiring/deletion.py).

A ledger that a broker dropped after offload and left behind goes only if its copy is there and whole. The list is read
again after the copy was examined, and must be unchanged.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import ClassVar, Final, NamedTuple

from bookwarden.clusters.bookkeeper.bookies.last_entries import DecodedEntries
from bookwarden.clusters.bookkeeper.returning_ids import ReturningIds
from bookwarden.clusters.bookkeeper.undone import UndoneLedger, UndoneLedgers
from bookwarden.clusters.offload.stores import OffloadStores
from bookwarden.clusters.pulsar.references.live import MetadataReferences
from bookwarden.deletion.node_check import BookieReads, NodeCheck, NodeDoubt, Suspect
from bookwarden.deletion.phase_two.decide import (
    Action,
    Decision,
    DeletionPolicy,
    finish,
    judge_proven,
    limit_retries,
    retry,
    wait,
)
from bookwarden.errors import BookieError, FormatError, NotFoundError
from bookwarden.ledgers.kinds import Holder
from bookwarden.ledgers.left_behind import copy_left, why_not_whole
from bookwarden.ledgers.live_references import LiveReferences, References
from bookwarden.ledgers.managed_ledger import LedgerInfo
from bookwarden.ledgers.metadata import LedgerReading, StoredLedger
from bookwarden.ledgers.offloaded_copies import OffloadedCopy
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.ledgers.pending_deletion import PendingDeletion, Waiver
from bookwarden.ledgers.received import ReceivedMark

logger = logging.getLogger(__name__)
# A ledger goes now, or once it has waited; all proofs are done.
_OF_LEDGERS: Final = (Action.DELETE, Action.DELAY)
_PROVEN = Decision(Action.DELETE, Outcome.DELETED, "its offloaded copy is there and whole")
_CHANGED = retry("its list changed while the offloaded copy was looked at")


class DeletionCandidate(NamedTuple):
    """A mark, what was read for it, and the decision about it."""

    message: ReceivedMark  #: As it was received.
    mark: PendingDeletion  #: Of the message.
    holder: Holder  #: Of the mark.
    reading: LedgerReading  #: The ledger, in all its places.
    references: References  #: Of the holder.
    waives: frozenset[Waiver]  #: Those of the message.
    decision: Decision  #: So far.

    def decided(self, decision: Decision, policy: DeletionPolicy) -> DeletionCandidate:
        """Return it with this decision, in which a retry beyond the maximum is giving up."""
        if decision is self.decision:
            return self
        return self._replace(decision=limit_retries(decision, self.message.attempts, policy))


class Guard(ABC):
    """A reason to keep what would be deleted."""

    #: The guard is asked about decisions with one of these.
    actions: ClassVar[tuple[Action, ...]]

    @abstractmethod
    def review(self, candidates: Sequence[DeletionCandidate]) -> Sequence[Decision]:
        """Return the decision about each, in order: as it is, or why it is kept. Retries are limited by the caller.

        Raises StoreError where a store does not answer: then nothing of the step is deleted.
        """


def reviewed(
    candidates: Sequence[DeletionCandidate], guards: Sequence[Guard], policy: DeletionPolicy
) -> list[DeletionCandidate]:
    """Ask each guard about what those before it let go; return all candidates, in order."""
    found = list(candidates)
    for guard in guards:
        asked = [at for at, one in enumerate(found) if one.decision.action in guard.actions]
        if asked:
            decisions = guard.review([found[at] for at in asked])
            for at, decision in zip(asked, decisions, strict=True):
                found[at] = found[at].decided(decision, policy)
    return found


class UndoneGuard(Guard):
    """Guard of ledgers that an undo put back: marks made before it, and of those who find them unnamed, end."""

    actions = _OF_LEDGERS

    def __init__(self, records: UndoneLedgers) -> None:
        self._records = records

    def review(self, candidates: Sequence[DeletionCandidate]) -> list[Decision]:
        """End the marks of these ledgers."""
        records = self._records.read_many(list(dict.fromkeys(one.mark.ledger_id for one in candidates)))
        if not records:
            return [one.decision for one in candidates]
        return [self._decision(one, records.get(one.mark.ledger_id)) for one in candidates]

    @staticmethod
    def _decision(one: DeletionCandidate, record: UndoneLedger | None) -> Decision:
        if record is None or not record.is_of(one.reading):
            return one.decision
        text = f"put back by {record.undo}: `bookwarden mark ledger {record.ledger_id}` lets the sweep delete it again"
        return finish(Outcome.UNDONE, text)


class ReusedIdGuard(Guard):
    """Guard of all ledgers while ids return: a mark may be of a former ledger with the same id, of the same topic.

    Offloaded copies are not affected: they go by their UUIDs, which never return.
    """

    actions = _OF_LEDGERS

    def __init__(self, ids: ReturningIds) -> None:
        self._ids = ids

    def review(self, candidates: Sequence[DeletionCandidate]) -> list[Decision]:
        """Have the marks wait as long as ids return."""
        doubt = self._ids.doubt()
        return [one.decision if doubt is None else wait(doubt.reason, doubt) for one in candidates]


_OF_COPIES: Final = (Action.DELETE_COPY, Action.PROVE_COPY)


class NodeGuard(Guard):
    """Guard of ledgers and copies whose holder may name them; ``entries`` is None without bookies to ask."""

    actions = (Action.DELETE, Action.PROVE_EMPTY, *_OF_COPIES)

    def __init__(self, nodes: NodeCheck, entries: DecodedEntries | None) -> None:
        self._nodes = nodes
        self._entries = entries

    def review(self, candidates: Sequence[DeletionCandidate]) -> list[Decision]:
        """Check the nodes of all holders, and then the entries of ledgers that must have none; StoreError as there."""
        bookies = BookieReads(self._entries)
        doubts = self._nodes.doubts([_suspect(one) for one in candidates], bookies)
        return [_decision(one, doubt, bookies) for one, doubt in zip(candidates, doubts, strict=True)]


def _suspect(one: DeletionCandidate) -> Suspect:
    nodes = one.references.nodes if isinstance(one.references, LiveReferences) else ()
    return Suspect(one.holder, one.reading, nodes, one.decision.action in _OF_COPIES, one.waives)


def _decision(one: DeletionCandidate, doubt: NodeDoubt | None, bookies: BookieReads) -> Decision:
    if doubt is not None:
        return retry(str(doubt), Outcome.DAMAGED_HOLDER)
    if one.decision.action is not Action.PROVE_EMPTY or not isinstance(one.references, LiveReferences):
        return one.decision
    try:
        last = bookies.last_entry(one.mark.ledger_id)
    except NotFoundError:
        return finish(Outcome.ALREADY_GONE, "gone between check and delete")
    except (BookieError, FormatError) as error:
        return retry(f"it is not closed, and whether it has entries is not known: {error}")
    if last is None:
        return Decision(Action.DELETE, Outcome.DELETED, "")
    return judge_proven(one.mark, one.references, one.message.attempts)


class LeftBehindGuard(Guard):
    """Guard of BookKeeper's ledger where the offloaded copy in its place is not proven to be whole."""

    actions = (Action.PROVE_LEFT,)

    def __init__(self, stores: Callable[[], OffloadStores], references: MetadataReferences) -> None:
        self._stores = stores
        self._references = references

    def review(self, candidates: Sequence[DeletionCandidate]) -> list[Decision]:
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


def _listed(one: DeletionCandidate) -> LedgerInfo:
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
