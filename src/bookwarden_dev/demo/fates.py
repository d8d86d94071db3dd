"""Expected fates of the demo's ledgers, compared with their real ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bookwarden.deletion.undo.rows import UndoOutcome
from bookwarden.ledgers.outcomes import Outcome
from bookwarden_dev.demo.census import CountedLedger, Whereabouts

RETRY, DELETED, GONE = Outcome.RETRY.value, Outcome.DELETED.value, Outcome.ALREADY_GONE.value
RESTORED = UndoOutcome.RESTORED.value


@dataclass(frozen=True, slots=True)
class Fate:
    """The expected end of a ledger in the demo."""

    story: str  #: A word for people.
    last_outcomes: frozenset[str]  #: The possible last outcomes of the sweep; empty if it gets no mark.
    stays: bool  #: Whether it is still there in the end.
    retried: bool = False  #: Asks for at least one retry before the last outcome.
    offloaded: bool = False  #: It has a copy in the bucket, which goes or stays with it.
    undone: bool = False  #: It is put back after the last outcome.


KEPT = Fate("untouched", frozenset(), stays=True)
TRIMMED = Fate("trimmed in the store", frozenset({DELETED}), stays=False)
UNDONE = Fate("trimmed, then undone", frozenset({DELETED}), stays=True, undone=True)
MARKED_BY_BROKER = Fate("broker killed at a trim", frozenset({DELETED}), stays=False)
FOLLOWED = Fate("the same, with marks off", frozenset({DELETED}), stays=False)
TOPIC_DELETED = Fate("topic deleted by the broker", frozenset({GONE, DELETED}), stays=False)
FORGED = Fate("forged pending deletion", frozenset({Outcome.MISMATCH.value}), stays=True)
DELAYED = Fate("marked, update comes late", frozenset({DELETED}), stays=False, retried=True)
DAMAGED = Fate("metadata damaged", frozenset({Outcome.GAVE_UP.value}), stays=True, retried=True)
ARCHIVED = Fate("offloaded, untouched", frozenset(), stays=True, offloaded=True)
ARCHIVE_TRIMMED = Fate("offloaded, then trimmed", frozenset({DELETED}), stays=False, offloaded=True)


@dataclass(frozen=True, slots=True)
class Records:
    """The records of ledgers, by id: the sweep's outcomes in order, those of their copies, an undo's outcome."""

    outcomes: Mapping[int, Sequence[str]]
    copy_outcomes: Mapping[int, Sequence[str]]
    undone: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One line of the demo's table: a ledger before and after."""

    ledger: CountedLedger  #: As in the census before.
    fate: Fate  #: The expected one.
    outcomes: tuple[str, ...]  #: Of the sweep, in order.
    copy_outcomes: tuple[str, ...]  #: Outcomes of its offloaded copy, in order.
    undone: str  #: The outcome of its undo; "" without one.
    in_metadata: bool  #: At the end.
    on_bookie: bool  #: At the end.
    in_bucket: bool  #: At the end.

    @property
    def as_it_should(self) -> bool:
        """Whether the records, the metadata store, the bookie and the bucket all agree with the fate."""
        fate = self.fate
        return (
            _settled(self.outcomes, fate.last_outcomes, retried=fate.retried)
            and _settled(self.copy_outcomes, self._last_copy_outcomes())
            and self.undone == (RESTORED if fate.undone else "")
            and self.in_metadata == fate.stays
            and self.on_bookie == (fate.stays and self.ledger.on_bookie)
            and self.ledger.in_bucket == fate.offloaded
            and self.in_bucket == (fate.stays and fate.offloaded)
        )

    def _last_copy_outcomes(self) -> frozenset[str]:
        return frozenset({DELETED}) if self.fate.offloaded and not self.fate.stays else frozenset()


def _settled(outcomes: Sequence[str], last_outcomes: frozenset[str], *, retried: bool = False) -> bool:
    if not last_outcomes:
        return not outcomes
    if not outcomes or outcomes[-1] not in last_outcomes:
        return False
    *earlier, _ = outcomes
    return set(earlier) <= {RETRY} and (not retried or bool(earlier))


def endings(
    census: Sequence[CountedLedger], fates: Mapping[int, Fate], records: Records, after: Whereabouts
) -> list[LedgerRow]:
    """Combine the census before, the records and the places after."""
    return [
        LedgerRow(
            ledger,
            fates.get(ledger.ledger_id, KEPT),
            tuple(records.outcomes.get(ledger.ledger_id, ())),
            tuple(records.copy_outcomes.get(ledger.ledger_id, ())),
            records.undone.get(ledger.ledger_id, ""),
            ledger.ledger_id in after.in_metadata,
            ledger.ledger_id in after.on_bookie,
            ledger.ledger_id in after.in_bucket,
        )
        for ledger in census
    ]


@dataclass(frozen=True, slots=True)
class Finale:
    """The end of the demo: every ledger, the backlog, and the messages that can still be read."""

    endings: tuple[LedgerRow, ...]  #: One for every ledger.
    in_flight: int  #: Messages in the backlog.
    dead_letters: tuple[tuple[int | None, str], ...]  #: Ledger ids and reasons.
    damaged: tuple[int, ...]  #: The ledger ids that should be on the DLQ.
    readable: Mapping[str, tuple[int, int]]  #: By topic, the numbers of messages found and expected.
    restored: Mapping[int, tuple[int, int]]  #: By ledger that was put back, the numbers of entries found and expected.
    store: str  #: Name of the metadata store, for people.

    @property
    def as_it_should(self) -> bool:
        """Whether every ledger, the backlog, the DLQ and all messages are as they should be."""
        return (
            all(ending.as_it_should for ending in self.endings)
            and self.in_flight == 0
            and tuple(ledger_id for ledger_id, _ in self.dead_letters) == self.damaged
            and all(found == expected for found, expected in self.readable.values())
            and all(found == expected for found, expected in self.restored.values())
        )
