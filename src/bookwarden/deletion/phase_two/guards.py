"""Guards: each may keep what would be deleted. A guard reads, and changes nothing.

The sweep, its dry run and `ledger explain` ask the same guards in the same order (`guards_of` in wiring/deletion.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Final, NamedTuple

from bookwarden.clusters.bookkeeper.bookies.last_entries import DecodedEntries
from bookwarden.clusters.bookkeeper.returning_ids import ReturningIds
from bookwarden.clusters.bookkeeper.undone import UndoneLedger, UndoneLedgers
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
from bookwarden.ledgers.live_references import LiveReferences, References
from bookwarden.ledgers.metadata import LedgerReading
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.ledgers.pending_deletion import PendingDeletion, Waiver
from bookwarden.ledgers.received import ReceivedMark

# A ledger goes now, or once it has waited; all proofs are done.
_OF_LEDGERS: Final = (Action.DELETE, Action.DELAY)


class Candidate(NamedTuple):
    """A mark, what was read for it, and the decision about it."""

    message: ReceivedMark  #: As it was received.
    mark: PendingDeletion  #: Of the message.
    holder: Holder  #: Of the mark.
    reading: LedgerReading  #: The ledger, in all its places.
    references: References  #: Of the holder.
    waives: frozenset[Waiver]  #: Those of the message.
    decision: Decision  #: So far.

    def decided(self, decision: Decision, policy: DeletionPolicy) -> Candidate:
        """Return it with this decision, in which a retry beyond the maximum is giving up."""
        if decision is self.decision:
            return self
        return self._replace(decision=limit_retries(decision, self.message.attempts, policy))


class Guard(ABC):
    """A reason to keep what would be deleted."""

    #: The guard is asked about decisions with one of these.
    actions: ClassVar[tuple[Action, ...]]

    @abstractmethod
    def review(self, candidates: Sequence[Candidate]) -> Sequence[Decision]:
        """Return the decision about each, in order: as it is, or why it is kept. Retries are limited by the caller.

        Raises StoreError where a store does not answer: then nothing of the step is deleted.
        """


def reviewed(candidates: Sequence[Candidate], guards: Sequence[Guard], policy: DeletionPolicy) -> list[Candidate]:
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

    def review(self, candidates: Sequence[Candidate]) -> list[Decision]:
        """End the marks of these ledgers."""
        records = self._records.read_many(list(dict.fromkeys(one.mark.ledger_id for one in candidates)))
        if not records:
            return [one.decision for one in candidates]
        return [self._decision(one, records.get(one.mark.ledger_id)) for one in candidates]

    @staticmethod
    def _decision(one: Candidate, record: UndoneLedger | None) -> Decision:
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

    def review(self, candidates: Sequence[Candidate]) -> list[Decision]:
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

    def review(self, candidates: Sequence[Candidate]) -> list[Decision]:
        """Check the nodes of all holders, and then the entries of ledgers that must have none; StoreError as there."""
        bookies = BookieReads(self._entries)
        doubts = self._nodes.doubts([_suspect(one) for one in candidates], bookies)
        return [_decision(one, doubt, bookies) for one, doubt in zip(candidates, doubts, strict=True)]


def _suspect(one: Candidate) -> Suspect:
    nodes = one.references.nodes if isinstance(one.references, LiveReferences) else ()
    return Suspect(one.holder, one.reading, nodes, one.decision.action in _OF_COPIES, one.waives)


def _decision(one: Candidate, doubt: NodeDoubt | None, bookies: BookieReads) -> Decision:
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
