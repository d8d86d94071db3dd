"""Reading the journal: its runs, all its records, and the deletions of a run.

Files are read line by line, so memory does not grow with them; of a selection, ids and times alone are kept.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import BinaryIO, Final, Protocol

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
from bookwarden.deletion.journal.writing import SUFFIX, host_in, written_until
from bookwarden.errors import FileError, FormatError, NotFoundError, StoreError

# More than any store accepts as a ledger's metadata, in base64.
_MAX_LINE: Final = 16 * 1024 * 1024
_STEPS: Final = tuple(UndoStep)
# Before any time in milliseconds.
_NEVER: Final = -1
# Files are named by another clock than records.
_CLOCKS_DIFFER_S: Final = 86_400
# Of a ledger whose record went with its file.
_NOT_READ: Final = 0


class JournalSource(Protocol):
    """The files of a journal; every call may raise StoreError."""

    def names(self) -> Iterable[str]:
        """List the files, oldest first."""

    def open(self, name: str) -> AbstractContextManager[BinaryIO] | None:
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
        """List the files, oldest first; NotFoundError if there is no such folder."""
        try:
            return sorted(path.name for path in self._folder.iterdir() if path.suffix == SUFFIX)
        except FileNotFoundError as error:
            raise NotFoundError(
                f"there is no journal in {self._folder.absolute()}: no sweep with these settings deleted anything on "
                "this machine; if another did, name its folder with sweep.journal"
            ) from error
        except OSError as error:
            raise FileError(f"journal {self._folder} cannot be read: {error.strerror}") from error

    def open(self, name: str) -> AbstractContextManager[BinaryIO] | None:
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
    """Reads a journal; ``damaged`` is called with a damaged place each time it is read.

    Files that can have no record since ``since_ms`` are left out.
    """

    def __init__(
        self,
        source: JournalSource,
        damaged: Callable[[JournalDamage], object] | None = None,
        *,
        since_ms: int = 0,
    ) -> None:
        self._source = source
        self._damaged = damaged or (lambda damage: None)
        self._since_s = since_ms / 1000 - _CLOCKS_DIFFER_S

    def __iter__(self) -> Iterator[JournalRecord]:
        """Yield every record, oldest file first; FormatError for a file of a later format."""
        for name in self._source.names():
            if 0 < written_until(name) < self._since_s:
                continue
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

    def _records(self, name: str, lines: BinaryIO) -> Iterator[JournalRecord]:
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


def _skip_line(line: bytes, lines: BinaryIO) -> bool:
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
    Later additions to the journal are not seen. Some 35 bytes are kept of a ledger.
    """

    def __init__(self, reader: JournalReader, selection: Selection) -> None:
        self._reader = reader
        selected: defaultdict[str, array[int]] = defaultdict(lambda: array("q"))
        for record in reader:
            if isinstance(record, JournalEntry) and selection.takes(record):
                selected[record.bookie_cluster].append(record.ledger_id)
        self._clusters = {cluster: _LastDeletions(ledger_ids) for cluster, ledger_ids in selected.items()}
        for record in reader:
            if not isinstance(record, CopyEntry) and record.bookie_cluster in self._clusters:
                self._clusters[record.bookie_cluster].take(record)

    def __len__(self) -> int:
        return sum(map(len, self._clusters.values()))

    def origins(self) -> list[DeletionOrigin]:
        """List the BookKeepers that they were deleted from."""
        return [
            DeletionOrigin(cluster, *of_instance)
            for cluster, last in self._clusters.items()
            for of_instance in last.instances()
        ]

    def __iter__(self) -> Iterator[Deletion]:
        found = {cluster: bytearray(len(last)) for cluster, last in self._clusters.items()}
        for record in self._reader:
            if not isinstance(record, JournalEntry) or record.bookie_cluster not in self._clusters:
                continue
            last = self._clusters[record.bookie_cluster]
            at = last.index_of(record.ledger_id)
            if at is not None and last.is_last(at, record) and not found[record.bookie_cluster][at]:
                found[record.bookie_cluster][at] = True
                yield Deletion(record, last.undone(at))


class _LastDeletions:
    """The last deletion of each ledger of one bookie cluster, and the steps of undos since, in arrays by ledger id."""

    def __init__(self, ledger_ids: Iterable[int]) -> None:
        self._ids = array("q", (ledger_id for ledger_id, _ in groupby(sorted(ledger_ids))))
        none = array("q", [_NEVER]) * len(self._ids)
        self._deleted_at, self._restored_at, self._step_at = none, none[:], none[:]
        self._step = bytearray(len(self._ids))
        self._instance = array("I", [_NOT_READ]) * len(self._ids)
        self._instances: list[str | None] = [None]

    def __len__(self) -> int:
        return len(self._ids)

    def index_of(self, ledger_id: int) -> int | None:
        """Return where a ledger is; None if it is not among these."""
        at = bisect_left(self._ids, ledger_id)
        return at if at < len(self._ids) and self._ids[at] == ledger_id else None

    def take(self, record: JournalEntry | UndoRecord) -> None:
        """Take a record, in any order: files of several processes overlap."""
        at = self.index_of(record.ledger_id)
        if at is None:
            return
        if isinstance(record, JournalEntry):
            if record.journaled_at >= self._deleted_at[at]:
                self._deleted_at[at] = record.journaled_at
                self._instance[at] = self._number_of(record.instance)
        elif record.step is UndoStep.RESTORED:
            self._restored_at[at] = max(record.journaled_at, self._restored_at[at])
        elif record.journaled_at >= self._step_at[at]:
            self._step_at[at], self._step[at] = record.journaled_at, _STEPS.index(record.step)

    def is_last(self, at: int, entry: JournalEntry) -> bool:
        """Return whether the entry is of the ledger's last deletion."""
        return entry.journaled_at == self._deleted_at[at]

    def undone(self, at: int) -> UndoStep | None:
        """Return the last step of an undo since; None without one."""
        if self._restored_at[at] >= self._deleted_at[at]:
            # No later step overrides it: the ledger may be in use since.
            return UndoStep.RESTORED
        return _STEPS[self._step[at]] if self._step_at[at] >= self._deleted_at[at] else None

    def instances(self) -> Iterator[tuple[str, int, int]]:
        """Yield each INSTANCEID with the number of ledgers, and the id of one of them."""
        for number, ledgers in sorted(Counter(self._instance).items()):
            instance = self._instances[number]
            if instance is not None:
                yield instance, ledgers, self._ids[self._instance.index(number)]

    def _number_of(self, instance: str) -> int:
        if instance not in self._instances:
            self._instances.append(instance)
        return self._instances.index(instance)
