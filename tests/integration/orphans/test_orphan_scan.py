"""The orphan scan over a real ZooKeeper and a real Pulsar: what it finds, and when it makes no plan."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from bookwarden.clusters.bookkeeper.listing import digest_of
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.brokers import broker_clock
from bookwarden.errors import RefusedError, TruncatedListingError
from bookwarden.ledgers.kinds import BucketHolder, CompactedHolder, CursorHolder, ManagedLedgerHolder, SchemaHolder
from bookwarden.ledgers.received import decoded
from bookwarden.ledgers.references import ReferenceIndex
from bookwarden.metastore.urls import open_store
from bookwarden.orphans.classes import LedgerClass
from bookwarden.orphans.progress import ApplyProgress
from bookwarden.pipelines.scan.driver import ScanPaused, run_scan
from bookwarden.pipelines.scan.folder import plans_of, scan_folder, scan_ids
from bookwarden.pipelines.scan.operation import OrphanScan
from bookwarden.wire.pb import managed_ledger_pb2
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.scan import OrphanApply
from bookwarden_dev.devcluster import DevCluster
from servers.deletion_site import DeletionSite
from servers.lone_zookeeper import LoneZooKeeper
from servers.population import Population
from servers.pulsar_topics import TopicUnderTest
from servers.scanned_site import ScannedSite, broker_telling_the_time
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(900)]

ORDERS = "t/n/persistent/orders"


@pytest.fixture
def site(quiet_zookeeper: LoneZooKeeper, tmp_path: Path) -> Iterator[ScannedSite]:
    # A clock that is ahead, and tells whole seconds: ledgers of just now are older than the cutoff all the same.
    with (
        broker_telling_the_time(60) as admin_url,
        closing(ScannedSite(quiet_zookeeper.hosts, f"/s-{uuid4().hex}", admin_url, tmp_path / "orphans")) as made,
    ):
        yield made


def fill_with_what_is_named(site: ScannedSite) -> None:
    """Make one ledger, or more, of each kind, that its holder names."""
    site.topic(ORDERS, [1, 2, 3])
    for ledger_id, holder in (
        (4, CursorHolder(ORDERS, "billing")),
        (5, CompactedHolder(ORDERS)),
        (6, BucketHolder(ORDERS, "delayed")),
        (7, SchemaHolder("t/n/orders")),
    ):
        site.population.ledger(ledger_id, holder)
        site.population.names(holder, [ledger_id])


def test_a_scan_plans_what_nobody_names_and_nothing_else(spark: SparkSession, site: ScannedSite) -> None:
    fill_with_what_is_named(site)
    long = site.topic("t/n/persistent/long", [2**40 + 1])
    orphans = long, CursorHolder(long.name, "gone"), SchemaHolder("t/n/gone")
    for ledger_id, holder in zip((2**40, 102, 103), orphans, strict=True):
        site.population.ledger(ledger_id, holder)
    site.ledgers(ManagedLedgerHolder("stranger/n/persistent/x"), [200])
    # What no trim can have left: with entries, and above all that its topic lists; and of one that lists none.
    site.ledgers(ManagedLedgerHolder(ORDERS), [700])
    site.ledgers(site.topic("t/n/persistent/bare", []), [701])
    site.topic("t/n/persistent/lost", [300], existing=False)
    # A broker deleted 800, which was empty, when it loaded the source; the shadow's node still names it.
    site.topic("t/n/persistent/source", [801])
    shadow = managed_ledger_pb2.ManagedLedgerInfo()
    shadow.properties.add(key="PULSAR.SHADOW_SOURCE", value="persistent://t/n/source")
    for ledger_id in (800, 801):
        shadow.ledgerInfo.add(ledgerId=ledger_id)
    site.store.create("/managed-ledgers/t/n/persistent/shadow", shadow.SerializeToString())
    site.store.create("/ledgers/00/0000/strange", b"")
    # One namespace that we may not read, of which a ledger is not named as far as we see.
    with closing(open_store(site.url, digest=("another", "secret"), acl="creator")) as another:
        another.create("/managed-ledgers/t/closed", b"", make_parents=True)
    site.ledgers(ManagedLedgerHolder("t/closed/persistent/y"), [400])
    site.ledgers(ManagedLedgerHolder(ORDERS), [500])
    told: list[str] = []

    def meanwhile(stage: str, done: int, total: int) -> None:
        if stage not in told:
            told.append(stage)
            if stage == "references":
                # Made behind the listing, named before or behind the reading of references.
                site.topic("t/n/persistent/new", [600])
                site.remove(500)
            if stage == "late_references":
                site.topic("t/n/persistent/later", [601])
                site.topic("t/fresh/persistent/later", [602])

    result = site.scan(spark, meanwhile)
    assert site.candidates(result) == {
        102: "subscription deleted",
        103: "schema deleted",
        2**40: "trimmed, never deleted",
    }
    # The two listings of the second pass are made side by side.
    told[3:5] = sorted(told[3:5])
    assert told == [
        "ledgers",
        "objects",
        "references",
        "changes",
        "late_references",
        "join",
        "classes",
        "missing",
        "plan",
    ]
    summary = result.summary
    assert [(one.ledger_id, len(one.places)) for one in summary.missing] == [(300, 1)]
    assert [(one.ledger_id, len(one.places)) for one in summary.outdated] == [(800, 1)]
    assert {one.ledger_ids for one in summary.foreign} == {(200,)}
    assert summary.total(LedgerClass.UNKNOWN_REFERENCES)[0] == 1
    assert summary.total(LedgerClass.UNPARSABLE)[0] == 1
    assert [(one.ledger_id, one.topic) for one in summary.inside_lists] == [(700, ORDERS), (701, "t/n/persistent/bare")]
    assert summary.total(LedgerClass.INSIDE_LIST) == (2, 2_000)
    assert summary.total(LedgerClass.REFERENCED)[0] == 9
    assert {"/managed-ledgers/t/closed", "/ledgers/00/0000/strange"} <= {doubt.path for doubt in summary.doubts}
    assert (result.orphans, result.missing, result.exit_code) == (3, 1, 21)
    assert (result.plan.cluster.instance_id, result.plan.cluster.roots) == ("0f1e-2d3c", (site.url,))
    # What it read is a saved listing, of which another plan can be made, whatever became of the store meanwhile.
    site.remove(102)
    again = OrphanScan(spark, site.settings).run(result.plan.scan_id)
    assert site.candidates(again).keys() == site.candidates(result).keys()
    assert again.plan.begun_ms == result.plan.begun_ms
    assert [point.plan_id for point in again.summary.growth] == [result.plan.plan_id, again.plan.plan_id]
    seen = {one.first_seen_ms for one in plans_of(site.settings).all_candidates(again.plan)}
    assert seen == {result.plan.created_ms}


def test_a_part_of_a_listing_makes_no_plan(spark: SparkSession, site: ScannedSite) -> None:
    ids = list(range(1, 31))
    site.topic(ORDERS, ids)
    told: list[str] = []

    def cut_off(stage: str, done: int, total: int) -> None:
        """Make the first listing what a server gives that leaves out the oldest ledger."""
        if stage == "references" and not told:
            told.append(stage)
            rows = files.read("ledgers", 0).slice(1)
            assert rows.column("ledger_id").to_pylist() == ids[1:]
            notes = {"newest_ahead_ms": 0}
            files.write("ledgers", 0, rows, names=len(ids) - 1, digest=digest_of(ids[1:]), notes=notes)

    scan = OrphanScan(spark, site.settings, cut_off)
    scan_id = scan.begin()
    files = scan_folder(site.settings, scan_id)
    with pytest.raises(TruncatedListingError, match="lacks 1 ledgers that were there before it, such as 1:"):
        scan.run(scan_id)
    assert site.plan_ids() == []


def test_without_any_reference_and_with_clocks_that_differ_there_is_no_plan(
    spark: SparkSession, site: ScannedSite
) -> None:
    site.ledgers(ManagedLedgerHolder(ORDERS), [1, 2])
    with pytest.raises(RefusedError, match="no reference was found"):
        site.scan(spark)
    site.overrides["orphans.max_clock_skew_seconds"] = "30"
    with pytest.raises(RefusedError, match="clock"):
        site.scan(spark)
    assert site.plan_ids() == []


def start(site: ScannedSite) -> subprocess.Popen[str]:
    """Start the command as an operator does, so slow that it is met in the middle."""
    options = {**site.overrides, "spark.master": "local[2]", "orphans.max_reads_per_second": "8"}
    settings = [word for name, value in options.items() for word in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "bookwarden.cli", *settings, "orphans", "scan"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.usefixtures("spark")
def test_a_scan_that_is_paused_by_a_signal_goes_on_where_it_was(site: ScannedSite) -> None:
    # As below; so slow that it is met in the middle.
    ids = [number * 1_000_000 for number in range(1, 41)]
    site.topic(ORDERS, ids)
    site.ledgers(CursorHolder(ORDERS, "gone"), [7])
    site.overrides["orphans.max_reads_per_second"] = "8"

    def operate() -> str:
        try:
            (scan_id,) = eventually(lambda: scan_ids(site.settings), 180)
            eventually(lambda: len(scan_folder(site.settings, scan_id).finished("ledgers")) >= 2, 180)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
        return scan_id

    with ThreadPoolExecutor(1) as pool:
        operator = pool.submit(operate)
        with pytest.raises(ScanPaused, match="bookwarden orphans scan --resume") as paused:
            run_scan(site.settings, local=True)
        scan_id = operator.result()
    assert str(paused.value).endswith(scan_id)
    finished = written(site, scan_id)
    assert len(finished) < len(scan_folder(site.settings, scan_id).pieces("ledgers") or [])
    del site.overrides["orphans.max_reads_per_second"]
    result = run_scan(site.settings, resume=scan_id, local=True)
    assert (result.orphans, result.missing) == (1, 0)
    assert {name: at for name, at in written(site, scan_id).items() if name in finished} == finished


def test_a_scan_that_is_killed_goes_on_where_it_was(spark: SparkSession, site: ScannedSite) -> None:
    # Each directory of a hundred millions has one ledger; a piece has four directories.
    ids = [number * 1_000_000 for number in range(1, 41)]
    site.topic(ORDERS, ids)
    site.ledgers(CursorHolder(ORDERS, "gone"), [7])
    process = start(site)
    (scan_id,) = eventually(lambda: scan_ids(site.settings), 180)
    files = scan_folder(site.settings, scan_id)
    eventually(lambda: len(files.finished("ledgers")) >= 2, 180)
    with pytest.raises(RefusedError, match="another process"):
        OrphanScan(spark, site.settings).run(scan_id)
    process.kill()
    process.communicate(timeout=180)
    finished = written(site, scan_id)
    assert len(finished) < len(files.pieces("ledgers") or [])
    result = OrphanScan(spark, site.settings).run(scan_id)
    assert site.candidates(result).keys() == {7}
    assert result.summary.total(LedgerClass.REFERENCED)[0] == len(ids)
    assert {name: at for name, at in written(site, scan_id).items() if name in finished} == finished


def written(site: ScannedSite, scan_id: str) -> dict[str, int]:
    """Say when each piece of the listing was written."""
    pieces = Path(site.folder, "scans", scan_id, "ledgers").glob("piece-*.parquet")
    return {piece.name: piece.stat().st_mtime_ns for piece in pieces}


def test_on_a_real_pulsar_an_orphan_is_planned_and_marked_and_what_brokers_use_is_not(
    spark: SparkSession, pulsar_cluster: DevCluster, namespace: str, tmp_path: Path
) -> None:
    cluster = pulsar_cluster
    overrides = {
        "orphans.folder": str(tmp_path / "orphans"),
        "orphans.min_age_days": "0",
        "orphans.longest_compaction_hours": "0",
        "orphans.seen_apart_hours": "0",
        "orphans.max_share": "1",
    }
    site = DeletionSite.of(cluster, namespace, tmp_path, overrides)
    site.create_topics()
    topic = TopicUnderTest(cluster.connection(), namespace, "orders", 0)
    topic.send([b"%d" % number for number in range(50)], batching_enabled=False)
    settings = site.settings
    orphan = 1_300_000_000 + uuid4().int % 100_000_000
    with Cluster(settings) as opened:
        path = Population(opened.store).ledger(orphan, ManagedLedgerHolder(f"{namespace}/persistent/gone"))
        made = opened.store.get(path)
    assert made is not None
    with closing(PulsarAdmin(cluster.connection())) as admin:
        # Its clock is told in whole seconds.
        eventually(lambda: broker_clock(admin) > made.created_ms and time.time() * 1000 > made.created_ms)
    scan = OrphanScan(spark, settings)
    result = scan.run(scan.begin())
    plans = plans_of(settings)
    candidates = {one.ledger_id for one in plans.all_candidates(result.plan)}
    assert orphan in candidates
    index = ReferenceIndex()
    with Cluster(settings) as opened:
        opened.references.pieces.read_into(index)
    assert [ledger_id for ledger_id in candidates if index.who_names(ledger_id)] == []
    assert result.summary.total(LedgerClass.REFERENCED)[0] >= len(topic.positions().ledgers)
    allowed = [one.name for one in result.plan.emptied]
    with Cluster(settings) as opened:
        context = OrphanApply(opened, plans)
        assert context.ledgers.run(result.plan.plan_id, allow_emptied=allowed).marked == len(candidates)
        applied = context.ledgers.run(result.plan.plan_id, execute=True, allow_emptied=allowed)
    assert (applied.marked, applied.done) == (len(candidates), True)
    with Cluster(settings) as opened:
        topics = opened.deletion_topics
        marks = [decoded(received, topics.decode).mark for received in topics.waiting()]
    assert {mark.ledger_id for mark in marks if mark is not None} == candidates
    # As by the next plan, while the marks of this one wait.
    plans.record(result.plan, ApplyProgress(result.plan.plan_id))
    with Cluster(settings) as opened:
        context = OrphanApply(opened, plans)
        again = context.ledgers.run(result.plan.plan_id, execute=True, allow_emptied=allowed)
    assert (again.marked, again.held_back_total, again.not_compared) == (0, len(candidates), "")
