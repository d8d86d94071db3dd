"""Last checks of what is about to be deleted: can its holder's nodes be right, and is it as empty as it must be?

A ledger that is not closed may have entries, which its metadata does not say: a data ledger inside its topic's list
goes only if the bookies say that it has none.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bookwarden.deletion.node_check import BookieReads, NodeCheck, Suspect
from bookwarden.deletion.phase_two.decide import (
    Action,
    Decision,
    DeletionPolicy,
    judge_proven,
    limit_retries,
    retry,
)
from bookwarden.deletion.ports import LastEntryReader
from bookwarden.errors import BookieError, FormatError, NotFoundError
from bookwarden.ledgers.kinds import Holder
from bookwarden.ledgers.live_references import LiveReferences, References
from bookwarden.ledgers.metadata import LedgerReading
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.ledgers.pending_deletion import PendingDeletion, Waiver
from bookwarden.ledgers.received import ReceivedMark

logger = logging.getLogger(__name__)
_Decided = tuple[ReceivedMark, Decision]

_OF_COPIES = (Action.DELETE_COPY, Action.PROVE_COPY)
_CHECKED = (Action.DELETE, Action.PROVE_EMPTY, *_OF_COPIES)
_GONE = Decision(Action.FINISH, Outcome.ALREADY_GONE, "gone between check and delete")
_WARNED = (Outcome.INSIDE_LIST, Outcome.DAMAGED_HOLDER)


class LastChecks:
    """Keeps what must not go; ``entries`` is None without bookies to ask."""

    def __init__(self, nodes: NodeCheck, entries: LastEntryReader | None, policy: DeletionPolicy) -> None:
        self._nodes = nodes
        self._entries = entries
        self._policy = policy

    def carry_out(
        self,
        decided: Sequence[_Decided],
        readings: Mapping[int, LedgerReading],
        references: Mapping[Holder, References],
    ) -> list[_Decided]:
        """Check the ledgers and copies that are to go; other decisions stay as they are. StoreError as of the check."""
        going = {
            at: _Going(message.mark, decision, readings[message.mark.ledger_id], waives, message.attempts)
            for at, (message, decision) in enumerate(decided)
            if message.mark is not None
            and decision.action in _CHECKED
            and Waiver.SUPERSEDED not in (waives := message.waives)
        }
        settled = self._settle(list(going.values()), references)
        after = dict(zip(going, settled, strict=True))
        for at, decision in after.items():
            if decision.outcome in _WARNED:
                logger.warning("ledger %d is kept: %s", going[at].mark.ledger_id, decision.reason)
        return [(message, after.get(at, decision)) for at, (message, decision) in enumerate(decided)]

    def settle(
        self, mark: PendingDeletion, decision: Decision, reading: LedgerReading, references: References, attempts: int
    ) -> Decision:
        """Do the same for a single decision about a mark that waives nothing."""
        if decision.action not in _CHECKED:
            return decision
        return self._settle([_Going(mark, decision, reading, frozenset(), attempts)], {mark.holder(): references})[0]

    def _settle(self, going: Sequence[_Going], references: Mapping[Holder, References]) -> list[Decision]:
        bookies = BookieReads(self._entries)
        holders = [one.mark.holder() for one in going]
        known = [_live(references[holder]) for holder in holders]
        suspects = [
            Suspect(holder, one.reading, found.nodes if found else (), one.decision.action in _OF_COPIES, one.waives)
            for one, holder, found in zip(going, holders, known, strict=True)
        ]
        settled = []
        for one, found, doubt in zip(going, known, self._nodes.doubts(suspects, bookies), strict=True):
            decision = one.decision
            if doubt is not None:
                decision = retry(str(doubt), Outcome.DAMAGED_HOLDER)
            elif decision.action is Action.PROVE_EMPTY and found is not None:
                decision = _prove_empty(one, found, bookies)
            settled.append(limit_retries(decision, one.attempts, self._policy))
        return settled


def _live(references: References) -> LiveReferences | None:
    return references if isinstance(references, LiveReferences) else None


class _Going(NamedTuple):
    """A ledger, or a copy of it, that is about to be deleted, and why."""

    mark: PendingDeletion
    decision: Decision
    reading: LedgerReading
    waives: frozenset[Waiver]
    attempts: int


def _prove_empty(one: _Going, references: LiveReferences, bookies: BookieReads) -> Decision:
    """Decide about a ledger that goes only if it has no entry."""
    try:
        last = bookies.last_entry(one.mark.ledger_id)
    except NotFoundError:
        return _GONE
    except (BookieError, FormatError) as error:
        return retry(f"it is not closed, and whether it has entries is not known: {error}")
    if last is None:
        return Decision(Action.DELETE, Outcome.DELETED, "")
    return judge_proven(one.mark, references, one.attempts)
