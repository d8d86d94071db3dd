"""Keep ledgers that an undo put back, against marks made before it and marks of those who find them unnamed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from bookwarden.deletion.phase_two.decide import Action, Decision
from bookwarden.ledgers.metadata import LedgerReading
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.ledgers.received import ReceivedMark
from bookwarden.ledgers.undone import UndoneLedger

# Asked last, after all proofs.
WOULD_DELETE = (Action.DELETE, Action.DELAY)


class ReadsUndone(Protocol):
    """The records of ledgers that were undone."""

    def read_many(self, ledger_ids: Sequence[int]) -> Mapping[int, UndoneLedger]:
        """Return the records of these ledgers, where there is one; StoreError if that is not known."""


class RecordsUndone(ReadsUndone, Protocol):
    """The records, which an undo writes and a mark by id withdraws."""

    def note_many(self, ledgers: Sequence[UndoneLedger]) -> None:
        """Write the record of each ledger."""

    def withdraw_many(self, ledger_ids: Sequence[int]) -> frozenset[int]:
        """Remove the records of these ledgers; return the ledgers that had one."""


class NothingUndone:
    """No records, where nobody keeps any."""

    def read_many(self, ledger_ids: Sequence[int]) -> Mapping[int, UndoneLedger]:
        """Return none."""
        return {}

    def note_many(self, ledgers: Sequence[UndoneLedger]) -> None:
        """Write none."""

    def withdraw_many(self, ledger_ids: Sequence[int]) -> frozenset[int]:
        """Remove none."""
        return frozenset()


def keep_undone(
    decided: Sequence[tuple[ReceivedMark, Decision]], readings: Mapping[int, LedgerReading], undone: ReadsUndone
) -> list[tuple[ReceivedMark, Decision]]:
    """Finish the marks that would delete, now or later, a ledger that an undo put back."""
    doomed = {
        message.mark.ledger_id: None
        for message, decision in decided
        if message.mark is not None and decision.action in WOULD_DELETE
    }
    found = undone.read_many(list(doomed))
    kept = {ledger_id: record for ledger_id, record in found.items() if record.is_of(readings[ledger_id])}
    if not kept:
        return list(decided)
    return [
        (message, undone_decision(kept[message.mark.ledger_id]))
        if message.mark is not None and decision.action in WOULD_DELETE and message.mark.ledger_id in kept
        else (message, decision)
        for message, decision in decided
    ]


def undone_decision(record: UndoneLedger) -> Decision:
    """Decide about a mark of a ledger that was undone."""
    text = f"put back by {record.undo}: `bookwarden mark ledger {record.ledger_id}` lets the sweep delete it again"
    return Decision(Action.FINISH, Outcome.UNDONE, text)
