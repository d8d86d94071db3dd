"""A stage of a scan: its pieces read by Spark tasks, each straight into a file of the scan's folder."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark.accumulators import Accumulator
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from bookwarden import errors
from bookwarden.background import in_background
from bookwarden.errors import BookwardenError, FileError, SparkError, StoreError, StoreUnavailableError
from bookwarden.pipelines.scan.files import ScanFolder, Seal
from bookwarden.pipelines.workers import collect_seldom, end_with_daemon

logger = logging.getLogger(__name__)

# Called with (stage, pieces done, pieces in all) while a stage runs, from a thread of its own.
Progress = Callable[[str, int, int], None]
# Reads one piece and writes it into the scan's folder.
ReadPiece = Callable[[ScanFolder, int, Any], None]

_PROGRESS_SECONDS = 0.3
# Shares of a stage for each task that runs at once: enough that they end together. Each costs Spark some hundredths
# of a second, so there are more only where they have some pieces each.
_FEWEST_SHARES, _MOST_SHARES = 4, 16
_PIECES_IN_SHARE = 4
_PAUSES = (1.0, 5.0, 15.0)
_FAILURE_SCHEMA = pa.schema([("number", pa.int64()), ("error", pa.string()), ("text", pa.string())])
_FAILURE_COLUMNS = "number BIGINT, error STRING, text STRING"


@dataclass(frozen=True)
class PieceTask:
    """The function that an executor runs on a share of the pieces; yields a row for a piece that it could not read.

    ``shares`` are the numbered pieces of all tasks: Spark takes longer to send each task its own.
    """

    location: str
    read: ReadPiece
    done: Accumulator[int]
    shares: Sequence[Sequence[tuple[int, Any]]]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the pieces one after another; the first that cannot be read, or written, ends the share."""
        collect_seldom()
        end_with_daemon()
        folder = ScanFolder(self.location)
        for batch in batches:
            for number, piece in chain.from_iterable(self.shares[share] for share in batch.column(0).to_pylist()):
                try:
                    self._read_patiently(folder, number, piece)
                except BookwardenError as error:
                    yield _failure(number, type(error), str(error))
                    return
                except OSError as error:
                    yield _failure(number, FileError, f"piece {number} cannot be kept in {self.location}: {error}")
                    return
                self.done.add(1)

    def _read_patiently(self, folder: ScanFolder, number: int, piece: Any) -> None:
        for pause in _PAUSES:
            try:
                self.read(folder, number, piece)
                return
            except StoreUnavailableError as error:
                logger.warning("piece %d: %s; trying again in %.0f s", number, error, pause)
                time.sleep(pause)
        self.read(folder, number, piece)


class Stages:
    """Runs the stages of one scan, only their unfinished pieces."""

    def __init__(self, spark: SparkSession, folder: ScanFolder, progress: Progress = lambda *_: None) -> None:
        self._spark = spark
        self._folder = folder
        self._progress = progress

    @property
    def folder(self) -> ScanFolder:
        """The folder of the scan."""
        return self._folder

    def run(
        self,
        stage: str,
        plan: Callable[[], Sequence[Any]],
        read: ReadPiece,
        others: Sequence[str] = (),
        *,
        restart: bool = False,
    ) -> list[Seal]:
        """Read all pieces of a stage, planned by `plan` unless the stage was begun before; return their seals.

        ``others`` are the further tables that it writes; with ``restart`` its files are removed first.
        Raises the error of a piece that could not be read.
        """
        pieces = None if restart else self._folder.pieces(stage)
        if pieces is None:
            pieces = list(plan())
            (self._folder.restart_stage if restart else self._folder.begin_stage)(stage, pieces, others)
        seals = self._folder.seals(stage)
        waiting = [(number, piece) for number, piece in enumerate(pieces) if number not in seals]
        self._progress(stage, len(pieces) - len(waiting), len(pieces))
        if waiting:
            self._read(stage, waiting, len(pieces), read)
            seals = self._folder.seals(stage)
        missing = sorted(set(range(len(pieces))) - seals.keys())
        if missing:
            raise StoreError(
                f"{len(missing)} of {len(pieces)} pieces of {self._folder.folder.location}/{stage} are not there, such "
                f"as {missing[0]}: something removes its files; resume the scan"
            )
        return [seals[number] for number in range(len(pieces))]

    def _read(self, stage: str, waiting: list[tuple[int, Any]], total: int, read: ReadPiece) -> None:
        context = self._spark.sparkContext
        done = context.accumulator(total - len(waiting))
        shares = _shares_of(len(waiting), context.defaultParallelism)
        task = PieceTask(self._folder.folder.location, read, done, [waiting[at::shares] for at in range(shares)])
        with (
            reported(lambda: self._progress(stage, min(done.value, total), total)),
            spark_errors(f"reading {stage}"),
        ):
            failures = self._spark.range(0, shares, 1, shares).mapInArrow(task, _FAILURE_COLUMNS).collect()
        if failures:
            first = min(failures, key=lambda row: row["number"])
            raise _error_named(first["error"])(first["text"])


def _shares_of(pieces: int, at_once: int) -> int:
    """Return the number of shares that the pieces are read in."""
    wanted = max(_FEWEST_SHARES * at_once, pieces // _PIECES_IN_SHARE)
    return min(pieces, wanted, _MOST_SHARES * at_once)


def _failure(number: int, kind: type[BookwardenError], text: str) -> pa.RecordBatch:
    columns = [pa.array(column) for column in ([number], [kind.__name__], [text])]
    return pa.RecordBatch.from_arrays(columns, schema=_FAILURE_SCHEMA)


def _error_named(name: str) -> type[BookwardenError]:
    kind = getattr(errors, name, None)
    return kind if isinstance(kind, type) and issubclass(kind, BookwardenError) else BookwardenError


@contextmanager
def reported(tell: Callable[[], None]) -> Iterator[None]:
    """Call `tell` repeatedly during the body, and once after it."""

    def watch(ended: threading.Event) -> None:
        while not ended.wait(_PROGRESS_SECONDS):
            tell()

    with in_background(watch, "scan-progress"):
        yield
    tell()


@contextmanager
def spark_errors(what: str) -> Iterator[None]:
    """Translate Spark's errors into SparkError, with their cause."""
    try:
        yield
    except PySparkException as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise SparkError(f"{what}: Spark failed ({lines[-1] if lines else type(error).__name__})") from error
