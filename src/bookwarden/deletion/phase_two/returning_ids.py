"""Delete no ledger while ids return: a mark may be of a former ledger with the same id, of the same topic.

Offloaded copies are not affected: they go by their UUIDs, which never return.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bookwarden.deletion.phase_two.decide import Action, Decision
from bookwarden.deletion.phase_two.undone import WOULD_DELETE
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.ledgers.received import ReceivedMark


class DoubtsIds(Protocol):
    """Source of doubts about ids: the store with the ledgers may give an id twice."""

    def doubt(self) -> str | None:
        """Return why a ledger may have a former one's id; None where it cannot; StoreError if that is not known."""


class NoIdReturns:
    """A store that gives no id twice."""

    def doubt(self) -> str | None:
        """Doubt nothing."""
        return None


def await_new_ids(
    decided: Sequence[tuple[ReceivedMark, Decision]], ids: DoubtsIds
) -> list[tuple[ReceivedMark, Decision]]:
    """Hold back marks that would delete a ledger, now or later, as long as ids return."""
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
    """Decide about a mark that would delete a ledger while ids return."""
    return Decision(Action.WAIT, Outcome.WAITING, reason)
