"""Ledgers and references of a scan joined, and every ledger put into its class; all of it stays in Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.core.broadcast import Broadcast
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.storagelevel import StorageLevel

from bookwarden.ledgers.holders import BucketHolder, CursorHolder
from bookwarden.ledgers.listing import ListedLedger
from bookwarden.ledgers.pending_deletion import LedgerComponent
from bookwarden.ledgers.references import PlaceKind
from bookwarden.orphans.classes import LedgerClass
from bookwarden.orphans.classify import Knowledge, age_ms, classify, classify_named, sign_of_life
from bookwarden.orphans.owners import Owner, owner_of
from bookwarden.orphans.plan import Emptied
from bookwarden.orphans.summary import (
    AGE_BOUNDS_MS,
    AGE_BUCKETS,
    NO_NAMESPACE,
    OTHER_KIND,
    SHOWN_IDS,
    SHOWN_OWNERS,
    Cell,
    ForeignOwner,
    age_bucket,
)
from bookwarden.pipelines.scan_files import ScanFolder
from bookwarden.pipelines.scan_reading import LATE_STAGE, REFERENCES_STAGE
from bookwarden.pipelines.scan_tables import CHANGES, LEDGERS, REFERENCES, Columns

_LOGS = (PlaceKind.LOG_SEGMENT.value, PlaceKind.LOG_ALLOCATION.value)
_TOPICS = (PlaceKind.MANAGED_LEDGER.value, PlaceKind.SHADOW_TOPIC.value)
_NAMES_NOTHING_ELSE = "only_logs"
_LEDGER_FIELDS = LEDGERS.arrow.names
_COUNTED_OWNERS = 10_000
_MOST_SENT = 500_000
# About 50 bytes each in every process of Spark's.
_MOST_IDS_SENT = 2_000_000

_KEY_COLUMNS = "name STRING"
_CLASSIFIED = [
    *LEDGERS.arrow,
    pa.field("ledger_class", pa.string()),
    pa.field("cause", pa.string()),
    pa.field("detail", pa.string()),
    pa.field("namespace", pa.string()),
    pa.field("topic", pa.string()),
    pa.field("age", pa.string()),
]
_CLASSIFIED_COLUMNS = (
    f"{LEDGERS.spark}, ledger_class STRING, cause STRING, detail STRING, namespace STRING, topic STRING, age STRING"
)

# What is left of a holder's text when the names below its namespace are taken off, by kind.
_ABOVE = {
    LedgerComponent.MANAGED_LEDGER: ("", 2),
    LedgerComponent.MANAGED_CURSOR: ("", 3),
    LedgerComponent.COMPACTED_LEDGER: ("compacted:", 2),
    LedgerComponent.DELAYED_INDEX_BUCKET: ("buckets:", 3),
    LedgerComponent.SCHEMA_STORAGE: ("schema:", 1),
}


def read_table(spark: SparkSession, folder: ScanFolder, table: str, columns: Columns) -> DataFrame:
    """Read a table of a scan's folder."""
    return spark.read.schema(columns.spark).parquet(folder.folder.for_spark(table))


def read_tables(spark: SparkSession, folder: ScanFolder, tables: Iterable[str], columns: Columns) -> DataFrame:
    """Read several tables of a scan's folder, with the same columns, as one."""
    return reduce(DataFrame.union, (read_table(spark, folder, table, columns) for table in tables))


class LedgerJoin:
    """The ledgers of both listings and all references, joined by ledger id."""

    def __init__(self, spark: SparkSession, folder: ScanFolder, now_ms: int) -> None:
        self._spark = spark
        self._now_ms = now_ms
        self._kept: list[DataFrame] = []
        listed = read_table(spark, folder, "ledgers", LEDGERS)
        self.references = read_tables(spark, folder, (REFERENCES_STAGE, LATE_STAGE), REFERENCES)
        self._listed = listed
        self._named = self._keep(
            self.references.where("ledger_id is not null")
            .groupBy("ledger_id")
            .agg(F.bool_and(F.col("place").isin(*_LOGS)).alias(_NAMES_NOTHING_ELSE))
        )
        # Deleted between the two listings: whoever did that is at work on it, or is done.
        gone = read_table(spark, folder, "changes", CHANGES).where("gone").select("ledger_id").distinct()
        ledgers = _with_twins_marked(listed.join(gone, "ledger_id", "left_anti"))
        # Ids are sent to where the ledgers are read, as long as there are not too many: rows of ledgers are wide.
        joined = ledgers.join(_small(self._named, _MOST_IDS_SENT), "ledger_id", "left")
        plain = F.expr(f"{_NAMES_NOTHING_ELSE} is not null and problem is null and kind is not null")
        self._referenced = joined.where(plain)
        self._others = self._keep(joined.where(~plain))

    def unnamed(self) -> DataFrame:
        """Give the references to ledgers that the listing does not have, and that should be there."""
        absent = self._keep(self._named.select("ledger_id").join(self._listed, "ledger_id", "left_anti"))
        expected = self.references.where("ledger_id is not null and not gone")
        return expected.join(_small(absent), "ledger_id", "left_semi")

    def existing(self) -> frozenset[str]:
        """Name those holders of unreferenced ledgers, and their topics and cursors, that exist."""
        owners = self._others.where("problem is null and kind is not null").select("kind", "holder").distinct()
        names = self._keep(owners.mapInArrow(_names_to_look_up, _KEY_COLUMNS).distinct())
        known = self.references.select(F.col("holder").alias("name")).union(
            self.references.where("managed_ledger is not null").select(F.col("managed_ledger").alias("name"))
        )
        found = known.join(_small(names), "name", "left_semi").distinct()
        return frozenset(row["name"] for row in found.toLocalIterator())

    def alive(self, knowledge: Knowledge) -> frozenset[str]:
        """Name the topics and namespaces that no root knows, and that ledgers were made for lately."""
        unnamed = self._others.where(f"{_NAMES_NOTHING_ELSE} is null")
        signs = unnamed.mapInArrow(_Signs(self._broadcast(knowledge)), _KEY_COLUMNS).distinct()
        return frozenset(row["name"] for row in signs.toLocalIterator())

    def classify(self, knowledge: Knowledge) -> Classification:
        """Put every ledger into its class."""
        task = _Classify(self._broadcast(knowledge), self._now_ms)
        return Classification(
            self._referenced.withColumn("age", _age(self._now_ms)),
            self._keep(self._others.mapInArrow(task, _CLASSIFIED_COLUMNS)),
            self.references,
            self._listed.select("ledger_id"),
        )

    def close(self) -> None:
        """Let go of what Spark keeps of it."""
        for frame in self._kept:
            frame.unpersist()

    def _keep(self, frame: DataFrame) -> DataFrame:
        self._kept.append(frame.persist(StorageLevel.DISK_ONLY))
        return frame

    def _broadcast(self, knowledge: Knowledge) -> Broadcast[Knowledge]:
        return self._spark.sparkContext.broadcast(knowledge)


@dataclass(frozen=True)
class Classification:
    """Every ledger in its class; what places name and is nothing else stays apart, for it needs no look."""

    referenced: DataFrame
    others: DataFrame
    references: DataFrame
    listed: DataFrame

    def cells(self) -> list[Cell]:
        """Count ledgers and bytes by all headings of the summary."""
        # First by holder: a namespace is read off its name once for all of its ledgers.
        holders = self.referenced.groupBy("kind", "holder", "age").agg(
            F.count("*").alias("ledgers"), F.sum("length").alias("length")
        )
        plain = holders.select(
            F.lit(LedgerClass.REFERENCED.value).alias("ledger_class"),
            "kind",
            _namespace().alias("namespace"),
            F.lit("").alias("cause"),
            "age",
            "ledgers",
            "length",
        )
        others = self.others.select(
            "ledger_class",
            F.coalesce("kind", F.lit(OTHER_KIND)).alias("kind"),
            "namespace",
            "cause",
            "age",
            F.lit(1).alias("ledgers"),
            "length",
        )
        counted = [
            frame.groupBy("ledger_class", "kind", "namespace", "cause", "age").agg(
                F.sum("ledgers").alias("ledgers"), F.sum("length").alias("logical_bytes")
            )
            for frame in (plain, others)
        ]
        return [Cell(*row) for frame in counted for row in frame.toLocalIterator()]

    def orphans(self) -> DataFrame:
        """Give the orphans by growing ledger id."""
        return self.others.where(F.col("ledger_class") == LedgerClass.ORPHAN.value).orderBy("ledger_id")

    def foreign(self) -> list[ForeignOwner]:
        """Say whose the foreign ledgers are; the owners with the most of them, and the first ids of each."""
        found = self.others.where(F.col("ledger_class") == LedgerClass.FOREIGN.value)
        owners = (
            found.groupBy("detail")
            .agg(F.count("*").alias("ledgers"), F.sum("length").alias("bytes"))
            .orderBy(F.desc("ledgers"), "detail")
            .limit(_COUNTED_OWNERS)
            .collect()
        )
        if not owners:
            return []
        place = F.row_number().over(Window.partitionBy("detail").orderBy("ledger_id"))
        shown = found.where(F.col("detail").isin(*(row["detail"] for row in owners[:SHOWN_OWNERS])))
        first: dict[str, list[int]] = {}
        for row in shown.select("detail", "ledger_id", place.alias("place")).where(f"place <= {SHOWN_IDS}").collect():
            first.setdefault(row["detail"], []).append(row["ledger_id"])
        return [
            ForeignOwner(row["detail"], row["ledgers"], row["bytes"], tuple(sorted(first.get(row["detail"], ()))))
            for row in owners
        ]

    def emptied_topics(self) -> list[Emptied]:
        """Name the topics that exist and would be left without a ledger: one that is missing is none."""
        orphans = self.others.where(F.col("ledger_class") == LedgerClass.ORPHAN.value)
        planned = orphans.where(F.col("kind") == LedgerComponent.MANAGED_LEDGER.name).groupBy("topic").count()
        named = self.references.where(F.col("place").isin(*_TOPICS)).withColumnRenamed("managed_ledger", "topic")
        existing = named.join(_small(planned), "topic").persist(StorageLevel.DISK_ONLY)
        # A ledger that is offloaded, and gone from BookKeeper, is one of the topic's all the same.
        left = (
            existing.where("gone")
            .select("topic")
            .union(existing.where("not gone").join(self.listed, "ledger_id", "left_semi").select("topic"))
        )
        found = existing.select("topic", "count").distinct().join(left.distinct(), "topic", "left_anti").collect()
        existing.unpersist()
        return [Emptied("topic", row["topic"], row["count"]) for row in sorted(found)]

    def orphans_of(self, namespaces: Iterable[str]) -> list[Emptied]:
        """Count the orphans of those of these namespaces that have any."""
        orphans = self.others.where(F.col("ledger_class") == LedgerClass.ORPHAN.value)
        known = frozenset(namespaces)
        rows = sorted(orphans.groupBy("namespace").count().collect())
        return [Emptied("namespace", row["namespace"], row["count"]) for row in rows if row["namespace"] in known]


def _with_twins_marked(ledgers: DataFrame) -> DataFrame:
    """Say of a ledger with two nodes that it cannot be understood."""
    # In one tree there is one path for a ledger, and the trees differ in their depth.
    depth = F.length("path") - F.length(F.replace("path", F.lit("/"), F.lit("")))
    if len(ledgers.select(depth.alias("depth")).distinct().limit(2).collect()) < 2:
        return ledgers
    twins = ledgers.groupBy("ledger_id").count().where("count > 1").select("ledger_id", F.lit(True).alias("twin"))
    problem = F.coalesce("problem", F.when(F.col("twin"), F.lit("it has two metadata nodes")))
    return ledgers.join(twins, "ledger_id", "left").withColumn("problem", problem).drop("twin")


def _small(frame: DataFrame, limit: int = _MOST_SENT) -> DataFrame:
    """Let Spark send a small table to all tasks, rather than the large one that it is joined with to each other."""
    return F.broadcast(frame) if frame.count() <= limit else frame


def _names_to_look_up(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        names: dict[str, None] = {}
        for kind, holder in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            owner = owner_of(kind, holder)
            if owner is not None:
                names.update(dict.fromkeys(_names_of(owner)))
        yield _names_batch(names)


def _names_of(owner: Owner) -> Iterator[str]:
    yield str(owner.holder)
    if owner.topic is not None:
        yield owner.topic
    if isinstance(owner.holder, BucketHolder):
        yield str(CursorHolder(owner.holder.managed_ledger, owner.holder.cursor))


def _names_batch(names: Iterable[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(list(names), pa.string())], names=["name"])


@dataclass(frozen=True)
class _Signs:
    """Names what unreferenced ledgers were made for lately and no root knows."""

    knowledge: Broadcast[Knowledge]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            signs = (sign_of_life(row, self.knowledge.value) for row, _ in _rows(batch))
            yield _names_batch(dict.fromkeys(sign for sign in signs if sign is not None))


@dataclass(frozen=True)
class _Classify:
    """Puts ledgers into their classes."""

    knowledge: Broadcast[Knowledge]
    now_ms: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = [self._describe(row, only_logs) for row, only_logs in _rows(batch)]
            columns = [batch.column(name) for name in _LEDGER_FIELDS]
            described: Sequence[Sequence[Any]] = list(zip(*found, strict=True)) if found else [[]] * 6
            columns += [pa.array(values, pa.string()) for values in described]
            yield pa.RecordBatch.from_arrays(columns, schema=pa.schema(_CLASSIFIED))

    def _describe(self, row: ListedLedger, only_logs: bool | None) -> tuple[str, str, str, str, str | None, str]:
        if only_logs is None:
            found = classify(row, self.knowledge.value)
        else:
            found = classify_named(row, _LOGS if only_logs else _TOPICS)
        owner = owner_of(row.kind, row.holder) if row.kind is not None and row.holder is not None else None
        return (
            found.ledger_class.value,
            found.cause.value if found.cause else "",
            found.detail,
            owner.namespace if owner else NO_NAMESPACE,
            owner.topic if owner else None,
            age_bucket(age_ms(row, self.now_ms)),
        )


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[ListedLedger, bool | None]]:
    columns = [batch.column(name).to_pylist() for name in (*_LEDGER_FIELDS, _NAMES_NOTHING_ELSE)]
    for *fields, only_logs in zip(*columns, strict=True):
        yield ListedLedger(*fields), only_logs


def _without(column: Column, prefix: str, names: int) -> Column:
    """Take a prefix and so many last names off a path."""
    return F.regexp_extract(column, f"^{prefix}(.*)" + "/[^/]*" * names + "$", 1)


def _namespace() -> Column:
    cases = [
        (F.col("kind") == kind.name, _without(F.col("holder"), prefix, names))
        for kind, (prefix, names) in _ABOVE.items()
    ]
    (condition, value), *others = cases
    chosen = reduce(lambda chain, case: chain.when(*case), others, F.when(condition, value))
    return F.coalesce(chosen, F.lit(NO_NAMESPACE))


def _age(now_ms: int) -> Column:
    age = F.lit(now_ms) - F.greatest("created_ms", F.coalesce("ctime_ms", "created_ms"))
    bounds = list(zip(AGE_BUCKETS, AGE_BOUNDS_MS, strict=False))
    (name, bound), *others = bounds
    chosen = reduce(lambda chain, case: chain.when(age < case[1], case[0]), others, F.when(age < bound, name))
    return chosen.otherwise(AGE_BUCKETS[-1])
