"""What `bookwarden disk` says of ledgers in a ZooKeeper, and of the entry logs of three real bookies."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pulsar
import pytest
import urllib3
from click.testing import CliRunner
from pyspark.sql import SparkSession

from bookwarden.cli.main import cli
from bookwarden.clusters.pulsar.metadata.managed_ledgers import ManagedLedgers
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.config import Settings, load_settings
from bookwarden.deletion.journal.entries import JournalEntry
from bookwarden.deletion.journal.writing import FileJournal
from bookwarden.ledgers.bookie_report import BookieReport
from bookwarden.ledgers.disk_growth import DayUse, Growth
from bookwarden.ledgers.disk_use import BookieUse, Use
from bookwarden.ledgers.kinds import CursorHolder, ManagedLedgerHolder, SchemaHolder
from bookwarden.ledgers.managed_ledger import LedgerInfo, signed_halves
from bookwarden.ledgers.metadata import AbsentLedger, DeleteResult, LedgerMetadata, LedgerState, Segment
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.trash import TrashRecord
from bookwarden.metastore.urls import open_store
from bookwarden.pipelines.disk.history import DiskHistory
from bookwarden.pipelines.disk.measuring import Wanted
from bookwarden.pipelines.disk.operation import DiskAccount
from bookwarden.pipelines.disk.summary import read_summary
from bookwarden.pipelines.folders import Folder
from bookwarden.wire.ledger_metadata import encode_ledger_metadata
from bookwarden.wire.pb import managed_ledger_pb2
from bookwarden.wire.trash import encode_records
from bookwarden.wiring.cluster import Cluster
from bookwarden_dev.devcluster import DevCluster
from servers.lone_zookeeper import LoneZooKeeper
from servers.object_store import ObjectStore
from servers.population import OLD_MS, ROOT, tags_of
from servers.pulsar_topics import offload, unload
from servers.scanned_site import ScannedSite, broker_telling_the_time
from servers.three_bookies import NAMED, ThreeBookies
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow]

ORDERS = "t/n/persistent/orders"
BOOKIE = "127.0.0.1:3181"
OFF = "its HTTP server is off: set httpServerEnabled=true and httpServerPort in its bookkeeper.conf, and restart it"
# Of a ledger that Population makes: 10 entries of 100 bytes in one copy.
SIZE = 1_000 + 10 * 40


@pytest.fixture
def site(quiet_zookeeper: LoneZooKeeper, tmp_path: Path) -> Iterator[ScannedSite]:
    with (
        broker_telling_the_time() as admin_url,
        closing(ScannedSite(quiet_zookeeper.hosts, f"/s-{uuid4().hex}", admin_url, tmp_path / "orphans")) as made,
    ):
        yield made


def settings_of(site: ScannedSite, tmp_path: Path) -> Settings:
    return load_settings(overrides={**site.overrides, "disk.folder": str(tmp_path / "disk")})


def put_ledger(site: ScannedSite, ledger_id: int, holder: ManagedLedgerHolder, **fields: object) -> None:
    """Create a ledger in two copies on three bookies, one of which was replaced after six of ten entries."""
    values = {"state": LedgerState.CLOSED, "length": 1_000, "last_entry_id": 9, **fields}
    segments = (Segment(0, (BOOKIE, "b:1", "c:1")), Segment(6, (BOOKIE, "b:1", "d:1")))
    metadata = LedgerMetadata(
        3,
        ensemble_size=3,
        write_quorum=2,
        ack_quorum=2,
        segments=segments,
        ctime_ms=OLD_MS,
        custom=tags_of(holder),
        **values,  # type: ignore[arg-type]  # free-form fields
    )
    site.store.create(f"{ROOT}/00/0000/L{ledger_id:04d}", encode_ledger_metadata(metadata), make_parents=True)


def keep_in_trash(site: ScannedSite, topic: str, ledger_id: int) -> None:
    record = TrashRecord(topic, OLD_MS, 1, data=(ledger_id,))
    path = "/bookwarden/trash/records/b1.example:8080-0123abcd/0/0"
    site.store.create(path, encode_records([record]), make_parents=True)


def name_offloaded(site: ScannedSite, topic: str, ledger_id: int) -> None:
    """Let a topic say of its only ledger that it is offloaded, and gone from BookKeeper."""
    node = managed_ledger_pb2.ManagedLedgerInfo()
    ledger = node.ledgerInfo.add(ledgerId=ledger_id, entries=10, size=5_000, timestamp=OLD_MS)
    context = ledger.offloadContext
    context.uidMsb, context.uidLsb = signed_halves(uuid4())
    context.complete = context.bookkeeperDeleted = 1
    context.driverMetadata.name = "aws-s3"
    site.store.create(f"/managed-ledgers/{topic}", node.SerializeToString(), make_parents=True)


def test_ledgers_are_added_up_by_whose_they_are_and_by_bookie(
    spark: SparkSession, site: ScannedSite, tmp_path: Path
) -> None:
    site.namespace("t/other")
    orders = site.topic(ORDERS, [1, 2])
    put_ledger(site, 3, orders)
    site.population.names(orders, [1, 2, 3])
    site.topic("t/other/persistent/x-partition-0", [4])
    for ledger_id, holder in ((5, CursorHolder(ORDERS, "billing")), (6, SchemaHolder("t/n/orders"))):
        site.population.ledger(ledger_id, holder)
        site.population.names(holder, [ledger_id])
    site.ledgers(ManagedLedgerHolder("u/gone/persistent/deleted"), [7])
    site.population.tagged_ledger(8, {"application": b"another"})
    put_ledger(site, 9, ManagedLedgerHolder(ORDERS), state=LedgerState.OPEN, length=0, last_entry_id=None)
    name_offloaded(site, "t/other/persistent/cold", 10)
    site.ledgers(ManagedLedgerHolder("u/gone/persistent/deleted"), [11])
    keep_in_trash(site, "u/gone/persistent/deleted", 11)
    account = DiskAccount(spark, settings_of(site, tmp_path))
    (tmp_path / "disk/runs/20260101T000000Z-killed").mkdir(parents=True)
    history = DiskHistory(Folder(str(tmp_path / "disk")))
    history.keep("2026-01-01", [DayUse("2026-01-01", "", 1, SIZE, 0, 0, 0)])

    found = account.measure("namespace", 10)
    assert found.growth == Growth("2026-01-01", found.total.disk_bytes - SIZE)
    assert found.forecast is None
    today = {use.tenant: use for use in history.newest() if use.day > "2026-01-01"}
    assert {tenant: use.disk_bytes for tenant, use in today.items()} == {
        "": found.total.disk_bytes,
        "t": found.total.disk_bytes - 3 * SIZE,
        "u": 2 * SIZE,
        "(none)": SIZE,
    }
    assert today["t"].offloaded_bytes == 5_000
    assert (today["u"].trashed_bytes, today["u"].unnamed_bytes) == (SIZE, SIZE)
    assert today[""].free is None
    larger = 2 * SIZE  # Of ledger 3.
    assert found.total == Use("total", 10, 1, 1, 9_000, 8 * SIZE + larger, SIZE, SIZE, 5_000, found.total.oldest_ms)
    assert [use[:-1] for use in found.uses] == [
        ("t/n", 6, 1, 1, 5_000, 4 * SIZE + larger, 0, 0, 0),
        ("u/gone", 2, 0, 0, 2_000, 2 * SIZE, SIZE, SIZE, 0),
        ("t/other", 1, 0, 0, 1_000, SIZE, 0, 0, 5_000),
        ("(none)", 1, 0, 0, 1_000, SIZE, 0, 0, 0),
    ]
    bookies = {one.name: one for one in found.bookies}
    assert bookies == {
        BOOKIE: BookieUse(
            BOOKIE,
            10,
            5 * SIZE + round(larger / 3),
            SIZE,
            SIZE,
            SIZE,
            error=bookies[BOOKIE].error,
        ),
        "b:1": BookieUse("b:1", 2, round(larger / 3), 0, 0, 0, error="it is not registered"),
        "c:1": BookieUse("c:1", 2, round(0.6 * larger / 3), 0, 0, 0, error="it is not registered"),
        "d:1": BookieUse("d:1", 2, round(0.4 * larger / 3), 0, 0, 0, error="it is not registered"),
    }
    assert bookies[BOOKIE].unexplained_bytes is None
    assert bookies[BOOKIE].error
    summary = read_summary(Folder(str(tmp_path / "disk")))
    assert summary is not None
    assert (summary.total, summary.namespaces, summary.bookies) == (found.total, found.uses, found.bookies)
    assert (summary.measured_ms, summary.growth) == (found.measured_ms, found.growth)
    assert [use.name for use in summary.topics[:2]] == [ORDERS, "u/gone/persistent/deleted"]
    assert [(day.tenant, day.disk_bytes) for day in summary.days] == [("", SIZE), ("", found.total.disk_bytes)]
    by_bookie = account.measure("bookie", 10)
    assert [use.name for use in by_bookie.uses] == ["t", "u", "(none)"]
    asked = bookies[BOOKIE]._replace(is_read_only=False, report=BookieReport("", error=OFF))
    assert {one.name: one for one in by_bookie.bookies} == {**bookies, BOOKIE: asked}
    summary = read_summary(Folder(str(tmp_path / "disk")))
    assert summary is not None
    assert summary.bookies == by_bookie.bookies

    topics = account.measure("topic", 2, Wanted(tenant="t"))
    assert [use.name for use in topics.uses] == [ORDERS, "t/other/persistent/x-partition-0"]
    assert topics.left_out == 1
    assert topics.total.ledgers == 7
    kinds = account.measure("kind", 10, Wanted(namespace="t/n"))
    assert {use.name: use.ledgers for use in kinds.uses} == {
        "MANAGED_LEDGER": 4,
        "MANAGED_CURSOR": 1,
        "SCHEMA_STORAGE": 1,
    }
    partitioned = account.measure("tenant", 10, Wanted(topic="t/other/persistent/x"))
    assert [use[:2] for use in partitioned.uses] == [("t", 1)]
    nothing = account.measure("tenant", 10, Wanted(tenant="nobody"))
    assert (nothing.uses, nothing.total, nothing.bookies) == ((), Use("total"), ())
    assert (nothing.growth, len(history.newest())) == (None, 5)
    assert read_summary(Folder(str(tmp_path / "disk"))) == summary
    assert list((tmp_path / "disk/runs").iterdir()) == []


def entry_log_bytes(home: Path) -> int:
    return sum(path.stat().st_size for path in (home / "bookie/ledgers/current").glob("*.log"))


def homes_of(three: ThreeBookies) -> dict[str, Path]:
    """Return the folder of each bookie, by id."""
    home = three.cluster.home
    return dict(zip(three.bookies, (home, home / "second", home / "named"), strict=True))


def overrides_of(three: ThreeBookies, tmp_path: Path) -> dict[str, str]:
    return {
        "metadata_store.urls": f"['{three.cluster.store_url}']",
        "pulsar.admin_url": three.cluster.admin_url,
        "pulsar.service_url": three.cluster.service_url,
        "disk.folder": str(tmp_path / "disk"),
        "sweep.journal": str(tmp_path / "journal"),
    }


def namespace_on_three(cluster: DevCluster) -> str:
    """Make a namespace whose entries are in two copies, on three bookies."""
    namespace = f"public/n-{uuid4().hex[:8]}"
    with closing(PulsarAdmin(cluster.connection(), timeout_s=60)) as admin:
        admin.put(f"/namespaces/{namespace}", {})
        quorums = {"bookkeeperEnsemble": 3, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 2}
        admin.post(f"/namespaces/{namespace}/persistence", {**quorums, "managedLedgerMaxMarkDeleteRate": 1000})
    return namespace


class ColdTopic:
    """A topic that is offloaded into a bucket, by the policy of its namespace."""

    def __init__(self, cluster: Cluster, namespace: str, object_store: ObjectStore, bucket: str) -> None:
        self.name = f"persistent://{namespace}/cold"
        self._cluster, self._namespace, self._objects, self._bucket = cluster, namespace, object_store, bucket
        cluster.admin.post(f"/namespaces/{namespace}/offloadPolicies", object_store.broker_settings(bucket))

    def ledgers(self) -> tuple[LedgerInfo, ...]:
        found = ManagedLedgers(self._cluster.store).read(TopicName.parse(self.name).managed_ledger)
        assert found is not None
        return found.info.ledgers

    def offload(self) -> int:
        """Offload all but the last ledger; return the bytes of their entries."""
        offload(self._cluster.admin, self.name, self.ledgers()[-1].ledger_id)
        copied = [one for one in self.ledgers() if one.offload is not None and one.offload.complete]
        assert len(copied) == len(self.ledgers()) - 1
        return sum(one.size for one in copied)

    def leave_bookkeeper(self) -> None:
        """Have the broker delete the ledgers that are offloaded."""
        admin, catalog = self._cluster.admin, self._cluster.bookkeeper.catalog
        ids = [one.ledger_id for one in self.ledgers()[:-1]]

        def only_copies() -> bool:
            admin.post(f"{topic_path(self.name)}/trim")
            return all(isinstance(found, AbsentLedger) for found in catalog.read_many(ids))

        admin.put(f"/namespaces/{self._namespace}/offloadDeletionLagMs", 0)
        eventually(only_copies, 60, 0.5)

    def stored_bytes(self) -> int:
        """Return the bytes of the bucket's objects with entries."""
        found = self._objects.client.list_objects_v2(Bucket=self._bucket)["Contents"]
        return sum(one["Size"] for one in found if not one["Key"].endswith("-index"))


@pytest.fixture
def opened(three_bookies: ThreeBookies, tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(load_settings(overrides=overrides_of(three_bookies, tmp_path))) as cluster:
        yield cluster


def test_the_entry_logs_of_real_bookies_are_what_the_sum_says(
    spark: SparkSession,
    three_bookies: ThreeBookies,
    opened: Cluster,
    object_store: ObjectStore,
    bucket: str,
    tmp_path: Path,
) -> None:
    cluster = three_bookies.cluster
    homes = homes_of(three_bookies)
    overrides = overrides_of(three_bookies, tmp_path)
    namespace = namespace_on_three(cluster)
    cold = ColdTopic(opened, namespace, object_store, bucket)
    before = sum(map(entry_log_bytes, homes.values()))
    with closing(pulsar.Client(cluster.service_url)) as client:
        # What is to be deleted comes first: a bookie compacts no log that it still writes to.
        for topic, count in (("cold", 305), ("large", 3_000), ("small", 500)):
            client.subscribe(f"{namespace}/{topic}", "keeps")
            producer = client.create_producer(f"{namespace}/{topic}", batching_enabled=False, block_if_queue_full=True)
            for _ in range(count):
                producer.send_async(b"x" * 2_000, lambda *_: None)
            producer.flush()
    offloaded = cold.offload()
    assert offloaded == pytest.approx(300 * 2_000, rel=0.05)
    assert offloaded == pytest.approx(cold.stored_bytes(), rel=0.05)
    account = DiskAccount(spark, load_settings(overrides=overrides))

    def uses() -> tuple[Use, dict[str, Use]]:
        found = account.measure("topic", 10, Wanted(namespace=namespace))
        names = {use.name.rpartition("/")[2]: use for use in found.uses}
        assert sum(one.named_bytes for one in found.bookies) == pytest.approx(found.total.disk_bytes, abs=10)
        assert len(found.bookies) == 3
        return found.total, {name: use for name, use in names.items() if not name.startswith("__")}

    total, topics = uses()
    assert list(topics) == ["large", "small", "cold"]
    assert {name: use.offloaded_bytes for name, use in topics.items()} == {"large": 0, "small": 0, "cold": offloaded}
    assert total.unasked == 0
    assert total.open_ledgers > 0
    assert total.logical_bytes == pytest.approx(3_805 * 2_000, rel=0.05)
    eventually(lambda: sum(map(entry_log_bytes, homes.values())) - before > 0.95 * total.disk_bytes, 60, 0.2)
    assert sum(map(entry_log_bytes, homes.values())) - before == pytest.approx(total.disk_bytes, rel=0.05)
    whole = account.measure("tenant", 10)
    assert [one.name for one in whole.bookies] == sorted(three_bookies.bookies)
    assert all(one.unexplained_bytes is not None and one.free for one in whole.bookies)
    (day,) = [use for use in DiskHistory(Folder(str(tmp_path / "disk"))).newest() if not use.tenant]
    assert (day.total, day.free) == (
        sum(one.total or 0 for one in whole.bookies),
        sum(one.free or 0 for one in whole.bookies),
    )

    cold.leave_bookkeeper()
    total_after, topics_after = uses()
    assert topics_after["cold"].offloaded_bytes == offloaded
    # The last ledger stays.
    assert topics_after["cold"].disk_bytes == pytest.approx(topics["cold"].disk_bytes * 5 / 305, rel=0.05)
    assert total.disk_bytes - total_after.disk_bytes == topics["cold"].disk_bytes - topics_after["cold"].disk_bytes
    asked = [name for name in homes if name != NAMED]
    eventually(lambda: not any(one["error"] for one in collect(overrides, *asked)[1].values()), 60)
    exit_code, _ = collect(overrides, *asked, "--major", "--execute")
    assert exit_code == 0
    sums = {
        one.name: one.named_bytes + one.trashed_bytes + one.unnamed_bytes + one.foreign_bytes
        for one in account.measure("tenant", 10).bookies
    }
    assert [entry_log_bytes(homes[name]) for name in asked] == pytest.approx([sums[name] for name in asked], rel=0.05)


def collect(overrides: dict[str, str], *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run `disk collect`, and return its exit code, and what it told of each bookie."""
    options = [word for name, value in overrides.items() for word in ("--set", f"{name}={value}")]
    done = CliRunner().invoke(cli, [*options, "-o", "json", "disk", "collect", *arguments])
    assert not isinstance(done.exception, Exception), done.exc_info
    return done.exit_code, {one["name"]: one for one in json.loads(done.stdout)["bookies"]}


def turn_read_only(url: str, read_only: bool) -> None:
    with urllib3.PoolManager(timeout=30.0) as pool:
        answer = pool.request("PUT", f"{url}/api/v1/bookie/state/readonly", body=json.dumps({"readOnly": read_only}))
        assert answer.json() == {"readOnly": read_only}


def forget_node(cluster: DevCluster, path: str) -> None:
    """Remove a node with all below it, as a broker that leaves ledgers behind."""
    with closing(open_store(cluster.store_url)) as store:
        paths = [*(f"{path}/{child}" for child in store.list_children(path)), path]
        for each in paths:
            (found,) = store.get_many([each])
            assert found is not None
            assert store.delete_many([(each, found.version)]) == [DeleteResult.DELETED]


def test_bookies_free_what_was_deleted_when_asked(
    spark: SparkSession, three_bookies: ThreeBookies, tmp_path: Path
) -> None:
    overrides = overrides_of(three_bookies, tmp_path)
    homes = homes_of(three_bookies)
    asked = [name for name in homes if name != NAMED]
    namespace = namespace_on_three(three_bookies.cluster)
    # A bookie is registered before its HTTP server listens.
    eventually(lambda: not any(one["error"] for one in collect(overrides, *asked)[1].values()), 60)
    # What other tests left dead goes first.
    exit_code, done = collect(overrides, *asked, "--major", "--execute")
    assert exit_code == 0, [one["error"] for one in done.values()]
    first = asked[0]
    major, minor = (done[first]["after"][f"{kind}_compactions"] for kind in ("major", "minor"))

    def on_disk() -> dict[str, int]:
        return {name: entry_log_bytes(home) for name, home in homes.items()}

    least = sum(on_disk().values())

    def is_written() -> bool:
        return sum(on_disk().values()) > least - 500_000

    with closing(pulsar.Client(three_bookies.cluster.service_url)) as client:
        producers = []
        for topic in ("gone", "kept", "orphan"):
            client.subscribe(f"{namespace}/{topic}", "keeps")
            producers.append(
                client.create_producer(f"{namespace}/{topic}", batching_enabled=False, block_if_queue_full=True)
            )
        gone, kept, orphan = producers
        # Bookies sort what they write at once by ledger: so the first entry logs are of the topic that goes alone, then
        # come such with live data too, and at last, in the current ones too, live data alone.
        for batch in ([gone] * 60, *[[gone, kept] * 6] * 6, [kept] * 60, [orphan] * 30):
            for producer in batch:
                producer.send_async(b"x" * 100_000, lambda *_: None)
            for producer in producers:
                producer.flush()
            least += len(batch) * 2 * 100_000
            eventually(is_written, 60, 0.2)
    account = DiskAccount(spark, load_settings(overrides=overrides))

    def by_metadata() -> dict[str, int]:
        found = account.measure("bookie", 10).bookies
        return {one.name: one.named_bytes + one.trashed_bytes + one.unnamed_bytes + one.foreign_bytes for one in found}

    before = by_metadata()
    with closing(PulsarAdmin(three_bookies.cluster.connection(), timeout_s=60)) as admin:
        admin.delete(f"/persistent/{namespace}/gone", params={"force": True})
        unload(admin, f"{namespace}/orphan")
    forget_node(three_bookies.cluster, f"/managed-ledgers/{namespace}/persistent/orphan")
    live = by_metadata()
    assert sum(before.values()) - sum(live.values()) == pytest.approx(96 * 2 * 100_000, rel=0.05)

    exit_code, plan = collect(overrides, "--all")
    assert exit_code == 0
    assert set(plan) == set(homes)
    assert plan[NAMED]["error"] == OFF
    assert all(plan[name]["after"] is None and not plan[name]["error"] for name in asked)
    assert all(size > 0.95 * before[name] for name, size in on_disk().items())

    # What is in no log with live data is freed without a major compaction, and all of it with one.
    exit_code, done = collect(overrides, "--all", "--execute")
    assert (exit_code, done[NAMED]["after"], bool(done[NAMED]["error"])) == (27, None, True)
    assert done[first]["answer"] == f"Triggered GC on BookieServer: {first}"
    assert done[first]["asked"] == {"major": False, "minor": True}
    assert (done[first]["after"]["major_compactions"], done[first]["after"]["minor_compactions"]) == (major, minor + 1)
    dead = {name: on_disk()[name] - live[name] for name in asked}
    assert all(0.2 < dead[name] / (before[name] - live[name]) < 0.8 for name in asked), (dead, before, live)
    # Metadata of a ledger with a copy of each of four entries on two of three bookies, deleted by a sweep.
    metadata = LedgerMetadata(
        3, LedgerState.CLOSED, 3, 2, 2, (Segment(0, tuple(homes)),), length=6_000 - 4 * 40, last_entry_id=3
    )
    entry = JournalEntry(1, "", "/ledgers/x", 0, 0, encode_ledger_metadata(metadata), "q/1", int(time.time() * 1000))
    with closing(FileJournal(tmp_path / "journal")) as journal:
        journal.append([entry])
    bookies = {one.name: one for one in account.measure("bookie", 10).bookies}
    for name in asked:
        assert bookies[name].unnamed_bytes > 30 * 100_000 / 2
        report = bookies[name].report
        assert report is not None
        # A log that has no room for one more entry is not full.
        assert report.dead_bytes is not None
        assert report.entry_logs is not None
        assert 0.9 * dead[name] < report.dead_bytes < dead[name] + 200_000 * report.entry_logs
    assert {name: one.deleted_bytes for name, one in bookies.items()} == {**dict.fromkeys(asked, 4_000), NAMED: None}
    exit_code, done = collect(overrides, *asked, "--major", "--execute")
    assert exit_code == 0
    assert done[first]["after"]["major_compactions"] == major + 1
    compacted = on_disk()
    assert [compacted[name] for name in asked] == pytest.approx([live[name] for name in asked], rel=0.05)

    turn_read_only(plan[first]["before"]["url"], True)
    try:
        eventually(lambda: collect(overrides, "--all")[1][first]["is_read_only"], 30)
        whole = account.measure("bookie", 10)
    finally:
        turn_read_only(plan[first]["before"]["url"], False)
    assert {one.name: one.is_read_only for one in whole.bookies} == {name: name == first for name in homes}
    eventually(lambda: not collect(overrides, "--all")[1][first]["is_read_only"], 30)
