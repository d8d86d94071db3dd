"""A whole scan of a ZooKeeper snapshot: what it reads as a whole, node by node, and side by side comes together."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

from benchmarks.population import managed_ledger_of, metadata_of
from benchmarks.zookeeper_files import create, node, record, write_log, write_snapshot
from pyspark.sql import SparkSession

from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.pulsar.metadata.paths import managed_ledger_path
from bookwarden.config import load_settings
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.orphans.classes import LedgerClass
from bookwarden.pipelines.scan.folder import plans_of
from bookwarden.pipelines.scan.operation import OrphanScan, read_first_pass
from bookwarden.pipelines.scan.reading import LEDGERS_STAGE, OBJECTS_STAGE, REFERENCES_STAGE

BEGUN = 0x10
TOPIC = "t/n/persistent/orders"
# In three directories, of which the last is one that a transaction changed.
# Trims take the oldest.
NAMED, ORPHANS, LATER = [20_010, 20_011, 30_000], [4, 5, 10_002, 20_001], 30_002


def written(folder: Path) -> Path:
    """Write a snapshot of a topic and its ledgers, and a log with one more, which is of now and of a new topic."""
    value = metadata_of(ManagedLedgerHolder(TOPIC))
    leaves = {
        **{ledger_path("/ledgers", ledger_id): value for ledger_id in [*NAMED, *ORPHANS]},
        managed_ledger_path(TOPIC): managed_ledger_of(NAMED),
    }
    paths = {path[:end]: b"" for path in leaves for end, sign in enumerate(path) if sign == "/"}
    file = folder / f"snapshot.{BEGUN:x}"
    nodes = [node(path, leaf) for path, leaf in sorted({**paths, **leaves}.items(), key=lambda one: one[0].split("/"))]
    write_snapshot(file, nodes, last_zxid=BEGUN, digest_zxid=BEGUN)
    later = create(ledger_path("/ledgers", LATER), metadata_of(ManagedLedgerHolder("t/n/persistent/new")))
    write_log(folder / f"log.{BEGUN + 1:x}", [record(BEGUN + 1, later, time_ms=int(time.time() * 1000))])
    return file


def test_a_snapshot_gives_a_plan_of_what_nobody_names_in_it(spark: SparkSession, tmp_path: Path) -> None:
    settings = load_settings(
        overrides={"metadata_store.urls": "['zk:127.0.0.1:1']", "orphans.folder": str(tmp_path / "orphans")}
    )
    told: list[tuple[str, int, int]] = []
    scan = OrphanScan(spark, settings, lambda *progress: told.append(progress))
    found = scan.run(scan.begin(f"zk-snapshot:{written(tmp_path)}?work={tmp_path / 'work'}"))
    assert [row.ledger_id for row in plans_of(settings).all_candidates(found.plan)] == ORPHANS
    assert found.summary.total(LedgerClass.REFERENCED)[0] == len(NAMED)
    assert found.summary.total(LedgerClass.TOO_YOUNG)[0] == 1
    assert found.summary.ledgers == len(NAMED) + len(ORPHANS) + 1
    assert found.plan.counts.references == len(NAMED)
    of_plan = [progress for progress in told if progress[0] == "plan"]
    assert (of_plan[0], of_plan[-1]) == (("plan", 0, len(ORPHANS)), ("plan", len(ORPHANS), len(ORPHANS)))


class Recording:
    """Stages that read nothing; ``beside`` makes that of the ledgers wait for the references."""

    def __init__(self, *, beside: bool) -> None:
        self.ended: list[str] = []
        self._beside = beside
        self._references = Event()

    def run(self, stage: str, *_: object) -> list[Any]:
        if stage == REFERENCES_STAGE:
            self._references.set()
        elif self._beside:
            assert self._references.wait(60)
        self.ended.append(stage)
        return [stage]


def test_references_are_read_behind_the_ledgers_unless_they_are_of_a_file() -> None:
    order = [LEDGERS_STAGE, OBJECTS_STAGE, REFERENCES_STAGE]
    context, source = SimpleNamespace(), SimpleNamespace()
    stages: Any = Recording(beside=False)
    seals = read_first_pass(stages, source, context, side_by_side=False)  # type: ignore[arg-type]  # nothing is read
    assert stages.ended == order
    assert seals == {stage: [stage] for stage in order}
    stages = Recording(beside=True)
    assert read_first_pass(stages, source, context, side_by_side=True) == seals  # type: ignore[arg-type]  # as above
