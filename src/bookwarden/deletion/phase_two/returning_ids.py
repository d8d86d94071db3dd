"""Delete no ledger while ids return: a mark may be of a former ledger with the same id, of the same topic.

Offloaded copies are not affected: they go by their UUIDs, which never return.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bookwarden.deletion.phase_two.decide import Decision, wait
from bookwarden.deletion.phase_two.undone import WOULD_DELETE
from bookwarden.ledgers.received import ReceivedMark
from bookwarden.ledgers.shared_doubts import SharedDoubt


class DoubtsIds(Protocol):
    """Source of doubts about ids: the store with the ledgers may give an id twice."""

    def doubt(self) -> SharedDoubt | None:
        """Return why a ledger may have a former one's id; None where it cannot; StoreError if that is not known."""


class NoIdReturns:
    """A store that gives no id twice."""

    def doubt(self) -> SharedDoubt | None:
        """Doubt nothing."""
        return None


def await_new_ids(
    decided: Sequence[tuple[ReceivedMark, Decision]], ids: DoubtsIds
) -> list[tuple[ReceivedMark, Decision]]:
    """Hold back marks that would delete a ledger, now or later, as long as ids return."""
    if not any(decision.action in WOULD_DELETE for _, decision in decided):
        return list(decided)
    doubt = ids.doubt()
    if doubt is None:
        return list(decided)
    return [
        (message, waiting_decision(doubt) if decision.action in WOULD_DELETE else decision)
        for message, decision in decided
    ]


def waiting_decision(doubt: SharedDoubt) -> Decision:
    """Decide about a mark that would delete a ledger while ids return."""
    return wait(doubt.reason, doubt)
