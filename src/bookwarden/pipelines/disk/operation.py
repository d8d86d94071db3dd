"""The account of disk use: ledgers listed, references read, both added up; nothing is planned or changed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from bookwarden.config import Settings
from bookwarden.disk_space import DiskSpace
from bookwarden.errors import FileError, RefusedError
from bookwarden.ledgers.disk_use import BOOKIE, FOREIGN, NAMED, TRASHED, UNNAMED, BookieUse, DiskUse, Use
from bookwarden.ledgers.kinds import LedgerComponent, PlaceKind
from bookwarden.orphans.plan import new_id
from bookwarden.pipelines.columns.tables import rows_in
from bookwarden.pipelines.disk.collecting import with_reports
from bookwarden.pipelines.disk.history import DiskHistory
from bookwarden.pipelines.disk.measuring import (
    ALL,
    BOOKIES,
    BOOKIES_TABLE,
    HOLDERS,
    TOPICS,
    USE_STAGE,
    MeasurePiece,
    TopicUse,
    Wanted,
    by_topic,
    place_of,
)
from bookwarden.pipelines.disk.summary import summary_of, write_summary
from bookwarden.pipelines.folders import Folder
from bookwarden.pipelines.scan.driver import paused_by_signals, scan_session
from bookwarden.pipelines.scan.files import ScanFolder, Seal
from bookwarden.pipelines.scan.ids import compare_ids
from bookwarden.pipelines.scan.lock import alone
from bookwarden.pipelines.scan.operation import read_first_pass
from bookwarden.pipelines.scan.reading import (
    CHANGES_STAGE,
    COPY_TABLES,
    LATE_STAGE,
    LEDGERS_STAGE,
    REFERENCES_STAGE,
    ScanInput,
)
from bookwarden.pipelines.scan.stage import Progress, Stages, spark_errors
from bookwarden.wiring.scan import ScanSources

_TOTAL: Final = "total"
_RUNS: Final = "runs"
_NOT_REGISTERED: Final = DiskSpace(error="it is not registered")
_ADDED: Final = (
    "ledgers",
    "open_ledgers",
    "unasked",
    "logical_bytes",
    "disk_bytes",
    "trashed_bytes",
    "unnamed_bytes",
    "offloaded_bytes",
)


def run_account(
    settings: Settings,
    by: str,
    top: int,
    wanted: Wanted = ALL,
    snapshot: str | None = None,
    *,
    progress: Progress = lambda *_: None,
    local: bool = False,
) -> DiskUse:
    """Measure as `DiskAccount` does, in a Spark session of its own; with `local` on a Spark that is started here."""
    with (
        scan_session(settings, local=local, application="bookwarden-disk") as spark,
        paused_by_signals(spark, "interrupted; nothing was changed, and nothing is kept"),
    ):
        return DiskAccount(spark, settings, progress).measure(by, top, wanted, snapshot)


class DiskAccount:
    """Adds up the disk use on a Spark session; ``progress`` is called as it goes on."""

    def __init__(self, spark: SparkSession, settings: Settings, progress: Progress = lambda *_: None) -> None:
        self._spark = spark
        self._settings = settings
        self._progress = progress
        self._tasks = spark.sparkContext.defaultParallelism

    def measure(self, by: str, top: int, wanted: Wanted = ALL, snapshot: str | None = None) -> DiskUse:
        """Measure what ``wanted`` takes, and return the ``top`` largest ``by`` one of `USES`.

        With `BOOKIE` it asks bookies for more, and the largest are tenants.

        Raises StoreError and SparkError where something cannot be read, FileError if the folder cannot be written.
        """
        folder = Folder(self._settings.disk.folder)
        try:
            with (
                _own_files(folder.below(_RUNS)) as files,
                ScanInput(self._settings, snapshot, 1).open() as sources,
            ):
                return self._measured(files, sources, by, top, wanted, snapshot)
        except OSError as error:
            raise FileError(f"{folder.location} cannot be read and written: {error}") from error

    def _measured(
        self, folder: ScanFolder, sources: ScanSources, by: str, top: int, wanted: Wanted, snapshot: str | None
    ) -> DiskUse:
        started_ms = int(time.time() * 1000)
        source = ScanInput(self._settings, snapshot, self._tasks)
        stages = Stages(self._spark, folder, self._progress)
        with spark_errors("adding up the ledgers"):
            seals = read_first_pass(stages, source, sources, side_by_side=snapshot is not None, with_objects=False)
            compare_ids(folder, {**seals, LATE_STAGE: [], CHANGES_STAGE: []})
            pieces = sorted(folder.finished(LEDGERS_STAGE))
            asked = -(-self._settings.disk.open_ledgers_asked // max(1, len(pieces)))
            # After the references: what leaves these before is in the trash by now.
            trashed = self._spark.sparkContext.broadcast(np.array(sorted(sources.trashed()), np.int64))
            stages.run(USE_STAGE, lambda: pieces, MeasurePiece(source, wanted, asked, trashed), [BOOKIES_TABLE])
        own = by_topic(folder.read_all(USE_STAGE, HOLDERS.arrow.names))
        offloaded = _offloaded(folder, seals[REFERENCES_STAGE], wanted)
        use = _headed(pa.concat_tables([own.append_column("offloaded_bytes", pa.repeat(0, own.num_rows)), offloaded]))
        uses = sorted(
            _uses(use, "tenant" if by == BOOKIE else by),
            key=lambda one: (-one.disk_bytes, -one.offloaded_bytes, one.name),
        )
        total = next(iter(_uses(use, _TOTAL)), Use(_TOTAL))
        # What is on the disks is compared with all ledgers, or not at all.
        compares = snapshot is None and wanted == ALL
        spaces = sources.cluster.bookkeeper.all_disk_space() if compares else None
        bookies = _bookies(folder.read_all(BOOKIES_TABLE, BOOKIES.arrow.names), spaces)
        journal_error = ""
        if compares and by == BOOKIE:
            bookies, journal_error = with_reports(bookies, sources.cluster)
        measured_ms = started_ms if sources.snapshot_ms is None else sources.snapshot_ms
        found = DiskUse(
            measured_ms, total, tuple(uses[:top]), max(0, len(uses) - top), bookies, journal_error=journal_error
        )
        if not compares:
            return found
        kept = Folder(self._settings.disk.folder)
        history = DiskHistory(kept)
        found = history.compared(found, _uses(use, "tenant"))
        write_summary(kept, summary_of(found, partial(_uses, use), history.newest()))
        return found


@contextmanager
def _own_files(runs: Folder) -> Iterator[ScanFolder]:
    """Have a folder for the files of a run, and remove it at the end, with those of runs that were killed."""
    for left in runs.folders():
        # One that is at work is left alone.
        with suppress(RefusedError), alone(runs.below(left)):
            runs.remove_folder(left)
    run = new_id(int(time.time() * 1000))
    files = ScanFolder(runs.below(run).location)
    with alone(files.folder):
        try:
            yield files
        finally:
            with suppress(OSError):
                runs.remove_folder(run)


def _uses(use: pa.Table, by: str) -> list[Use]:
    """Add up the rows by one of BY, or _TOTAL."""
    grouped = use.group_by([by]).aggregate([*((name, "sum") for name in _ADDED), ("oldest_ms", "min")])
    columns = [grouped.column(name) for name in (by, *(f"{name}_sum" for name in _ADDED), "oldest_ms_min")]
    return [Use(*row) for row in zip(*(column.to_pylist() for column in columns), strict=True)]


def _headed(use: pa.Table) -> pa.Table:
    """Add the columns of a Use to rows of TOPICS, and those that they are grouped by."""

    def of(status: str) -> pa.ChunkedArray:
        return pc.if_else(pc.equal(use.column("status"), status), use.column("disk_bytes"), 0)

    return (
        use.append_column("trashed_bytes", of(TRASHED))
        .append_column("unnamed_bytes", of(UNNAMED))
        .append_column("tenant", pc.list_element(pc.split_pattern(use.column("namespace"), "/"), 0))
        .append_column(_TOTAL, pa.repeat(_TOTAL, use.num_rows))
    )


def _offloaded(folder: ScanFolder, seals: Sequence[Seal], wanted: Wanted) -> pa.Table:
    """Add up the offloaded copies that topics name: rows of TOPICS with ``offloaded_bytes``, and no ledgers."""
    sizes = Counter[str]()
    for seal in seals:
        if not seal.others.get(COPY_TABLES[0]):
            continue
        copies = folder.read(COPY_TABLES[0], seal.number, ["managed_ledger", "ledger_id"]).to_pylist()
        copied = {(copy["managed_ledger"], copy["ledger_id"]) for copy in copies}
        rows = folder.read(REFERENCES_STAGE, seal.number, ["managed_ledger", "ledger_id", "place", "length"])
        for row in rows.filter(pc.field("place") == PlaceKind.MANAGED_LEDGER.value).to_pylist():
            if (row["managed_ledger"], row["ledger_id"]) in copied:
                sizes[row["managed_ledger"]] += row["length"]
    kind = LedgerComponent.MANAGED_LEDGER.name
    places = {topic: place_of(kind, topic) for topic in sizes}
    kept = [topic for topic, place in places.items() if wanted.has(place)]
    rows = [TopicUse(NAMED, kind, places[topic].namespace, topic, 0, 0, 0, 0, 0, None) for topic in kept]
    return TOPICS.table(rows).append_column("offloaded_bytes", pa.array([sizes[topic] for topic in kept], pa.int64()))


def _bookies(tables: Iterable[pa.Table], spaces: Mapping[str, DiskSpace] | None) -> tuple[BookieUse, ...]:
    """Add up the shares of each bookie; ``spaces`` is what bookies tell of their disks, None if they were not asked."""
    ledgers, sizes = Counter[str](), Counter[tuple[str, str]]()
    for table in tables:
        for bookie, status, number, size in rows_in(table):
            ledgers[bookie] += number
            sizes[bookie, status] += size
    found = list[BookieUse]()
    for bookie in sorted(ledgers.keys() | (spaces or {})):
        total, free, error = DiskSpace() if spaces is None else spaces.get(bookie, _NOT_REGISTERED)
        named, trashed, unnamed, foreign = (sizes[bookie, status] for status in (NAMED, TRASHED, UNNAMED, FOREIGN))
        found.append(BookieUse(bookie, ledgers[bookie], named, trashed, unnamed, foreign, total, free, error))
    return tuple(found)
