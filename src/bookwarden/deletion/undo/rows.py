"""Rows of an undo: findings about each deletion, the part of a ledger that bookies still hold, and texts; no I/O.

A bookie's garbage collection drops a ledger whole, so the first and the last entries of each segment tell of every
bookie that has a part of it.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from bookwarden.clusters.bookkeeper.bookies.probe import Presence, ReplicaStatus
from bookwarden.deletion.journal.reading import Deletion
from bookwarden.ledgers.metadata import AbsentLedger, DeleteResult, LedgerMetadata, LedgerReading, StoredLedger


@dataclass(frozen=True, slots=True)
class Survival:
    """The answers of the bookies about a ledger, summed up: the copies asked for, and those held.

    ``lost`` are entries that no bookie holds; ``unknown`` those that none is known to hold, while some bookies did not
    answer. ``silent`` are those bookies, each with the reason.
    """

    copies: int
    held: int
    lost: tuple[int, ...]
    unknown: tuple[int, ...]
    silent: Mapping[str, str]

    @property
    def is_whole(self) -> bool:
        """Whether each copy that was asked for was found."""
        return self.held == self.copies

    def __str__(self) -> str:
        parts = []
        if self.lost:
            parts.append(f"no bookie holds {_entries(self.lost)}")
        if self.unknown:
            parts.append(f"not known whether {_entries(self.unknown)} is held")
        missing = self.copies - self.held
        if missing and self.held:
            parts.append(f"under-replicated: {self.held} of {self.copies} copies found")
        if self.silent:
            parts.append("no answer from " + ", ".join(f"{bookie} ({why})" for bookie, why in self.silent.items()))
        return "; ".join(parts)


def entries_to_ask(metadata: LedgerMetadata) -> list[int]:
    """List the entries that show the state of every bookie of a closed ledger: both ends of each segment.

    Where an entry is not on all bookies of its ensemble, as many entries as there are bookies are needed at each end.
    """
    last = -1 if metadata.last_entry_id is None else metadata.last_entry_id
    span = 1 if metadata.write_quorum == metadata.ensemble_size else metadata.ensemble_size
    entries: set[int] = set()
    ends = [segment.first_entry_id for segment in metadata.segments[1:]]
    for segment, end in zip(metadata.segments, [*ends, last + 1], strict=True):
        whole = range(segment.first_entry_id, min(end, last + 1))
        entries.update(whole[:span])
        entries.update(whole[-span:])
    return sorted(entries)


def survey(answers: Iterable[tuple[int, Mapping[str, ReplicaStatus]]]) -> Survival:
    """Sum up the answers about one ledger: entry id, and by bookie whether it holds the entry."""
    copies = held = 0
    lost: list[int] = []
    unknown: list[int] = []
    silent: dict[str, str] = {}
    for entry_id, found in answers:
        present = sum(holding.presence is Presence.HELD for holding in found.values())
        unanswered = {bookie: holding for bookie, holding in found.items() if holding.presence is Presence.UNKNOWN}
        copies += len(found)
        held += present
        silent.update((bookie, holding.reason) for bookie, holding in unanswered.items())
        if not present:
            (unknown if unanswered else lost).append(entry_id)
    return Survival(copies, held, tuple(lost), tuple(unknown), silent)


def _entries(ids: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, ids[:4])) + (", ..." if len(ids) > 4 else "")
    return f"entry {shown}" if len(ids) == 1 else f"entries {shown}"


class UndoOutcome(enum.Enum):
    """The result for one deletion to undo."""

    RESTORED = "restored"
    UNVERIFIED = "unverified"
    LOST = "lost"
    NOT_RESTORABLE = "not restorable"
    NOTHING_TO_DO = "nothing to do"
    WOULD_RESTORE = "would restore"


_AFTER_TAKING_AWAY = {
    None: "its metadata stays",
    DeleteResult.DELETED: "its metadata was taken away again",
    DeleteResult.ABSENT: "its metadata was taken away again",
    DeleteResult.LOST_RACE: "its metadata changed meanwhile and stays",
    DeleteResult.UNKNOWN: "it is not known whether its metadata was taken away again: repeat the undo",
}


_NO_PROBLEMS: Final[Mapping[int, str]] = {}


@dataclass(frozen=True, slots=True)
class UndoRow:
    """One ledger of an undo."""

    ledger_id: int  #: Of the deleted ledger.
    holder: str  #: As text, from the journal.
    run: str  #: The run that deleted it, as ``<query>/<batch>``.
    path: str  #: The node of its metadata.
    deleted_at: int  #: In ms since the epoch.
    ledger_bytes: int | None  #: None where its metadata could not be read.
    outcome: UndoOutcome  #: In a preview, the one that an undo would have.
    reason: str  #: Of the outcome, for people.
    copies: int = 0  #: Copies of entries that the bookies were asked for; 0 if they were not asked.
    held: int = 0  #: Those of these copies that were found.


@dataclass(frozen=True, slots=True)
class UndoCase:
    """A deletion and the ledger as it is now; ``obstacle`` says why it cannot be restored.

    ``metadata`` is the deleted one, None where there is an obstacle.
    """

    deletion: Deletion
    reading: LedgerReading
    metadata: LedgerMetadata | None
    obstacle: str | None = None

    @property
    def ledger_id(self) -> int:
        """The ledger."""
        return self.deletion.entry.ledger_id

    @property
    def is_absent(self) -> bool:
        """Whether it has no metadata now, and may be put back."""
        return self.obstacle is None and isinstance(self.reading, AbsentLedger)

    @property
    def ctime_ms(self) -> int | None:
        """When the ledger was made; None if that is not known."""
        return None if self.metadata is None else self.metadata.ctime_ms

    @property
    def never_deleted(self) -> StoredLedger | None:
        """The ledger as it is, where its node is still the one that was journaled; None where it was deleted.

        An undo may have written the node since, but did not make it.
        """
        entry, reading = self.deletion.entry, self.reading
        if self.obstacle is not None or not isinstance(reading, StoredLedger):
            return None
        return reading if reading.created_ms == entry.created_ms and reading.version >= entry.version else None


def conclusion(
    case: UndoCase,
    surveys: Mapping[int, Survival],
    gone: Mapping[int, DeleteResult],
    put_back: Collection[int],
    problems: Mapping[int, str] = _NO_PROBLEMS,
) -> UndoRow:
    """Return a ledger's result; the mappings are by id: its bookies' answers, and the deletes of its metadata.

    ``problems`` say why what another bookie cluster has must not be hidden by it.
    """
    survival, problem = surveys.get(case.ledger_id), problems.get(case.ledger_id)
    if problem is not None:
        text = "nothing was put back" if case.is_absent else _AFTER_TAKING_AWAY[gone.get(case.ledger_id)]
        return _hidden(case, f"{problem}; {text}", survival)
    if isinstance(case.reading, AbsentLedger) and case.obstacle is None:
        text = "its metadata could not be put back, or was deleted again since: is a mark of it still in flight?"
        return _row(case, UndoOutcome.NOT_RESTORABLE, text)
    if survival is None:
        return _untouched(case, "; the sweep keeps it from now on")
    if survival.lost:
        text = _AFTER_TAKING_AWAY[gone.get(case.ledger_id)]
        return _row(case, UndoOutcome.LOST, f"{survival}; {text}", survival)
    outcome = UndoOutcome.UNVERIFIED if survival.unknown else UndoOutcome.RESTORED
    return _row(case, outcome, _details(case, survival, put_back), survival)


def preview(case: UndoCase, surveys: Mapping[int, Survival], problems: Mapping[int, str] = _NO_PROBLEMS) -> UndoRow:
    """Return the result that an undo of a ledger would have; ``problems`` are as for `conclusion`."""
    survival, problem = surveys.get(case.ledger_id), problems.get(case.ledger_id)
    if problem is not None:
        return _hidden(case, problem, survival)
    if survival is None:
        return _untouched(case)
    if survival.lost:
        return _row(case, UndoOutcome.LOST, str(survival), survival)
    if case.is_absent:
        return _row(case, UndoOutcome.WOULD_RESTORE, _details(case, survival, (case.ledger_id,)), survival)
    outcome = UndoOutcome.UNVERIFIED if survival.unknown else UndoOutcome.RESTORED
    return _row(case, outcome, _details(case, survival, ()), survival)


def _hidden(case: UndoCase, reason: str, survival: Survival | None) -> UndoRow:
    """Return the result of one that would hide what another bookie cluster has, and is not whole."""
    return _row(case, UndoOutcome.NOT_RESTORABLE if case.is_absent else UndoOutcome.LOST, reason, survival)


def _untouched(case: UndoCase, consequence: str = "") -> UndoRow:
    if case.obstacle is not None:
        return _row(case, UndoOutcome.NOT_RESTORABLE, case.obstacle)
    text = f"its metadata is there as it was: it was never deleted{consequence}"
    return _row(case, UndoOutcome.NOTHING_TO_DO, text)


def _details(case: UndoCase, survival: Survival, put_back: Collection[int]) -> str:
    parts = [] if case.ledger_id in put_back else ["its metadata was put back before"]
    if not survival.copies:
        parts.append("it has no entries")
    return "; ".join([*parts, str(survival)] if str(survival) else parts)


def _row(case: UndoCase, outcome: UndoOutcome, reason: str, survival: Survival | None = None) -> UndoRow:
    entry = case.deletion.entry
    return UndoRow(
        ledger_id=entry.ledger_id,
        holder=entry.holder,
        run=entry.run,
        path=entry.path,
        deleted_at=entry.journaled_at,
        ledger_bytes=case.metadata.length if case.metadata else None,
        outcome=outcome,
        reason=reason,
        copies=survival.copies if survival else 0,
        held=survival.held if survival else 0,
    )
