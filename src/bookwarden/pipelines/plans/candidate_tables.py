"""The candidates of plans as Arrow tables, by growing ledger id through all tables of a plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bookwarden.errors import FormatError
from bookwarden.orphans.plan import Candidate
from bookwarden.pipelines.columns.messages import Numbers
from bookwarden.pipelines.columns.tables import Columns

CANDIDATES: Final = Columns(Candidate)
_FIRST_SEEN: Final = "first_seen_ms"
# What only a scan says of its candidates: the earlier plan has the rest.
ORPHANS: Final = CANDIDATES.only(*(name for name in Candidate._fields if name != _FIRST_SEEN))
# A node that differs in any of these is another one, or was written since.
_THE_SAME: Final = ["path", "created_ms", "version"]


def merged(pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the rows of all pieces by growing ledger id; pieces have the columns of ORPHANS, and have rows.

    Pieces come by growing smallest id, in any order within: rows below the next piece's smallest id can be passed on.
    Pieces seldom overlap, so that as a rule one is held at a time.
    """
    left = ORPHANS.arrow.empty_table()
    for piece in pieces:
        first_id = pc.min(piece.column("ledger_id")).as_py()
        below = int(np.searchsorted(left.column("ledger_id").to_numpy(), first_id))
        yield left.slice(0, below)
        left = pa.concat_tables([left.slice(below), piece]).sort_by("ledger_id")
    yield left


def carry_over(candidates: Iterable[pa.Table], before: Iterable[pa.Table], created_ms: int) -> Iterator[pa.Table]:
    """Yield the candidates, each with the time since when it has been an orphan in every plan of the cluster.

    ``candidates`` have the columns of ORPHANS; the result, and ``before``, those of CANDIDATES. ``before`` are those of
    the newest earlier plan, which has carried over its own; empty where there is none, or where it cannot be read.
    ``created_ms`` is the time of this plan: candidates begin then if the earlier plan does not have them, has another
    node or one written since, or a later time. Both are by growing ledger id, else FormatError; one table of each is
    held at a time.
    """
    earlier = in_order(before)
    old = next(earlier, None)
    for table in in_order(candidates):
        last_id = table.column("ledger_id")[-1].as_py()
        first_seen = np.full(table.num_rows, created_ms, np.int64)
        while old is not None:
            places, times = _seen_before(table, old, created_ms)
            first_seen[places] = times
            if old.column("ledger_id")[-1].as_py() > last_id:
                # Its rest goes with the candidates of the next table.
                break
            old = next(earlier, None)
        yield table.append_column(_FIRST_SEEN, pa.array(first_seen)).cast(CANDIDATES.arrow)


def _seen_before(table: pa.Table, old: pa.Table, created_ms: int) -> tuple[Numbers, Numbers]:
    """Return the places in `table` of nodes that `old` has unchanged, and since when each has been an orphan."""
    ids, old_ids = table.column("ledger_id").to_numpy(), old.column("ledger_id").to_numpy()
    old_places = np.minimum(np.searchsorted(old_ids, ids), len(old_ids) - 1)
    places = np.flatnonzero(old_ids[old_places] == ids)
    now, was = table.select(_THE_SAME).take(places), old.select([*_THE_SAME, _FIRST_SEEN]).take(old_places[places])
    same = pc.less_equal(was.column(_FIRST_SEEN), created_ms)
    for name in _THE_SAME:
        same = pc.and_(same, pc.equal(now.column(name), was.column(name)))
    return places[same.to_numpy()], was.column(_FIRST_SEEN).filter(same).to_numpy()


def in_order(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the tables that have rows; FormatError where they are not by growing ledger id, each ledger once."""
    last_id = -1
    for table in tables:
        if not table.num_rows:
            continue
        ids = table.column("ledger_id").to_numpy()
        before = np.concatenate([[last_id], ids[:-1]])
        wrong = np.flatnonzero(ids <= before)
        if len(wrong):
            raise FormatError(
                f"candidates are out of order: ledger {ids[wrong[0]]} comes after ledger {before[wrong[0]]}"
            )
        last_id = int(ids[-1])
        yield table
