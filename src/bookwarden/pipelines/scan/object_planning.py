"""The offloaded copies of a scan joined with the lists that name them; unnamed copies are looked at, and planned."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bookwarden.deletion.node_check import Suspect
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.ledgers.list_gaps import NAMES_NOTHING
from bookwarden.ledgers.offloaded_copies import CopyReading, OffloadedCopy, StoreLocation
from bookwarden.ledgers.references import Doubt
from bookwarden.orphans.classify import Knowledge
from bookwarden.orphans.copies import (
    ClassifiedCopy,
    CopyClass,
    FoundCopy,
    class_by_name,
    class_by_owner,
    doubt_about_copies,
    kept_in_shared_stores,
    owner_named,
)
from bookwarden.orphans.copy_plan import CopyCandidate, StoreCopies
from bookwarden.orphans.summary import ClassCount
from bookwarden.pipelines.columns.tables import COPIES, LEDGERS, OBJECTS, REFERENCES
from bookwarden.pipelines.scan.files import ScanFolder
from bookwarden.pipelines.scan.reading import (
    COPY_TABLES,
    LATE_STAGE,
    LEDGERS_STAGE,
    OBJECTS_STAGE,
    REFERENCES_STAGE,
    TOPIC_PLACES,
    UNREAD,
    UNREAD_TABLE,
)
from bookwarden.pipelines.scan.rows import read_table, read_tables
from bookwarden.wiring.scan import ScanSources

NOT_SCANNED = "not scanned"
_SETTING = "offload.stores"
_LOOKED_AT_ONCE = 1_000


@dataclass(frozen=True)
class PlannedCopies:
    """The results of a scan of the stores of offloaded copies."""

    objects: tuple[ClassCount, ...] = ()  #: Counts by class and store.
    stores: tuple[StoreCopies, ...] = ()  #: Copies by store.
    #: Orphans, still without number and without the time since when they are.
    candidates: tuple[CopyCandidate, ...] = ()
    #: Stores that could not be read, and nodes that may be damaged.
    doubts: tuple[Doubt, ...] = ()


class ObjectPlanner:
    """Puts all listed objects of the stores into classes; the unnamed ones stay in memory here."""

    def __init__(self, spark: SparkSession, folder: ScanFolder, sources: ScanSources) -> None:
        self._spark = spark
        self._folder = folder
        self._sources = sources
        self._locations = sources.objects.locations()

    def make(self, knowledge: Knowledge) -> PlannedCopies:
        """Classify, and look at unnamed copies that are old enough; an unread store has no candidates."""
        unread = self._unread()
        if not self._locations:
            return PlannedCopies((), (), (), _not_scanned(unread))
        objects = read_table(self._spark, self._folder, OBJECTS_STAGE, OBJECTS).where(
            F.col("store").isin(sorted(set(self._locations) - set(unread)))
        )
        tally = _Tally()
        for row in objects.where("uuid is null").groupBy("store").agg(F.count("*"), F.sum("length")).collect():
            tally.add_objects(CopyClass.UNKNOWN_NAME, *row)
        copies = self._copies(objects)
        named = copies.where("referenced").groupBy("store")
        for row in named.agg(F.sum(F.expr("objects + uploads")), F.sum("length"), F.count("*")).collect():
            store, number, length, copies_named = row
            tally.add_objects(CopyClass.REFERENCED, store, number, length)
            tally.copies[store] += copies_named
        unnamed = list(self._classified(self._unnamed(copies.where("not referenced")), knowledge))
        classified, damaged = self._kept_of_damaged(unnamed)
        for copy, found in classified:
            tally.add(copy, found)
        orphans = [(copy, found) for copy, found in classified if found.copy_class is CopyClass.ORPHAN]
        return PlannedCopies(
            (*tally.counts(), *(ClassCount(NOT_SCANNED, store, 0, 0) for store in sorted(unread))),
            tally.stores(),
            tuple(self._candidate(copy, found) for copy, found in orphans),
            (*_not_scanned(unread), *damaged),
        )

    def _kept_of_damaged(
        self, classified: Sequence[tuple[FoundCopy, ClassifiedCopy]]
    ) -> tuple[list[tuple[FoundCopy, ClassifiedCopy]], list[Doubt]]:
        """Keep the orphans that a damaged node may have named, checked as by the sweep; return its doubts too."""
        orphans = [at for at, (_, found) in enumerate(classified) if found.copy_class is CopyClass.ORPHAN]
        after, doubts = list(classified), dict[str, Doubt]()
        cluster = self._sources.cluster
        for start in range(0, len(orphans), _LOOKED_AT_ONCE):
            some = orphans[start : start + _LOOKED_AT_ONCE]
            readings = cluster.bookkeeper.catalog.read_many([classified[at][0].ledger_id or 0 for at in some])
            suspects = [
                Suspect(ManagedLedgerHolder(classified[at][1].owner or ""), reading, is_copy=True)
                for at, reading in zip(some, readings, strict=True)
            ]
            for at, doubt in zip(
                some, cluster.references.node_check.doubts_now(suspects, cluster.references.live), strict=True
            ):
                if doubt is not None:
                    after[at] = after[at][0], ClassifiedCopy(CopyClass.UNKNOWN_REFERENCES, detail=str(doubt))
                    doubts.setdefault(doubt.path, doubt.as_listed())
        return after, list(doubts.values())

    def _unread(self) -> dict[str, str]:
        unread = self._sources.objects.not_listed()
        for rows in self._folder.read_all(UNREAD_TABLE, UNREAD.arrow.names):
            unread.update(zip(rows.column("store").to_pylist(), rows.column("reason").to_pylist(), strict=True))
        return unread

    def _copies(self, objects: DataFrame) -> DataFrame:
        """Group the objects by copy, with whether a managed ledger names it."""
        named = (
            read_tables(self._spark, self._folder, COPY_TABLES, COPIES)
            .select("uuid")
            .distinct()
            .withColumn("referenced", F.lit(True))
        )
        return (
            objects.where("uuid is not null")
            .groupBy("store", "uuid", "ledger_id")
            .agg(
                F.min("key").alias("key"),
                F.count_if(F.col("upload_id").isNull()).alias("objects"),
                F.count_if(F.col("upload_id").isNotNull()).alias("uploads"),
                F.sum("length").alias("length"),
                F.max("modified_ms").alias("modified_ms"),
            )
            .join(named, "uuid", "left")
            .withColumn("referenced", F.coalesce("referenced", F.lit(False)))
        )

    def _unnamed(self, copies: DataFrame) -> DataFrame:
        """Add the state of each copy's ledger in BookKeeper and the metadata roots."""
        ledgers = read_table(self._spark, self._folder, LEDGERS_STAGE, LEDGERS.only("ledger_id", "kind", "holder"))
        owners = ledgers.dropDuplicates(["ledger_id"])
        named = self._references("ledger_id").where("ledger_id is not null").distinct()
        return (
            copies.join(owners, "ledger_id", "left")
            .join(named.withColumn("ledger_named", F.lit(True)), "ledger_id", "left")
            .withColumn("ledger_named", F.coalesce("ledger_named", F.lit(False)))
        )

    def _classified(self, unnamed: DataFrame, knowledge: Knowledge) -> Iterator[tuple[FoundCopy, ClassifiedCopy]]:
        doubt = doubt_about_copies(knowledge.doubts)
        to_look_at = []
        for row in unnamed.select(*FoundCopy._fields).toLocalIterator():
            copy = FoundCopy(*row)._replace(uuid=UUID(row["uuid"]))
            found = class_by_name(copy, knowledge, doubt)
            if found is None:
                to_look_at.append(copy)
            else:
                yield copy, found
        looked = list(self._look(to_look_at))
        owners = {owner for copy, reading in looked if (owner := owner_named(copy, reading))}
        knowing = replace(knowledge, existing=self._existing(owners), first_listed=self._first_listed(owners))
        yield from kept_in_shared_stores([(copy, class_by_owner(copy, reading, knowing)) for copy, reading in looked])

    def _look(self, copies: Iterable[FoundCopy]) -> Iterator[tuple[FoundCopy, CopyReading]]:
        rest = iter(copies)
        while batch := list(itertools.islice(rest, _LOOKED_AT_ONCE)):
            asked = [self._as_copy(copy, self._locations[copy.store]) for copy in batch]
            yield from zip(batch, self._sources.cluster.offload_stores.read_many(asked), strict=True)

    @staticmethod
    def _as_copy(copy: FoundCopy, location: StoreLocation) -> OffloadedCopy:
        if copy.uuid is None or copy.ledger_id is None:
            raise ValueError(f"{copy.key} is not a copy that can be looked at")
        # On a file system the folder names the owner.
        return OffloadedCopy(copy.ledger_id, copy.key.rpartition("/")[0], copy.uuid, location)

    def _references(self, *columns: str) -> DataFrame:
        return read_tables(self._spark, self._folder, (REFERENCES_STAGE, LATE_STAGE), REFERENCES.only(*columns))

    def _existing(self, owners: set[str]) -> frozenset[str]:
        """Return the managed ledgers that exist, of these."""
        if not owners:
            return frozenset()
        known = self._references("managed_ledger").withColumnRenamed("managed_ledger", "name")
        asked = self._spark.createDataFrame([(owner,) for owner in sorted(owners)], "name STRING")
        return frozenset(row["name"] for row in asked.join(known, "name", "left_semi").toLocalIterator())

    def _first_listed(self, owners: set[str]) -> dict[str, int]:
        """Return the smallest id that each of these managed ledgers lists, over all roots."""
        if not owners:
            return {}
        listed = self._references("ledger_id", "place", "holder").where(F.col("place").isin(*TOPIC_PLACES))
        asked = self._spark.createDataFrame([(owner,) for owner in sorted(owners)], "holder STRING")
        first = F.min(F.coalesce("ledger_id", F.lit(NAMES_NOTHING))).alias("first")
        rows = listed.join(asked, "holder", "left_semi").groupBy("holder").agg(first)
        return {row["holder"]: row["first"] for row in rows.toLocalIterator()}

    def _candidate(self, copy: FoundCopy, found: ClassifiedCopy) -> CopyCandidate:
        if copy.uuid is None or copy.ledger_id is None or found.owner is None or found.cause is None:
            raise ValueError(f"{copy.key} is no orphan")
        return CopyCandidate(
            0,
            *self._locations[copy.store],
            copy.uuid,
            copy.ledger_id,
            found.owner,
            found.cause.value,
            copy.objects,
            copy.uploads,
            copy.length,
            copy.modified_ms,
            0,
        )


class _Tally:
    """The objects of each class and store, and the copies of each store."""

    def __init__(self) -> None:
        self.copies: defaultdict[str, int] = defaultdict(int)
        self._objects: defaultdict[tuple[CopyClass, str], list[int]] = defaultdict(lambda: [0, 0])
        self._orphans: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])

    def add_objects(self, copy_class: CopyClass, store: str, number: int, length: int) -> None:
        tally = self._objects[copy_class, store]
        tally[0] += number
        tally[1] += length

    def add(self, copy: FoundCopy, found: ClassifiedCopy) -> None:
        self.add_objects(found.copy_class, copy.store, copy.objects + copy.uploads, copy.length)
        self.copies[copy.store] += 1
        if found.copy_class is CopyClass.ORPHAN:
            self._orphans[copy.store][0] += 1
            self._orphans[copy.store][1] += copy.length

    def counts(self) -> list[ClassCount]:
        return [ClassCount(kind.value, store, *tally) for (kind, store), tally in self._objects.items()]

    def stores(self) -> tuple[StoreCopies, ...]:
        return tuple(StoreCopies(store, number, *self._orphans[store]) for store, number in sorted(self.copies.items()))


def _not_scanned(unread: dict[str, str]) -> tuple[Doubt, ...]:
    return tuple(Doubt(store, _SETTING, f"not scanned: {reason}") for store, reason in sorted(unread.items()))
