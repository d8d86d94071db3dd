"""Reading the journal: its runs, all its records, and the deletions of a run.

Files are read line by line, so memory does not grow with them; only the ledger ids of a selection are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from bookwarden.deletion.journal.entries import (
    FORMAT,
    CopyEntry,
    JournalEntry,
    JournalHeader,
    JournalRecord,
    UndoRecord,
    UndoStep,
    decode_record,
)
from bookwarden.deletion.journal.writing import SUFFIX, host_in
from bookwarden.errors import FormatError, StoreError

# More than any store accepts as a ledger's metadata, in base64.
_MAX_LINE: Final = 16 * 1024 * 1024
_Place = tuple[int, str]  # A ledger id, and the name of a bookie cluster.


class Lines(Protocol):
    """An open file."""

    def readline(self, limit: int, /) -> bytes:
        """Read through the next line end, at most `limit` bytes; nothing at the end."""


class JournalSource(Protocol):
    """The files of a journal; every call may raise StoreError."""

    def names(self) -> Iterable[str]:
        """List the files, oldest first."""

    def open(self, name: str) -> AbstractContextManager[Lines] | None:
        """Open a file; None if it is gone meanwhile."""

    def close(self) -> None:
        """Close what is open between the calls."""


@dataclass(frozen=True, slots=True)
class JournalDamage:
    """A place in a file that has no valid record; ``line`` counts from 1.

    ``cut_off`` is the end of a file whose writer was stopped in the middle of a record, or is writing it now:
    everything before it was read, and what it would have recorded was never deleted.
    """

    file: str
    line: int
    cut_off: bool

    def __str__(self) -> str:
        if self.cut_off:
            return f"{self.file} is cut off in record {self.line}: read up to the one before it"
        return f"{self.file} is damaged in line {self.line}: it was left out, the rest was read"


class JournalFolder:
    """The files of a local or shared folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self) -> list[str]:
        """List the files, oldest first; StoreError if there is no such folder."""
        try:
            return sorted(path.name for path in self._folder.iterdir() if path.suffix == SUFFIX)
        except OSError as error:
            raise StoreError(
                f"journal {self._folder} cannot be read ({error.strerror}): name the folder with sweep.journal"
            ) from error

    def open(self, name: str) -> AbstractContextManager[Lines] | None:
        """Open a file; None if it is gone meanwhile."""
        try:
            return (self._folder / name).open("rb")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"journal file {self._folder / name} cannot be read: {error.strerror}") from error

    def close(self) -> None:
        """Do nothing: files are open only while they are read."""


class JournalReader:
    """Reads a journal; ``damaged`` is called with a damaged place each time it is read."""

    def __init__(self, source: JournalSource, damaged: Callable[[JournalDamage], object] | None = None) -> None:
        self._source = source
        self._damaged = damaged or (lambda damage: None)

    def __iter__(self) -> Iterator[JournalRecord]:
        """Yield every record, oldest file first; FormatError for a file of a later format."""
        for name in self._source.names():
            opened = self._source.open(name)
            if opened is None:
                continue
            try:
                with opened as lines:
                    yield from self._records(name, lines)
            except OSError as error:
                raise StoreError(f"journal file {name} cannot be read: {error.strerror}") from error

    def hosts(self) -> list[str]:
        """List the machines that wrote its files, sorted."""
        return sorted({host for name in self._source.names() if (host := host_in(name)) is not None})

    def close(self) -> None:
        """Close the source."""
        self._source.close()

    def _records(self, name: str, lines: Lines) -> Iterator[JournalRecord]:
        number = 0
        while line := lines.readline(_MAX_LINE):
            number += 1
            record = decode_record(line)
            if isinstance(record, JournalHeader):
                if record.format > FORMAT:
                    raise FormatError(f"{name} has journal format {record.format}: read it with a later bookwarden")
            elif record is not None:
                yield record
            else:
                whole = _skip_line(line, lines)
                self._damaged(JournalDamage(name, number, cut_off=not whole))


def _skip_line(line: bytes, lines: Lines) -> bool:
    """Skip to the end of the line; return whether it has one."""
    while line and not line.endswith(b"\n"):
        line = lines.readline(_MAX_LINE)
    return bool(line)


@dataclass(slots=True)
class RunSummary:
    """The deletions that one run of the sweep journaled; times in milliseconds, ``bytes`` those of the metadata.

    A ledger that was journaled twice, because its delete was tried twice, counts twice.
    """

    run: str
    first: int
    last: int
    ledgers: int = 0
    bytes: int = 0

    def _add(self, entry: JournalEntry) -> None:
        self.first, self.last = min(self.first, entry.journaled_at), max(self.last, entry.journaled_at)
        self.ledgers += 1
        self.bytes += len(entry.raw)


def summarize_runs(records: Iterable[JournalRecord]) -> list[RunSummary]:
    """Return the runs of a journal, the latest first."""
    runs: dict[str, RunSummary] = {}
    for record in records:
        if isinstance(record, JournalEntry):
            at = record.journaled_at
            runs.setdefault(record.run, RunSummary(record.run, at, at))._add(record)
    return sorted(runs.values(), key=lambda run: (run.last, run.run), reverse=True)


@dataclass(frozen=True, slots=True)
class Selection:
    """The deletions to undo: of a run, of single ledgers, and since a time (milliseconds); all that are given must fit.

    A run is named whole, ``<query>/<batch>``, or by its query for all its batches.
    """

    run: str | None = None
    ledger_ids: frozenset[int] | None = None
    since_ms: int | None = None

    def takes(self, entry: JournalEntry) -> bool:
        """Return whether an entry is selected."""
        if self.run is not None and entry.run != self.run and not entry.run.startswith(self.run.rstrip("/") + "/"):
            return False
        if self.ledger_ids is not None and entry.ledger_id not in self.ledger_ids:
            return False
        return self.since_ms is None or entry.journaled_at >= self.since_ms


@dataclass(frozen=True, slots=True)
class Deletion:
    """The last deletion of a ledger, and the last step of an earlier undo of it; None without one."""

    entry: JournalEntry
    undone: UndoStep | None


@dataclass(frozen=True, slots=True)
class DeletionOrigin:
    """The BookKeeper that ledgers were deleted from, as their records name it."""

    bookie_cluster: str  #: Empty where none was registered.
    instance: str  #: Its INSTANCEID; empty where that is not known.
    ledgers: int
    example: int  #: The id of one of them.


class SelectedDeletions:
    """The selected ledgers, each with its last deletion in the journal; iterating reads the journal.

    In each bookie cluster a ledger has a last deletion of its own. One that was deleted again later, by a run that is
    not selected, comes with that later deletion: its earlier metadata is out of date.
    Later additions to the journal are not seen.
    """

    def __init__(self, reader: JournalReader, selection: Selection) -> None:
        self._reader = reader
        entries = (record for record in reader if isinstance(record, JournalEntry))
        self._last = _last_of(reader, {_place_of(entry) for entry in entries if selection.takes(entry)})

    def __len__(self) -> int:
        return len(self._last)

    def origins(self) -> list[DeletionOrigin]:
        """List the BookKeepers that they were deleted from."""
        found: dict[tuple[str, str], DeletionOrigin] = {}
        for deletion in self:
            entry = deletion.entry
            key = entry.bookie_cluster, entry.instance
            known = found.get(key, DeletionOrigin(*key, 0, entry.ledger_id))
            found[key] = replace(known, ledgers=known.ledgers + 1)
        return list(found.values())

    def __iter__(self) -> Iterator[Deletion]:
        left = dict(self._last)
        for record in self._reader:
            if isinstance(record, JournalEntry):
                at, undone = left.get(_place_of(record), (None, None))
                if record.journaled_at == at:
                    del left[_place_of(record)]
                    yield Deletion(record, undone)


def _place_of(record: JournalEntry | UndoRecord) -> _Place:
    return record.ledger_id, record.bookie_cluster


def _last_of(reader: JournalReader, places: Collection[_Place]) -> dict[_Place, tuple[int, UndoStep | None]]:
    """Return the time of each ledger's last deletion, and the last step of an undo since."""
    deleted: dict[_Place, int] = {}
    steps: dict[_Place, list[tuple[int, UndoStep]]] = {}
    for record in reader:
        if isinstance(record, CopyEntry) or _place_of(record) not in places:
            continue
        place = _place_of(record)
        if isinstance(record, UndoRecord):
            steps.setdefault(place, []).append((record.journaled_at, record.step))
        else:
            deleted[place] = max(record.journaled_at, deleted.get(place, 0))
    return {place: (at, _step_since(at, steps.get(place, ()))) for place, at in deleted.items()}


def _step_since(deleted_at: int, steps: Collection[tuple[int, UndoStep]]) -> UndoStep | None:
    found = [step for at, step in sorted(steps, key=lambda step: step[0]) if at >= deleted_at]
    if UndoStep.RESTORED in found:
        # No later step overrides it: the ledger may be in use since.
        return UndoStep.RESTORED
    return found[-1] if found else None
