"""The ledgers of a scan joined with the ids that places name, a piece of the listing at a time.

A named ledger with nothing unusual is referenced, and only counted. The others, few in most clusters, are kept row by
row to be looked at. The ids are brought to the rows of ledgers, which are wide, and all work on a piece is done in
whole columns: at a million ledgers each microsecond a ledger is a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bookwarden.ledgers.kinds import KINDS, ManagedLedgerHolder
from bookwarden.ledgers.list_gaps import ListStatus, list_status_of
from bookwarden.ledgers.metadata import LedgerState
from bookwarden.orphans.classes import LedgerClass
from bookwarden.orphans.classify import Knowledge, sign_of_life
from bookwarden.orphans.owners import Owner, owner_of, without_partition
from bookwarden.orphans.summary import AGE_BOUNDS_MS, AGE_BUCKETS, NO_NAMESPACE
from bookwarden.pipelines.columns.tables import CELLS, HOLDERS, OTHERS, OWNERS, rows_in
from bookwarden.pipelines.scan.files import ScanFolder
from bookwarden.pipelines.scan.ids import NamedIds, ScanIds, is_among
from bookwarden.pipelines.scan.reading import HOLDER_TABLES, LEDGERS_STAGE
from bookwarden.pipelines.scan.stage import Stages

JOIN_STAGE = "join"
REFERENCED_CELLS = "referenced_cells"
_OWNERS_TABLE = "unnamed_owners"
_TWIN = "it has two metadata nodes"
_OF_OWNERS = [("lately", "any"), ("last_written", "max")]
_GROUPED_AT_ONCE = 100_000
_COUNTED = ["created_ms", "ctime_ms", "length", "kind", "holder"]

# What is left of a holder's text when the names below its namespace are taken off, by kind.
_ABOVE = {kind.component.name: (kind.prefix, kind.names_below) for kind in KINDS}


@dataclass(frozen=True)
class JoinPiece:
    """Joins a piece of the listing, given by number, with the named ids.

    Ages are counted up to ``now_ms``, and ledgers after ``cutoff_ms`` are young; both in milliseconds since the epoch.
    """

    ids: ScanIds
    now_ms: int
    cutoff_ms: int

    def __call__(self, folder: ScanFolder, number: int, piece: Any) -> None:
        ledgers = self._as_they_are_now(folder.read(LEDGERS_STAGE, piece))
        named, only_logs, only_gone = NamedIds(folder).flags(ledgers.column("ledger_id").to_numpy())
        plain = pc.and_(
            pa.array(named & ~only_gone),
            pc.and_(ledgers.column("problem").is_null(), ledgers.column("kind").is_valid()),
        )
        ledgers_with_logs = ledgers.append_column("only_logs", pa.array(only_logs, mask=~named))
        others = ledgers_with_logs.append_column("only_gone", pa.array(only_gone)).filter(pc.invert(plain))
        folder.write(
            JOIN_STAGE,
            number,
            others.cast(OTHERS.arrow),
            names=ledgers.num_rows,
            digest="",
            others={
                REFERENCED_CELLS: _count(ledgers.select(_COUNTED).filter(plain), self.now_ms),
                _OWNERS_TABLE: _owners(others, self.cutoff_ms),
            },
        )

    def _as_they_are_now(self, ledgers: pa.Table) -> pa.Table:
        """Drop the vanished ledgers, and mark a ledger with two nodes as not understood."""
        if len(self.ids.vanished):
            ledgers = ledgers.filter(pa.array(~is_among(ledgers.column("ledger_id").to_numpy(), self.ids.vanished)))
        twins = is_among(ledgers.column("ledger_id").to_numpy(), self.ids.twins)
        if not twins.any():
            return ledgers
        twin_problem = pc.if_else(pa.array(twins), pa.scalar(_TWIN), pa.scalar(None, pa.string()))
        problem = pc.coalesce(ledgers.column("problem"), twin_problem)
        return ledgers.set_column(ledgers.column_names.index("problem"), "problem", problem)


class LedgerJoin:
    """The join of all pieces; ``left_over`` are the numbers of the pieces with ledgers to be looked at."""

    def __init__(self, stages: Stages, folder: ScanFolder, ids: ScanIds, *, now_ms: int, cutoff_ms: int) -> None:
        self._folder = folder
        tables = [REFERENCED_CELLS, _OWNERS_TABLE]
        pieces = sorted(folder.finished(LEDGERS_STAGE))
        seals = stages.run(JOIN_STAGE, lambda: pieces, JoinPiece(ids, now_ms, cutoff_ms), tables, restart=True)
        self.left_over = [seal.number for seal in seals if seal.rows]
        self._owners = self._read_owners()

    def existing(self) -> frozenset[str]:
        """List the holders of ledgers that no place names, and their topics and cursors, that exist."""
        return frozenset(self._known)

    def first_listed(self) -> dict[str, int]:
        """Return the smallest id, over all roots, that those topics among them list."""
        return {name: first for name, first in self._known.items() if first is not None}

    @cached_property
    def _known(self) -> dict[str, int | None]:
        names = {name for owner in self._owners for name in _names_of(owner)}
        found = dict[str, int | None]()
        for table in HOLDER_TABLES:
            for rows in self._folder.read_all(table, HOLDERS.arrow.names):
                for name, first in zip(*(column.to_pylist() for column in rows.columns), strict=True):
                    # Arrow would hash all names again for each piece.
                    if name in names:
                        before = found.get(name)
                        found[name] = first if before is None else before if first is None else min(before, first)
        return found

    def alive(self, knowledge: Knowledge) -> frozenset[str]:
        """List the topics and namespaces that no root knows, and that ledgers were made for lately.

        A partition is a sign of its topic, which has the schema of all partitions.
        """
        lately = (owner for owner, made_lately in self._owners.items() if made_lately)
        signs = {sign for owner in lately if (sign := sign_of_life(owner, knowledge)) is not None}
        return frozenset(signs | {without_partition(sign) for sign in signs})

    def holey(self) -> frozenset[str]:
        """List the topics of ledgers that no trim can have taken from their lists, a partition's topic too."""
        found = {
            owner.holder.name
            for owner, last_written in self._last_written.items()
            if isinstance(owner.holder, ManagedLedgerHolder)
            and list_status_of(last_written, self._known.get(owner.holder.name), True) is not ListStatus.LET_GO
        }
        return frozenset(found | {without_partition(topic) for topic in found})

    def _read_owners(self) -> dict[Owner, bool]:
        """Read the owners of the ledgers that no place names, each with whether one was made after the cutoff."""
        owners: dict[Owner, bool] = {}
        self._last_written: dict[Owner, int] = {}
        together = owners_together(self._folder.read_all(_OWNERS_TABLE, OWNERS.arrow.names))
        for kind, holder, lately, last in rows_in(together):
            owner = owner_of(kind, holder)
            if owner is not None:
                owners[owner] = owners.get(owner, False) or lately
            if owner is not None and last is not None:
                self._last_written[owner] = max(last, self._last_written.get(owner, last))
        return owners


def owners_together(tables: Iterable[pa.Table]) -> pa.Table:
    """Return one row for each owner of the tables, whose rows together may be several times the owners."""
    together, parts = OWNERS.arrow.empty_table(), list[pa.Table]()
    for rows in tables:
        parts.append(rows)
        if sum(part.num_rows for part in parts) >= max(_GROUPED_AT_ONCE, together.num_rows):
            together, parts = _grouped([together, *parts]), []
    return _grouped([together, *parts])


def _grouped(owners: list[pa.Table]) -> pa.Table:
    """Return one row for each owner."""
    rows = pa.concat_tables(owners)
    grouped = rows.group_by(["kind", "holder"]).aggregate(_OF_OWNERS)
    return grouped.rename_columns(OWNERS.arrow.names).cast(OWNERS.arrow)


def _names_of(owner: Owner) -> Iterator[str]:
    yield str(owner.holder)
    yield owner.topic
    yield from map(str, owner.holder.named_by())


def _born_ms(ledgers: pa.Table) -> pa.ChunkedArray:
    """Return the later of the two times of each ledger's creation, as `orphans.classify.born_ms` does."""
    return pc.max_element_wise(ledgers.column("created_ms"), ledgers.column("ctime_ms"))


def _owners(others: pa.Table, cutoff_ms: int) -> pa.Table:
    """List the owners of ledgers that no place names."""
    understood = pc.and_(others.column("problem").is_null(), others.column("kind").is_valid())
    unnamed = others.filter(pc.and_(understood, others.column("only_logs").is_null()))
    written = pc.and_(
        pc.equal(unnamed.column("state"), LedgerState.CLOSED.name), pc.greater(unnamed.column("length"), 0)
    )
    last_written = pc.if_else(written, unnamed.column("ledger_id"), pa.scalar(None, pa.int64()))
    owners = unnamed.select(["kind", "holder"]).append_column("lately", pc.greater(_born_ms(unnamed), cutoff_ms))
    owners = owners.append_column("last_written", last_written)
    return _grouped([owners])


def _count(referenced: pa.Table, now_ms: int) -> pa.Table:
    """Count ledgers and bytes by all headings of the summary."""
    ages = np.searchsorted(AGE_BOUNDS_MS, now_ms - _born_ms(referenced).to_numpy(), side="right")
    rows = {
        "kind": referenced.column("kind"),
        "namespace": _namespaces(referenced),
        "age": pa.array(AGE_BUCKETS).take(pa.array(ages)),
        "length": referenced.column("length"),
    }
    return cells_of(pa.table(rows), ledger_class=LedgerClass.REFERENCED.value, cause="")


def cells_of(rows: pa.Table, **same: str) -> pa.Table:
    """Count ledgers by the headings of a Cell: ``rows`` have headings and a length, ``same`` are what all share."""
    headings = [name for name in rows.column_names if name != "length"]
    counted = rows.group_by(headings).aggregate([("length", "count"), ("length", "sum")])
    cells = counted.rename_columns({"length_count": "ledgers", "length_sum": "logical_bytes"})
    for name, value in same.items():
        cells = cells.append_column(name, pa.repeat(value, cells.num_rows))
    return cells.select(CELLS.arrow.names).cast(CELLS.arrow)


def _namespaces(ledgers: pa.Table) -> pa.Array:
    """Read the namespace from each holder's text."""
    kinds, holders = ledgers.column("kind").combine_chunks(), ledgers.column("holder").combine_chunks()
    found = pa.repeat(NO_NAMESPACE, len(kinds))
    there = frozenset(pc.unique(kinds).to_pylist())
    for kind, (prefix, names_below) in _ABOVE.items():
        if kind not in there:
            continue
        of_kind = pc.equal(kinds, kind)
        above = _without(holders.filter(of_kind), prefix, names_below)
        found = pc.replace_with_mask(found, of_kind, above)
    return found


def _without(texts: pa.Array, prefix: str, names: int) -> pa.Array:
    """Cut a prefix and a number of last names off paths."""
    paths = pc.utf8_slice_codeunits(texts, len(prefix)) if prefix else texts
    return pc.list_element(pc.split_pattern(paths, "/", max_splits=names, reverse=True), 0)
