"""Delete no ledger while ids come again: a mark may be of a former ledger that had the same id, of the same topic.

Offloaded copies are no matter of it: they go by their UUIDs, of which none comes again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bookwarden.deletion.phase_two.decide import Action, Decision
from bookwarden.deletion.phase_two.undone import WOULD_DELETE
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.ledgers.received import ReceivedMark


class DoubtsIds(Protocol):
    """What knows how the store that has the ledgers gives ids."""

    def doubt(self) -> str | None:
        """Return why a ledger may have the id of a former one; None where none can; StoreError if that is not known."""


class NoIdReturns:
    """A store that gives no id twice."""

    def doubt(self) -> str | None:
        """Doubt nothing."""
        return None


def await_new_ids(
    decided: Sequence[tuple[ReceivedMark, Decision]], ids: DoubtsIds
) -> list[tuple[ReceivedMark, Decision]]:
    """Hold back marks that would delete a ledger, now or later, as long as ids come again."""
    if not any(decision.action in WOULD_DELETE for _, decision in decided):
        return list(decided)
    reason = ids.doubt()
    if reason is None:
        return list(decided)
    return [
        (message, waiting_decision(reason) if decision.action in WOULD_DELETE else decision)
        for message, decision in decided
    ]


def waiting_decision(reason: str) -> Decision:
    """Decide about a mark that would delete a ledger while ids come again."""
    return Decision(Action.WAIT, Outcome.WAITING, reason)
