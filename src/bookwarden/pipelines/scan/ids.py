"""The ids of a scan: the listed ones compared with the ones that places name.

They are sorted arrays in the driver, eight bytes an id, and twice as much of the named ones for a moment: pieces are
read into their places, sorted there, and compared a part at a time. What Spark's tasks need is in the scan's folder:

    named.parquet     ledger_id, only_logs, only_gone: every id that a place names, sorted, in groups of 65,536 rows
    absent.parquet    ledger_id: the named ids that were not listed
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bookwarden.pipelines.scan.files import ScanFolder, Seal
from bookwarden.pipelines.scan.reading import (
    CHANGES_STAGE,
    LATE_STAGE,
    LEDGERS_STAGE,
    LOG_PLACES,
    OF_LOGS,
    REFERENCES_STAGE,
    SAID_GONE,
)

Ids: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
Flags: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"

ABSENT_TABLE = "absent"
_NAMED_FILE = "named.parquet"
_ABSENT_FILE = f"{ABSENT_TABLE}/piece-00000.parquet"
_GROUP_ROWS = 65_536
_READERS = 4
_COMPARED_AT_ONCE = 1_000_000
# No ledger has it.
_NO_ID = -1
_NONE: Ids = np.empty(0, np.int64)
_NO_FLAGS: Flags = np.empty(0, np.bool_)


@dataclass(frozen=True)
class ScanIds:
    """The comparison of a scan's ids; each array is sorted and without repeats."""

    vanished: Ids  #: Deleted between the two listings: by someone who is still at work on them, or done.
    twins: Ids  #: With two metadata nodes.
    absent: Ids  #: Named, but not listed.


def compare_ids(folder: ScanFolder, seals: dict[str, list[Seal]]) -> ScanIds:
    """Read the ids of all finished stages, and write the named and the absent ones to files."""
    named, only_logs, only_gone = _named(folder, seals)
    listed = _gathered(folder, seals, (LEDGERS_STAGE,), _listed_ids)
    listed.sort()
    absent = named[~is_among(named, listed)]
    named_table = pa.table({"ledger_id": named, "only_logs": only_logs, "only_gone": only_gone})
    folder.folder.write(_NAMED_FILE, partial(_write_sorted, named_table))
    folder.folder.write(_ABSENT_FILE, partial(_write_sorted, pa.table({"ledger_id": absent})))
    vanished = _distinct(_gathered(folder, seals, (CHANGES_STAGE,), _vanished_ids))
    return ScanIds(vanished, _distinct(listed[1:][listed[1:] == listed[:-1]]), absent)


def is_among(ids: Ids, known: Ids) -> Flags:
    """Return for each id whether it is among the known ones, which are sorted."""
    found = np.zeros(len(ids), np.bool_)
    for begin in range(0, len(ids) if len(known) else 0, _COMPARED_AT_ONCE):
        part = slice(begin, begin + _COMPARED_AT_ONCE)
        found[part] = known.take(np.searchsorted(known, ids[part]), mode="clip") == ids[part]
    return found


class NamedIds:
    """The named ids for a task, which reads a range of them, and little more, at a time."""

    def __init__(self, folder: ScanFolder) -> None:
        self._folder = folder

    def flags(self, ids: Ids) -> tuple[Flags, Flags, Flags]:
        """Return for each id whether places name it, whether these are logs alone, and whether all call it deleted."""
        known, only_logs, only_gone = (
            self._between(int(ids.min()), int(ids.max())) if len(ids) else (_NONE, _NO_FLAGS, _NO_FLAGS)
        )
        return is_among(ids, known), is_among(ids, known[only_logs]), is_among(ids, known[only_gone])

    def _between(self, first_id: int, last_id: int) -> tuple[Ids, Flags, Flags]:
        """Return the named ids from the first to the last, and perhaps others, with the two flags of each."""
        found = _rows_between(self._folder, _NAMED_FILE, first_id, last_id)
        ids, only_logs, only_gone = (found.column(name).to_numpy() for name in ("ledger_id", "only_logs", "only_gone"))
        return ids, only_logs, only_gone


def is_absent(folder: ScanFolder, ids: Ids) -> Flags:
    """Return for each id whether a place names it and it was not listed, as a task asks it."""
    if not len(ids):
        return np.zeros(0, np.bool_)
    found = _rows_between(folder, _ABSENT_FILE, int(ids.min()), int(ids.max()))
    return is_among(ids, found.column("ledger_id").to_numpy())


def _rows_between(folder: ScanFolder, name: str, first_id: int, last_id: int) -> pa.Table:
    """Read the rows of a sorted file whose ids are from the first to the last, and perhaps others."""
    with folder.folder.open(name) as source:
        file = pq.ParquetFile(source)
        groups = [
            number
            for number in range(file.metadata.num_row_groups)
            if _may_have(file.metadata.row_group(number).column(0).statistics, first_id, last_id)
        ]
        return file.read_row_groups(groups)


def _may_have(statistics: pq.Statistics | None, first_id: int, last_id: int) -> bool:
    # A group without statistics is read: an id overlooked here would be a ledger that no node seems to name.
    if statistics is None or not statistics.has_min_max:
        return True
    return bool(statistics.min <= last_id and statistics.max >= first_id)


def _named(folder: ScanFolder, seals: dict[str, list[Seal]]) -> tuple[Ids, Flags, Flags]:
    """Return the ids that places name, with flags: only logs name it, and all places call it deleted."""
    rare = [(_NONE, _NONE)]

    def usual_ids(folder: ScanFolder, stage: str, seal: Seal) -> Ids:
        others, of_logs, gone = _ids_by_place(folder, stage, seal)
        rare.append((of_logs, gone))
        return others

    others = _distinct(_gathered(folder, seals, (REFERENCES_STAGE, LATE_STAGE), usual_ids))
    of_logs, gone = (_distinct(np.concatenate(ids)) for ids in zip(*rare, strict=True))
    gone = gone[~is_among(gone, others) & ~is_among(gone, of_logs)]
    of_logs = of_logs[~is_among(of_logs, others)]
    named = np.concatenate([others, of_logs, gone])
    named.sort()
    return named, is_among(named, of_logs), is_among(named, gone)


def _gathered(
    folder: ScanFolder,
    seals: dict[str, list[Seal]],
    stages: tuple[str, ...],
    read: Callable[[ScanFolder, str, Seal], Ids],
) -> Ids:
    """Return the ids of all pieces of stages, and `_NO_ID` for each row that has none."""
    pieces = [(stage, seal) for stage in stages for seal in seals[stage] if seal.rows]
    ends = np.cumsum([0, *(seal.rows for _, seal in pieces)])
    ids = np.full(ends[-1], _NO_ID, np.int64)

    def fill(piece: tuple[str, Seal], begin: int, end: int) -> None:
        found = read(folder, *piece)
        # More than the piece has rows would be an error, never another piece's place.
        ids[begin:end][: len(found)] = found

    with ThreadPoolExecutor(_READERS, thread_name_prefix="ids") as pool:
        # Asked for its results, so that an error of a piece is raised.
        list(pool.map(fill, pieces, ends, ends[1:]))
    return ids


def _listed_ids(folder: ScanFolder, stage: str, seal: Seal) -> Ids:
    return _as_ids(folder.read(stage, seal.number, ["ledger_id"]))


def _vanished_ids(folder: ScanFolder, stage: str, seal: Seal) -> Ids:
    return _as_ids(folder.read(stage, seal.number, ["ledger_id", "gone"]).filter(pc.field("gone")))


def _ids_by_place(folder: ScanFolder, stage: str, seal: Seal) -> tuple[Ids, Ids, Ids]:
    """Return the ids that places outside and inside logs name, and those that places name and call deleted."""
    # A scan of an earlier release has no such note.
    if not seal.notes[OF_LOGS] and not seal.notes.get(SAID_GONE, 1):
        return _as_ids(folder.read(stage, seal.number, ["ledger_id"]).drop_null()), _NONE, _NONE
    rows = folder.read(stage, seal.number, ["ledger_id", "place", "gone"]).filter(pc.field("ledger_id").is_valid())
    of_logs = pc.is_in(rows.column("place"), value_set=pa.array(LOG_PLACES))
    gone = rows.column("gone")
    others = pc.invert(pc.or_(of_logs, gone))
    return _as_ids(rows.filter(others)), _as_ids(rows.filter(of_logs)), _as_ids(rows.filter(gone))


def _distinct(ids: Ids) -> Ids:
    """Sort ids where they are; return them without the repeated ones and `_NO_ID`.

    Numpy's own way goes through a hash table, and takes much longer.
    """
    ids.sort()
    first = ids != _NO_ID
    first[1:] &= ids[1:] != ids[:-1]
    distinct: Ids = ids[first]
    return distinct


def _as_ids(rows: pa.Table) -> Ids:
    ids: Ids = rows.column("ledger_id").to_numpy()
    return ids.astype(np.int64, copy=False)


def _write_sorted(rows: pa.Table, sink: pa.NativeFile) -> None:
    pq.write_table(rows, sink, compression="zstd", use_dictionary=False, row_group_size=_GROUP_ROWS)
