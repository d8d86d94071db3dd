"""The plan of a scan whose pieces are all read: joined, classified, summed up and written.

Ledgers that places name and that were not listed are looked up directly, and so are the places that still name them.
The pieces are those of the references, so that all ledgers of a node are in one piece and the node is read once more,
however many it names: after a loss of BookKeeper's metadata that is every ledger of a topic.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.storagelevel import StorageLevel

from bookwarden.clusters.pulsar.references.pieces import LOGS, ReferencePiece
from bookwarden.config import Settings
from bookwarden.errors import FormatError, NotFoundError, StoreError
from bookwarden.exit_codes import MISSING_FOUND, ORPHANS_FOUND
from bookwarden.ledgers.listing import ListedReference
from bookwarden.ledgers.metadata import AbsentLedger
from bookwarden.ledgers.references import Doubt
from bookwarden.orphans.classes import LedgerClass
from bookwarden.orphans.classify import Knowledge
from bookwarden.orphans.copy_plan import numbered
from bookwarden.orphans.plan import EmptiedScope, PlanCounts, PlanManifest, new_id
from bookwarden.orphans.summary import (
    AGE_BUCKETS,
    NO_NAMESPACE,
    OTHER_KIND,
    SHOWN_MISSING,
    Cell,
    GrowthPoint,
    MissingLedger,
    ScanFindings,
    Summary,
    summarize,
)
from bookwarden.pipelines.columns.tables import DOUBTS, MISSING, ODD_NAMES, REFERENCES, StoredDoubt, doubt_of
from bookwarden.pipelines.plan_files import SUMMARY, PlanFiles, carry_over
from bookwarden.pipelines.scan.classes import CheckNodes, Classification, ClassifyPiece
from bookwarden.pipelines.scan.files import ScanFolder, Seal
from bookwarden.pipelines.scan.folder import ScanHeader, plans_of
from bookwarden.pipelines.scan.ids import ScanIds, compare_ids, is_absent
from bookwarden.pipelines.scan.join import LedgerJoin
from bookwarden.pipelines.scan.object_planning import ObjectPlanner, PlannedCopies
from bookwarden.pipelines.scan.reading import (
    BARE_TOPICS,
    DOUBT_TABLES,
    LATE_STAGE,
    LEDGERS_STAGE,
    NAMED,
    ODD_NAMES_TABLE,
    REFERENCES_STAGE,
    ScanInput,
    digest_of_seals,
    from_json,
)
from bookwarden.pipelines.scan.rows import read_table, read_tables
from bookwarden.pipelines.scan.stage import Progress, Stages, reported, spark_errors
from bookwarden.wiring.scan import ScanSources

logger = logging.getLogger(__name__)

_PLAN_STAGE = "plan"
_REFERENCE_STAGES = (REFERENCES_STAGE, LATE_STAGE)
# Each task of the classification holds all of them.
_MOST_DOUBTS = 100_000
MISSING_STAGE = "missing"
_STAGES = (REFERENCES_STAGE, LATE_STAGE)
_LOOKED_UP_AT_ONCE = 1_000


@dataclass(frozen=True)
class ScanResult:
    """The plan and the summary of a scan; ``notes`` are those of its header."""

    plan: PlanManifest
    summary: Summary
    notes: tuple[str, ...] = ()

    @property
    def orphans(self) -> int:
        """The number of ledgers that no node names."""
        return self.summary.total(LedgerClass.ORPHAN)[0]

    @property
    def left_behind(self) -> int:
        """The number of ledgers that brokers recorded as deleted and that still exist."""
        return self.summary.total(LedgerClass.LEFT_BEHIND)[0]

    @property
    def missing(self) -> int:
        """The number of ledgers that are named and gone."""
        return self.summary.missing_total

    @property
    def inside_list(self) -> int:
        """The number of ledgers with entries that their topics' lists have lost."""
        return self.summary.total(LedgerClass.INSIDE_LIST)[0]

    @property
    def exit_code(self) -> int:
        """The exit code, for schedulers; lost data outranks orphans."""
        if self.missing or self.inside_list:
            return MISSING_FOUND
        return ORPHANS_FOUND if self.orphans or self.left_behind or self.plan.copy_candidates else 0


class ScanPlanner:
    """Makes the plan of a scan whose pieces are all read."""

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        header: ScanHeader,
        folder: ScanFolder,
        seals: dict[str, list[Seal]],
        progress: Progress,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._header = header
        self._folder = folder
        self._seals = seals
        self._progress = progress

    def make(self, sources: ScanSources, source: ScanInput, cutoff_ms: int) -> ScanResult:
        """Join, classify, and write the plan."""
        stages = Stages(self._spark, self._folder, self._progress)
        with spark_errors("joining ledgers and references"):
            ids = compare_ids(self._folder, self._seals)
            join = LedgerJoin(stages, self._folder, ids, now_ms=self._header.begun_ms, cutoff_ms=cutoff_ms)
            known = self._knowledge(sources, join, cutoff_ms)
            task = ClassifyPiece(self._spark.sparkContext.broadcast(known), self._header.begun_ms, CheckNodes(source))
            found = Classification(self._spark, stages, self._folder, join.left_over, task)
            missing = self._missing(stages, ids, source)
            try:
                copies = ObjectPlanner(self._spark, self._folder, sources).make(known)
                doubts = [*known.doubts, *found.damaged(), *self._odd_names(), *copies.doubts]
                lost = () if missing is None else _Missing(missing.where("not outdated"))
                outdated = () if missing is None else _Missing(missing.where("outdated"))
                findings = ScanFindings(
                    lost, found.foreign(), doubts, copies.objects, sources.fuzzy, found.inside_lists(), outdated
                )
                return self._write(found, findings, copies, cutoff_ms, self._emptied(found, ids, sources))
            finally:
                if missing is not None:
                    missing.unpersist()

    def _knowledge(self, sources: ScanSources, join: LedgerJoin, cutoff_ms: int) -> Knowledge:
        known = Knowledge(
            cutoff_ms=cutoff_ms,
            tenants=sources.tenants(),
            namespaces=sources.namespaces() | self._namespaces_read(lambda seal: seal.rows),
            existing=join.existing(),
            doubts=tuple(self._doubts()),
            first_listed=join.first_listed(),
            # After the references: what leaves these before is in the trash by now.
            trashed=sources.trashed(),
        )
        return replace(known, alive=join.alive(known), holey=join.holey())

    def _write(
        self,
        found: Classification,
        findings: ScanFindings,
        copies: PlannedCopies,
        cutoff_ms: int,
        emptied: tuple[EmptiedScope, ...],
    ) -> ScanResult:
        header, plans = self._header, plans_of(self._settings)
        created_ms = int(time.time() * 1000)
        before = plans.newest(header.identity)
        summary = summarize(
            [*found.cells, *self._odd_cells()],
            findings,
            plan_id=new_id(created_ms),
            scan_id=header.scan_id,
            created_ms=created_ms,
            cutoff_ms=cutoff_ms,
            cluster=header.identity.instance_id,
            earlier=_growth(plans, before),
        )
        manifest = PlanManifest(
            plan_id=summary.plan_id,
            scan_id=header.scan_id,
            tool_version=version("bookwarden"),
            begun_ms=header.begun_ms if header.snapshot_ms is None else header.snapshot_ms,
            created_ms=created_ms,
            cutoff_ms=cutoff_ms,
            cluster=header.identity,
            counts=PlanCounts(
                ledgers=summary.ledgers,
                logical_bytes=summary.logical_bytes,
                references=self._noted(NAMED),
                candidates=0,
                candidate_bytes=0,
                missing=summary.missing_total,
                doubts=summary.doubts_total,
            ),
            candidates=(),
            emptied=emptied,
            copies=copies.stores,
            inputs={stage: digest_of_seals(seals) for stage, seals in self._seals.items()},
            settings=self._settings.orphans.model_dump(mode="json"),
        )
        total = sum(summary.total(one)[0] for one in (LedgerClass.ORPHAN, LedgerClass.LEFT_BEHIND))
        earlier = iter(()) if before is None else plans.candidate_tables(before)
        written = _Steps(self._progress, _PLAN_STAGE, total)
        with reported(written.tell):
            candidates = carry_over(written.counted(found.orphans()), earlier, created_ms)
            known_copies = () if before is None else plans.all_copies(before)
            orphaned = list(numbered(copies.candidates, known_copies, created_ms))
            plan = plans.write(manifest, candidates, {SUMMARY: summary.encode()}, orphaned)
        return ScanResult(plan, summary, tuple(header.notes))

    def _emptied(self, found: Classification, ids: ScanIds, sources: ScanSources) -> tuple[EmptiedScope, ...]:
        """List what exists and would be left without a ledger."""
        without = sources.namespaces() - self._namespaces_read(lambda seal: seal.notes[NAMED])
        # A topic keeps the ledgers that it names, unless there are none or they are gone.
        topics = found.emptied_topics() if len(ids.absent) or self._noted(BARE_TOPICS) else []
        return (*topics, *found.orphans_of(without))

    def _noted(self, note: str) -> int:
        return sum(seal.notes[note] for stage in _REFERENCE_STAGES for seal in self._seals[stage])

    def _namespaces_read(self, count: Callable[[Seal], int]) -> frozenset[str]:
        """List the namespaces in whose pieces of references something is counted."""
        found = set()
        for stage in _REFERENCE_STAGES:
            for piece, seal in zip(self._folder.pieces(stage) or [], self._seals[stage], strict=True):
                read = from_json(ReferencePiece, piece.get("piece", piece))
                if read.kind != LOGS and count(seal):
                    found.add(read.namespace)
        return frozenset(found)

    def _doubts(self) -> list[Doubt]:
        number = sum(
            seal.others[table]
            for stage, table in zip(_REFERENCE_STAGES, DOUBT_TABLES, strict=True)
            for seal in self._seals[stage]
        )
        if not number:
            return []
        rows = read_tables(self._spark, self._folder, DOUBT_TABLES, DOUBTS)
        if number > _MOST_DOUBTS:
            raise StoreError(
                f"{number:,} places in the metadata could not be read or parsed, such as {rows.head()!r}: with that"
                " many nothing is planned; look for what they have in common, then scan again"
            )
        return sorted((doubt_of(StoredDoubt(*row)) for row in rows.toLocalIterator()), key=lambda doubt: doubt[:3])

    def _odd_names(self) -> list[Doubt]:
        if not self._odd_count():
            return []
        rows = read_table(self._spark, self._folder, ODD_NAMES_TABLE, ODD_NAMES).orderBy("path").limit(SHOWN_MISSING)
        root = self._header.identity.bookkeeper_url
        return [Doubt(row["path"], root, "its name fits no layout of ledgers") for row in rows.toLocalIterator()]

    def _odd_cells(self) -> Iterator[Cell]:
        number = self._odd_count()
        if number:
            yield Cell(LedgerClass.UNPARSABLE.value, OTHER_KIND, NO_NAMESPACE, "", AGE_BUCKETS[0], number, 0)

    def _odd_count(self) -> int:
        return sum(seal.others[ODD_NAMES_TABLE] for seal in self._seals[LEDGERS_STAGE])

    def _missing(self, stages: Stages, ids: ScanIds, source: ScanInput) -> DataFrame | None:
        """Look up the ledgers that are named and were not listed; None if there are none.

        ``outdated`` are those that only shadow topics name, whose sources have let go of them.
        """
        if not len(ids.absent):
            return None
        pieces = pieces_with_references(self._seals)
        stages.run(MISSING_STAGE, lambda: pieces, LookUpMissing(source), restart=True)
        places = read_table(self._spark, self._folder, MISSING_STAGE, MISSING)
        shown = F.slice(F.array_sort(F.collect_set("place")), 1, 10).alias("places")
        missing = places.groupBy("ledger_id").agg(shown, F.bool_and("outdated").alias("outdated"))
        return missing.persist(StorageLevel.DISK_ONLY)


class _Missing(list[MissingLedger]):
    """The missing, or outdated, ledgers with the smallest ids; there may be more, and its length counts them all."""

    def __init__(self, missing: DataFrame) -> None:
        rows = missing.orderBy("ledger_id").limit(SHOWN_MISSING).collect()
        super().__init__(MissingLedger(row["ledger_id"], tuple(row["places"])) for row in rows)
        self._all = missing.count()

    def __len__(self) -> int:
        return self._all


class _Steps:
    """Progress of a stage that is not read in pieces."""

    def __init__(self, progress: Progress, stage: str, total: int) -> None:
        self._progress = progress
        self._stage = stage
        self._total = total
        self._done = 0
        self.tell()

    def tell(self) -> None:
        self._progress(self._stage, self._done, self._total)

    def counted(self, candidates: Iterator[pa.Table]) -> Iterator[pa.Table]:
        for table in candidates:
            yield table
            self._done += table.num_rows


def _growth(plans: PlanFiles, before: PlanManifest | None) -> tuple[GrowthPoint, ...]:
    if before is None:
        return ()
    try:
        return plans.summary(before).growth
    except (NotFoundError, FormatError) as error:
        # Of another version, as a rule. The charts of growth start over; that is no reason to lose a scan.
        logger.warning("the growth in plan %s is not taken over: %s", before.plan_id, error)
        return ()


def pieces_with_references(seals: Mapping[str, Sequence[Seal]]) -> list[Any]:
    """List the pieces, by stage and number, in which places name ledgers."""
    return [[stage, seal.number] for stage in _STAGES for seal in seals[stage] if seal.rows]


@dataclass(frozen=True)
class LookUpMissing:
    """Looks up the absent ledgers of a piece; writes the ones still missing and still named, by place."""

    source: ScanInput

    def __call__(self, folder: ScanFolder, number: int, piece: Any) -> None:
        stage, number_there = piece
        # Where a ledger may be has to be known as it is now.
        self.source.shared().cluster.bookkeeper.clusters.invalidate()
        references = absent_references(folder, stage, number_there)
        found = [row for some in _whole_nodes(references) for row in self._missing(some)]
        folder.write(MISSING_STAGE, number, MISSING.table(found), names=references.num_rows, digest="")

    def _missing(self, references: Sequence[ListedReference]) -> list[tuple[int, str, bool]]:
        sources = self.source.shared()
        ids = sorted({reference.ledger_id for reference in references if reference.ledger_id is not None})
        absent: set[int] = set()
        for at in range(0, len(ids), _LOOKED_UP_AT_ONCE):
            readings = sources.cluster.bookkeeper.catalog.read_many(ids[at : at + _LOOKED_UP_AT_ONCE])
            absent.update(reading.ledger_id for reading in readings if isinstance(reading, AbsentLedger))
        # A deletion removes the ledger's name first; that may have happened since it was read.
        named = sources.still_named([reference for reference in references if reference.ledger_id in absent])
        outdated = sources.outdated(named)
        return [
            (one.ledger_id, f"{one.place} {one.holder}, {one.path} in {one.root}", one in outdated)
            for one in named
            if one.ledger_id is not None
        ]


def absent_references(folder: ScanFolder, stage: str, number: int) -> pa.Table:
    """Return a piece's references to ledgers that should have been listed and were not, grouped by node."""
    rows = folder.read(stage, number, REFERENCES.arrow.names)
    rows = rows.filter(pc.and_(rows.column("ledger_id").is_valid(), pc.invert(rows.column("gone"))))
    rows = rows.filter(pa.array(is_absent(folder, rows.column("ledger_id").to_numpy())))
    return rows.sort_by([("root", "ascending"), ("path", "ascending")])


def _whole_nodes(references: pa.Table) -> Iterator[list[ListedReference]]:
    """Yield the references some at a time, all those of a node at once."""
    some: list[ListedReference] = []
    for batch in references.to_batches(max_chunksize=_LOOKED_UP_AT_ONCE):
        for row in map(ListedReference, *(column.to_pylist() for column in batch.columns)):
            if len(some) >= _LOOKED_UP_AT_ONCE and (row.root, row.path) != (some[-1].root, some[-1].path):
                yield some
                some = []
            some.append(row)
    if some:
        yield some
