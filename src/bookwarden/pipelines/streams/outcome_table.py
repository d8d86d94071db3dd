"""The outcome table: Parquet files partitioned by day, one file a batch, so that a replay replaces its own.

The columns are those of schemas/ledger_outcome.avsc. A file is named ``<query>-<first batch>-<last batch>.parquet``,
where ``query`` is the id that a checkpoint keeps, or the name of a stream that replays no batch; many small files of
finished batches are merged into one, whose name covers their batches, so that an interrupted merge shows in the names
and is cleaned up at the next start.
"""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import resources
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bookwarden.ledgers.outcomes import OutcomeRow
from bookwarden.ledgers.pending_deletion import LAST_MS, is_time
from bookwarden.pipelines.folders import Folder

logger = logging.getLogger(__name__)

MERGE_AFTER = 64
_SUFFIX = ".parquet"
_DAY = re.compile(r"day=\d{4}-\d{2}-\d{2}")
_MIN_LONG, _MAX_LONG = -(2**63), 2**63 - 1
# A file with more rows is left as it is: merging it would cost memory for no gain.
_SMALL_ROWS = 2_000
# No outcome: see repeat_batch.
_REPEAT = "repeat"
_NAME = re.compile(r"^(?P<query>[0-9a-z-]+)-(?P<first>\d{12})-(?P<last>\d{12})\.parquet$")


def _columns() -> Iterator[tuple[str, pa.DataType, str, bool]]:
    """Yield name, Arrow type, Spark type and nullability of each column, from the Avro schema."""
    schema = json.loads(resources.files("bookwarden.schemas").joinpath("ledger_outcome.avsc").read_text())
    for column in schema["fields"]:
        kind: Any = column["type"]
        nullable = isinstance(kind, list)
        if nullable:
            kind = kind[1]
        if isinstance(kind, dict):
            yield column["name"], pa.timestamp("us", tz="UTC"), "TIMESTAMP", nullable
        elif kind == "long":
            yield column["name"], pa.int64(), "BIGINT", nullable
        else:
            yield column["name"], pa.string(), "STRING", nullable


ARROW_SCHEMA = pa.schema([pa.field(name, kind, nullable) for name, kind, _, nullable in _columns()])
SPARK_SCHEMA = ", ".join(f"{name} {kind}{'' if nullable else ' NOT NULL'}" for name, _, kind, nullable in _columns())


def outcome_batch(rows: Sequence[OutcomeRow], batch: int) -> pa.RecordBatch:
    """Turn outcome rows into one Arrow batch of the table's schema."""
    arrays = []
    for column in ARROW_SCHEMA:
        if column.name == "batch":
            values: list[Any] = [batch] * len(rows)
        elif column.name == "outcome":
            values = [row.outcome.value for row in rows]
        else:
            values = [getattr(row, column.name) for row in rows]
        arrays.append(_array(values, column))
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW_SCHEMA)


def _array(values: list[Any], column: pa.Field) -> pa.Array:
    """Make a column of any values: an impossible one must stop no batch whose ledgers are already gone."""
    if pa.types.is_timestamp(column.type):
        times = [_time(value, nullable=column.nullable) for value in values]
        return pa.array(times, pa.timestamp("ms", tz="UTC")).cast(column.type)
    if pa.types.is_integer(column.type):
        return pa.array(
            [None if value is None else min(max(value, _MIN_LONG), _MAX_LONG) for value in values], column.type
        )
    try:
        return pa.array(values, column.type)
    except UnicodeEncodeError:
        return pa.array([value.encode(errors="backslashreplace").decode() for value in values], column.type)


def _time(milliseconds: int | None, *, nullable: bool) -> int | None:
    """Replace an impossible time by null, or in a required column by the first or last possible one."""
    if milliseconds is None or is_time(milliseconds):
        return milliseconds
    return None if nullable else min(max(milliseconds, 0), LAST_MS)


def beat_batch(padding: str) -> pa.RecordBatch:
    """Make a row that is no outcome but a sign of life of its task; the padding is its reason."""
    return _row_of_task("", padding)


def repeat_batch(reason: str) -> pa.RecordBatch:
    """Make a row that is no outcome but the request of a task to repeat the batch."""
    return _row_of_task(_REPEAT, reason)


def why_repeated(outcomes: pa.Table) -> str | None:
    """Return why a task asks for the batch to be repeated; None if none does."""
    reasons: list[str] = outcomes.filter(pc.equal(outcomes.column("outcome"), _REPEAT)).column("reason").to_pylist()
    return reasons[0] if reasons else None


def _row_of_task(outcome: str, reason: str) -> pa.RecordBatch:
    row: dict[str, Any] = {}
    for column in ARROW_SCHEMA:
        if not column.nullable:
            row[column.name] = "" if pa.types.is_string(column.type) else 0
    return pa.RecordBatch.from_pylist([{**row, "outcome": outcome, "reason": reason}], schema=ARROW_SCHEMA)


@dataclass(frozen=True, slots=True, order=True)
class _File:
    query: str
    first: int
    last: int
    name: str

    @property
    def folder(self) -> str:
        """The day's folder."""
        return self.name.rpartition("/")[0]

    def covers(self, other: _File) -> bool:
        """Return whether the other file's batches are all in this one."""
        return self != other and self.query == other.query and self.first <= other.first and other.last <= self.last


def read_outcomes(location: str) -> list[dict[str, Any]]:
    """Read all rows of a local table, oldest first; an empty list if there is no table yet."""
    rows: list[dict[str, Any]] = []
    for path in Path(location).glob("day=*/[!_]*.parquet"):
        try:
            rows += pq.ParquetFile(path).read().to_pylist()
        except FileNotFoundError:
            # Merged meanwhile: its rows are in a file that a later call finds.
            continue
    return sorted(rows, key=lambda row: (row["batch"], row["decided_at"]))


def whole_files(folder: Folder, days: int) -> list[str]:
    """List the files of the newest days of a table; one that a merge has put into another is left out.

    Raises OSError of the file system.
    """
    found = []
    for day in [name for name in folder.folders() if _DAY.fullmatch(name)][-days:]:
        matches = ((name, _NAME.match(name)) for name in folder.files(day))
        files = [
            _File(match["query"], int(match["first"]), int(match["last"]), f"{day}/{name}")
            for name, match in matches
            if match
        ]
        merges = [file for file in files if file.first < file.last]
        found += [file.name for file in files if not any(other.covers(file) for other in merges)]
    return found


class OutcomeTable:
    """Writer of the table at `location`, a path or a URI as a `Folder` takes it, with options or without.

    Of the days that have outcomes the newest ``keep_days`` are kept; None keeps all. No clock is asked for that: one
    that is wrong costs one day.
    """

    def __init__(self, location: str, merge_after: int = MERGE_AFTER, *, keep_days: int | None = None) -> None:
        self._folder = Folder(location, with_options=True)
        self._merge_after = merge_after
        self._keep_days = keep_days
        self._day = ""
        self._recovered: set[str] = set()
        self._small: list[_File] = []

    def next_batch(self, query: str) -> int:
        """Return a number behind those of all batches of a query: for one that replays none."""
        return 1 + max((file.last for file in self._files() if file.query == query), default=-1)

    def write(self, table: pa.Table, query: str, batch: int, now: datetime | None = None) -> None:
        """Write the outcomes of a batch; a second write of the same batch replaces the first."""
        if query not in self._recovered:
            self._recover(query, batch)
            self._recovered.add(query)
        if table.num_rows == 0:
            return
        # Only batches before this one are known to be finished; a merge must not take in one that may be replayed.
        if len(self._small) >= self._merge_after:
            self._merge()
        day = (now or datetime.now(timezone.utc)).strftime("day=%Y-%m-%d")
        written = self._publish(table.cast(ARROW_SCHEMA), day, query, batch, batch)
        if day != self._day:
            self._day = day
            self._expire(day)
        if table.num_rows < _SMALL_ROWS:
            self._small.append(written)

    def _recover(self, query: str, batch: int) -> None:
        """Remove the file of an earlier attempt at this batch, and those that an interrupted merge left.

        Later batches, or one with this one among others, are of before the checkpoint was replaced by an older copy of
        it: these are kept under names that no batch has, since what they tell was done all the same.
        """
        files = [file for file in self._files() if file.query == query]
        former = [file for file in files if file.last >= batch]
        if any(file.last > batch or file.first < file.last for file in former):
            logger.warning(
                "%s has outcomes of batch %d and later ones, so the checkpoint is an older one than before: they are "
                "kept in %d files named .former",
                *(self._folder.location, batch, len(former)),
            )
            for file in former:
                self._folder.move(
                    file.name, f"{file.name.removesuffix(_SUFFIX)}.former-{uuid.uuid4().hex[:8]}{_SUFFIX}"
                )
        else:
            for file in former:
                self._folder.remove(file.name)
        files = [file for file in files if file.last < batch]
        for file in files:
            if any(other.covers(file) for other in files):
                self._folder.remove(file.name)
            elif file.first == file.last and self._is_small(file):
                self._small.append(file)
        self._small.sort()

    def _expire(self, today: str) -> None:
        if self._keep_days is None:
            return
        # Today's stays, even if a clock that was ahead has left later ones.
        others = [name for name in self._folder.folders() if _DAY.fullmatch(name) and name != today]
        for day in others[: max(0, len(others) + 1 - self._keep_days)]:
            logger.info("the outcomes of %s in %s are deleted: newer days are kept", day, self._folder.location)
            self._folder.remove_folder(day)
            self._small = [file for file in self._small if file.folder != day]

    def _is_small(self, file: _File) -> bool:
        with self._folder.open(file.name) as source:
            rows: int = pq.ParquetFile(source).metadata.num_rows
        return rows < _SMALL_ROWS

    def _merge(self) -> None:
        small, self._small = self._small, []
        for day in sorted({file.folder for file in small}):
            parts = sorted(file for file in small if file.folder == day)
            if len(parts) < 2:
                continue
            rows = pa.concat_tables(self._read(part) for part in parts)
            self._publish(rows, day, parts[0].query, parts[0].first, parts[-1].last)
            for part in parts:
                self._folder.remove(part.name)

    def _read(self, file: _File) -> pa.Table:
        with self._folder.open(file.name) as source:
            return pq.ParquetFile(source).read()

    def _publish(self, table: pa.Table, day: str, query: str, first: int, last: int) -> _File:
        name = f"{day}/{query}-{first:012d}-{last:012d}.parquet"
        self._folder.write(name, lambda sink: pq.write_table(table, sink, compression="zstd"))
        return _File(query, first, last, name)

    def _files(self) -> list[_File]:
        names = ((name, _NAME.match(name.rpartition("/")[2])) for name in self._folder.all_files())
        return [_File(match["query"], int(match["first"]), int(match["last"]), name) for name, match in names if match]
