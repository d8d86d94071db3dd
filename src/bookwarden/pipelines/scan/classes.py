"""Classes of the ledgers that the join left over, and the summary of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.core.broadcast import Broadcast
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from bookwarden.deletion.node_check import NodeDoubt, Suspect
from bookwarden.ledgers.kinds import LedgerComponent
from bookwarden.ledgers.listing import ListedLedger
from bookwarden.ledgers.metadata import StoredLedger
from bookwarden.ledgers.pending_deletion import Waiver
from bookwarden.ledgers.references import Doubt
from bookwarden.orphans.classes import PLANNED, LedgerClass
from bookwarden.orphans.classify import Knowledge, age_ms, classify, classify_left, classify_named
from bookwarden.orphans.owners import owner_of
from bookwarden.orphans.plan import EmptiedScope
from bookwarden.orphans.summary import (
    NO_NAMESPACE,
    OTHER_KIND,
    SHOWN_IDS,
    SHOWN_MISSING,
    SHOWN_OWNERS,
    Cell,
    ForeignOwner,
    InsideList,
    age_bucket,
)
from bookwarden.pipelines.columns.tables import (
    ABSENT,
    CLASSIFIED,
    DOUBTS,
    LEDGERS,
    REFERENCES,
    Columns,
    Description,
    StoredDoubt,
    doubt_of,
    stored_doubt,
)
from bookwarden.pipelines.plan_files import ORPHANS, merged
from bookwarden.pipelines.scan.files import ScanFolder
from bookwarden.pipelines.scan.ids import ABSENT_TABLE
from bookwarden.pipelines.scan.join import JOIN_STAGE, REFERENCED_CELLS, cells_of
from bookwarden.pipelines.scan.reading import LATE_STAGE, LOG_PLACES, REFERENCES_STAGE, TOPIC_PLACES, ScanInput
from bookwarden.pipelines.scan.rows import read_table, read_tables
from bookwarden.pipelines.scan.stage import Stages

CLASSES_STAGE = "classes"
_CELLS_TABLE = "other_cells"
DAMAGED_TABLE = "damaged_nodes"
_CHECKED_AT_ONCE = 1_000
_COUNTED_OWNERS = 10_000
_FIRST = "first_orphan"
_PLANNED = pc.field("ledger_class").isin(sorted(PLANNED))
_HEADINGS = ["ledger_class", "kind", "namespace", "cause", "age"]


def _references(spark: SparkSession, folder: ScanFolder) -> DataFrame:
    return read_tables(spark, folder, (REFERENCES_STAGE, LATE_STAGE), REFERENCES)


@dataclass(frozen=True)
class CheckNodes:
    """Checks the nodes of candidates' holders as the sweep will; picklable."""

    source: ScanInput

    def __call__(self, ledgers: Sequence[ListedLedger]) -> list[NodeDoubt | None]:
        cluster = self.source.shared().cluster
        readings = cluster.bookkeeper.catalog.read_many([one.ledger_id for one in ledgers])
        # That a topic would be left without a ledger is a matter of the plan's guards.
        waives = frozenset({Waiver.EMPTIED})
        owners = [owner_of(one.kind or "", one.holder or "") for one in ledgers]
        suspects = {
            at: Suspect(owner.holder, reading, waives=waives)
            for at, (owner, reading) in enumerate(zip(owners, readings, strict=True))
            if owner is not None and isinstance(reading, StoredLedger)
        }
        doubts = cluster.references.node_check.doubts_now(list(suspects.values()), cluster.references.live)
        of_suspects = dict(zip(suspects, doubts, strict=True))
        return [of_suspects.get(at) for at in range(len(ledgers))]


@dataclass(frozen=True)
class ClassifyPiece:
    """Puts the ledgers that the join left over of a piece, given by number, into classes.

    What would be planned is checked as by the sweep: nothing that a damaged node may have named is a candidate.
    """

    knowledge: Broadcast[Knowledge]
    now_ms: int
    doubts: Callable[[Sequence[ListedLedger]], Sequence[NodeDoubt | None]]  #: Such as CheckNodes.

    def __call__(self, folder: ScanFolder, number: int, piece: Any) -> None:
        others = folder.read(JOIN_STAGE, piece)
        *fields, only_logs, only_gone = (column.to_pylist() for column in others.columns)
        ledgers = list(map(ListedLedger, *fields))
        found = list(map(self._describe, ledgers, only_logs, only_gone))
        damaged = self._keep_of_damaged(ledgers, found)
        described = Columns(Description).table(found)
        rows = others.select(LEDGERS.arrow.names)
        for name in described.column_names:
            rows = rows.append_column(name, described.column(name))
        orphans = rows.filter(_PLANNED).column("ledger_id")
        folder.write(
            CLASSES_STAGE,
            number,
            rows.cast(CLASSIFIED.arrow),
            names=rows.num_rows,
            digest="",
            others={_CELLS_TABLE: _count(rows), DAMAGED_TABLE: DOUBTS.table(list(map(stored_doubt, damaged)))},
            notes={_FIRST: pc.min(orphans).as_py()} if len(orphans) else {},
        )

    def _keep_of_damaged(self, ledgers: Sequence[ListedLedger], found: list[Description]) -> list[Doubt]:
        """Replace the descriptions of orphans that a damaged node may have named; return a doubt for each node."""
        doubts: dict[str, Doubt] = {}
        orphans = [at for at, one in enumerate(found) if self._has_nodes(ledgers[at], one)]
        # Those of one topic, and of one namespace, together: what is read of them is read once.
        orphans.sort(key=lambda at: ledgers[at].holder or "")
        for start in range(0, len(orphans), _CHECKED_AT_ONCE):
            some = orphans[start : start + _CHECKED_AT_ONCE]
            for at, doubt in zip(some, self.doubts([ledgers[at] for at in some]), strict=True):
                if doubt is not None:
                    doubts.setdefault(doubt.path, doubt.as_listed())
                    kept = LedgerClass.UNKNOWN_REFERENCES.value
                    found[at] = found[at]._replace(ledger_class=kept, cause="", detail=str(doubt))
        return list(doubts.values())

    def _has_nodes(self, row: ListedLedger, found: Description) -> bool:
        """Return whether this is an orphan of a holder that has, or whose topic has, a node."""
        if found.ledger_class != LedgerClass.ORPHAN.value:
            return False
        existing = self.knowledge.value.existing
        return row.holder in existing or found.topic in existing

    def _describe(self, row: ListedLedger, only_logs: bool | None, only_gone: bool) -> Description:
        if only_logs is None:
            found = classify(row, self.knowledge.value)
        elif only_gone:
            found = classify_left(row, TOPIC_PLACES, self.knowledge.value)
        else:
            found = classify_named(row, LOG_PLACES if only_logs else TOPIC_PLACES)
        owner = owner_of(row.kind, row.holder) if row.kind is not None and row.holder is not None else None
        return Description(
            found.ledger_class.value,
            found.cause.value if found.cause else "",
            found.detail,
            owner.namespace if owner else NO_NAMESPACE,
            owner.topic if owner else None,
            age_bucket(age_ms(row, self.now_ms)),
        )


def _count(rows: pa.Table) -> pa.Table:
    kinds = pc.fill_null(rows.column("kind"), OTHER_KIND)
    headed = rows.set_column(rows.column_names.index("kind"), "kind", kinds)
    return cells_of(headed.select([*_HEADINGS, "length"]))


class Classification:
    """Every ledger in its class; the referenced ones are only counted."""

    def __init__(
        self, spark: SparkSession, stages: Stages, folder: ScanFolder, left_over: Sequence[int], task: ClassifyPiece
    ) -> None:
        self._spark = spark
        self._folder = folder
        self._seals = stages.run(CLASSES_STAGE, lambda: left_over, task, [_CELLS_TABLE, DAMAGED_TABLE], restart=True)
        self.cells = self._read_cells()

    def _read_cells(self) -> tuple[Cell, ...]:
        """Read how many ledgers and bytes there are under all headings of the summary."""
        rows = [
            part for table in (REFERENCED_CELLS, _CELLS_TABLE) for part in self._folder.read_all(table, Cell._fields)
        ]
        if not rows:
            return ()
        cells = pa.concat_tables(rows).group_by(_HEADINGS).aggregate([("ledgers", "sum"), ("logical_bytes", "sum")])
        return tuple(Cell(*fields) for fields in zip(*(column.to_pylist() for column in cells.columns), strict=True))

    def others(self) -> DataFrame:
        """Return the ledgers of all other classes, with the columns of CLASSIFIED."""
        return read_table(self._spark, self._folder, CLASSES_STAGE, CLASSIFIED)

    def orphans(self) -> Iterator[pa.Table]:
        """Yield orphans and ledgers left behind by growing ledger id, in tables with the columns of ORPHANS."""
        firsts = sorted((seal.notes[_FIRST], seal.number) for seal in self._seals if _FIRST in seal.notes)
        return merged(self._orphans_of(number) for _, number in firsts)

    def _orphans_of(self, number: int) -> pa.Table:
        rows = self._folder.read(CLASSES_STAGE, number, [*ORPHANS.arrow.names, "ledger_class"])
        orphans = rows.filter(_PLANNED)
        return orphans.select(ORPHANS.arrow.names).cast(ORPHANS.arrow)

    def foreign(self) -> list[ForeignOwner]:
        """List the owners of the foreign ledgers; the owners with the most of them, and the first ids of each."""
        if not any(cell.ledger_class == LedgerClass.FOREIGN.value for cell in self.cells):
            return []
        found = self.others().where(F.col("ledger_class") == LedgerClass.FOREIGN.value)
        owners = (
            found.groupBy("detail")
            .agg(F.count("*").alias("ledgers"), F.sum("length").alias("bytes"))
            .orderBy(F.desc("ledgers"), "detail")
            .limit(_COUNTED_OWNERS)
            .collect()
        )
        place = F.row_number().over(Window.partitionBy("detail").orderBy("ledger_id"))
        shown = found.where(F.col("detail").isin(*(row["detail"] for row in owners[:SHOWN_OWNERS])))
        first: dict[str, list[int]] = {}
        for row in shown.select("detail", "ledger_id", place.alias("place")).where(f"place <= {SHOWN_IDS}").collect():
            first.setdefault(row["detail"], []).append(row["ledger_id"])
        return [
            ForeignOwner(row["detail"], row["ledgers"], row["bytes"], tuple(sorted(first.get(row["detail"], ()))))
            for row in owners
        ]

    def damaged(self) -> list[Doubt]:
        """Return the first nodes, by path, that may be damaged."""
        if not any(seal.others[DAMAGED_TABLE] for seal in self._seals):
            return []
        rows = read_table(self._spark, self._folder, DAMAGED_TABLE, DOUBTS).orderBy("path").limit(SHOWN_MISSING)
        return [doubt_of(StoredDoubt(*row)) for row in rows.collect()]

    def inside_lists(self) -> list[InsideList]:
        """Return the first ledgers, by id, that their topics' lists lost."""
        if not any(cell.ledger_class == LedgerClass.INSIDE_LIST.value for cell in self.cells):
            return []
        found = self.others().where(F.col("ledger_class") == LedgerClass.INSIDE_LIST.value)
        rows = found.select("ledger_id", "length", "topic", "detail").orderBy("ledger_id").limit(SHOWN_MISSING)
        return [InsideList(*row) for row in rows.collect()]

    def emptied_topics(self) -> list[EmptiedScope]:
        """List the existing topics that would be left without a ledger; missing ledgers do not count."""
        references = _references(self._spark, self._folder)
        named = references.where(F.col("place").isin(*TOPIC_PLACES)).withColumnRenamed("managed_ledger", "topic")
        absent = read_table(self._spark, self._folder, ABSENT_TABLE, ABSENT)
        # An offloaded ledger that is gone from BookKeeper still belongs to the topic.
        lacking = named.where("not gone").join(absent.withColumn("absent", F.lit(True)), "ledger_id", "left")
        bare = lacking.where("absent or ledger_id is null").select("topic").distinct()
        orphans = self.others().where(F.col("ledger_class") == LedgerClass.ORPHAN.value)
        of_topics = orphans.where(F.col("kind") == LedgerComponent.MANAGED_LEDGER.name)
        planned = of_topics.join(bare, "topic", "left_semi").groupBy("topic").count()
        left = (
            named.where("gone")
            .select("topic")
            .union(lacking.where("absent is null and ledger_id is not null").select("topic"))
        )
        found = planned.join(left, "topic", "left_anti").collect()
        return [EmptiedScope("topic", row["topic"], row["count"]) for row in sorted(found)]

    def orphans_of(self, namespaces: Iterable[str]) -> list[EmptiedScope]:
        """Count the orphans of these namespaces; a namespace without any is left out."""
        known, counts = frozenset(namespaces), dict[str, int]()
        for cell in self.cells:
            if cell.ledger_class == LedgerClass.ORPHAN.value and cell.namespace in known:
                counts[cell.namespace] = counts.get(cell.namespace, 0) + cell.ledgers
        return [EmptiedScope("namespace", namespace, counts[namespace]) for namespace in sorted(counts)]
