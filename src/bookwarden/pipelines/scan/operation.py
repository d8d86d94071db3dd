"""The orphan scan: every ledger listed, then every reference read, joined, and a plan made of the unnamed ledgers.

The order makes it safe: a reference read after the ledgers were listed can only be one too many. The listing is
repeated at the end, by names only, and must have nothing that the first one should have had. A file does not change,
so there both are read side by side.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from pyspark.sql import SparkSession

from bookwarden.clusters.bookkeeper.listing import ListingPiece
from bookwarden.clusters.pulsar.references.pieces import ReferencePiece
from bookwarden.clusters.pulsar.rest.brokers import broker_clock
from bookwarden.config import Settings
from bookwarden.errors import RefusedError
from bookwarden.orphans.guards import cutoff_of
from bookwarden.orphans.plan import check_id, new_id
from bookwarden.pipelines.scan.files import ScanFolder, Seal
from bookwarden.pipelines.scan.folder import TABLES, ScanHeader, folder_errors, header_of, scan_folder
from bookwarden.pipelines.scan.lock import alone
from bookwarden.pipelines.scan.planning import ScanPlanner, ScanResult
from bookwarden.pipelines.scan.reading import (
    CHANGES_STAGE,
    COPY_TABLES,
    DOUBT_TABLES,
    HOLDER_TABLES,
    LATE_STAGE,
    LEDGERS_STAGE,
    NEWEST,
    OBJECTS_STAGE,
    ODD_NAMES_TABLE,
    REFERENCES_STAGE,
    UNREAD_TABLE,
    CompareListings,
    PieceT,
    ReadLateReferences,
    ReadLedgers,
    ReadObjects,
    ReadReferences,
    ScanInput,
    as_json,
    from_json,
)
from bookwarden.pipelines.scan.stage import Progress, Stages
from bookwarden.wiring.scan import ScanSources, guard_limits_of


class OrphanScan:
    """Runs one scan on a Spark session; ``progress`` is called as it goes on."""

    def __init__(self, spark: SparkSession, settings: Settings, progress: Progress = lambda *_: None) -> None:
        self._spark = spark
        self._settings = settings
        self._progress = progress
        self._limits = guard_limits_of(settings.orphans)
        self._tasks = spark.sparkContext.defaultParallelism

    def begin(self, snapshot: str | None = None) -> str:
        """Begin a scan of the live stores, or of a snapshot; return its id. Nothing is read yet.

        Raises RefusedError where clocks differ, or a metadata root that the settings do not name shares the BookKeeper,
        and ConfigError where roots and BookKeeper do not belong together.
        """
        with folder_errors(self._settings), ScanInput(self._settings, snapshot, 1).open() as sources:
            notes = sources.plan_cluster.prove_roots()
            begun_ms = int(time.time() * 1000)
            header = ScanHeader(
                tables=TABLES,
                scan_id=new_id(begun_ms),
                begun_ms=begun_ms,
                tool_version=version("bookwarden"),
                snapshot=snapshot,
                snapshot_ms=sources.snapshot_ms,
                # A scan of a snapshot asks no server.
                clocks={} if snapshot else {"the broker": broker_clock(sources.cluster.admin)},
                cluster=asdict(sources.plan_cluster.identity()),
                settings=self._settings.orphans.model_dump(mode="json"),
                notes=notes,
            )
            # Differing clocks, and a snapshot of the future, are reported before anything is read.
            self._cutoff(header)
            scan_folder(self._settings, header.scan_id).begin(asdict(header))
        return header.scan_id

    def run(self, scan_id: str) -> ScanResult:
        """Read the unread pieces of a scan that was begun, and make its plan.

        Raises RefusedError where no plan may be made, or another process works on the scan; TruncatedListingError,
        StoreError and SparkError where it cannot be read. It goes on where it was when it is run again.
        """
        folder = scan_folder(self._settings, check_id(scan_id))
        with folder_errors(self._settings):
            header = header_of(folder)
            with alone(folder.folder), ScanInput(self._settings, header.snapshot, 1).open() as sources:
                self._check_resumed(header, sources)
                return self._run(header, folder, sources)

    def _run(self, header: ScanHeader, folder: ScanFolder, sources: ScanSources) -> ScanResult:
        source = ScanInput(self._settings, header.snapshot, self._tasks)
        stages = Stages(self._spark, folder, self._progress)
        # A second reading of a file, whose every byte was checked, would be the same.
        is_file = header.snapshot is not None
        seals = read_first_pass(stages, source, sources, side_by_side=is_file)
        # With a clock behind ours new ledgers look older than they are.
        begun_ms = header.begun_ms - self._limits.max_clock_skew_ms
        seals |= read_second_pass(stages, source, sources, begun_ms, is_file=is_file)
        # A ledger in a cluster that was registered meanwhile would seem to be missing.
        self._check_resumed(header, sources)
        return ScanPlanner(self._spark, self._settings, header, folder, seals, self._progress).make(
            sources, source, self._cutoff(header, seals[LEDGERS_STAGE])
        )

    def _cutoff(self, header: ScanHeader, ledgers: Sequence[Seal] = ()) -> int:
        ahead = [seal.notes[NEWEST] for seal in ledgers if seal.rows]
        return cutoff_of(
            header.begun_ms,
            header.clocks,
            self._limits,
            snapshot_ms=header.snapshot_ms,
            newest_ms=header.begun_ms + max(ahead) if ahead else None,
        )

    def _check_resumed(self, header: ScanHeader, sources: ScanSources) -> None:
        found = sources.plan_cluster.identity()
        if found != header.identity:
            raise RefusedError(
                f"scan {header.scan_id} was begun on the cluster {header.identity}, and the settings name {found}: "
                "go on with the settings of that cluster"
            )
        if sources.snapshot_ms != header.snapshot_ms:
            raise RefusedError(
                f"scan {header.scan_id} was begun on {header.snapshot} when the latest change in it was of "
                f"{header.snapshot_ms} ms, and it is {sources.snapshot_ms} ms now: these are other files; "
                "begin a new scan"
            )


def read_first_pass(
    stages: Stages, source: ScanInput, sources: ScanSources, *, side_by_side: bool, with_objects: bool = True
) -> dict[str, list[Seal]]:
    """Read ledgers, objects and references in this order; a file, where the order does not matter, side by side."""
    seals = dict[str, list[Seal]]()

    def read_references() -> list[Seal]:
        return stages.run(
            REFERENCES_STAGE,
            lambda: [as_json(piece) for piece in sources.cluster.references.pieces.pieces()],
            ReadReferences(source),
            [COPY_TABLES[0], DOUBT_TABLES[0], HOLDER_TABLES[0]],
        )

    with ThreadPoolExecutor(1, thread_name_prefix="references") as pool:
        in_background = pool.submit(read_references) if side_by_side else None
        seals[LEDGERS_STAGE] = stages.run(
            LEDGERS_STAGE,
            lambda: [as_json(piece) for piece in sources.listing.pieces()],
            ReadLedgers(source),
            [ODD_NAMES_TABLE],
        )
        if with_objects:
            # Before the references, as the ledgers are: a copy is named before its first byte is written.
            seals[OBJECTS_STAGE] = stages.run(
                OBJECTS_STAGE,
                lambda: [as_json(piece) for piece in sources.objects.pieces()],
                ReadObjects(source),
                [UNREAD_TABLE],
            )
        seals[REFERENCES_STAGE] = read_references() if in_background is None else in_background.result()
    return seals


def read_second_pass(
    stages: Stages, source: ScanInput, sources: ScanSources, begun_ms: int, *, is_file: bool
) -> dict[str, list[Seal]]:
    """List references and ledgers again, by names only and side by side; a file is not listed again."""
    folder = stages.folder

    def read_references() -> list[Seal]:
        return stages.run(
            LATE_STAGE,
            lambda: (
                []
                if is_file
                else _again(folder, REFERENCES_STAGE, ReferencePiece, sources.cluster.references.pieces.pieces)
            ),
            ReadLateReferences(source, begun_ms),
            [COPY_TABLES[1], DOUBT_TABLES[1], HOLDER_TABLES[1]],
        )

    with ThreadPoolExecutor(1, thread_name_prefix="references") as pool:
        references = pool.submit(read_references)
        changes = stages.run(
            CHANGES_STAGE,
            lambda: [] if is_file else _again(folder, LEDGERS_STAGE, ListingPiece, sources.listing.pieces),
            CompareListings(source, begun_ms),
        )
        return {LATE_STAGE: references.result(), CHANGES_STAGE: changes}


def _again(
    folder: ScanFolder, stage: str, kind: type[PieceT], pieces: Callable[[Sequence[PieceT]], Sequence[PieceT]]
) -> list[dict[str, Any]]:
    """List the pieces of a stage for the second pass, with the ones that are new since the first."""
    first = folder.pieces(stage) or []
    known = [from_json(kind, piece) for piece in first]
    again = [{"piece": piece, "first": number} for number, piece in enumerate(first)]
    return again + [{"piece": as_json(piece), "first": None} for piece in pieces(known)]
