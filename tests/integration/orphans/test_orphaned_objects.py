"""Objects that nothing names, in a real S3 server: found, planned, marked and swept; named ones read back as before."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote
from uuid import UUID, uuid4

import pytest
from pyspark.sql import SparkSession

from bookwarden.clusters.pulsar.metadata.managed_ledgers import ManagedLedgers
from bookwarden.clusters.pulsar.rest.brokers import broker_clock
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.errors import FormatError
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.ledgers.managed_ledger import LedgerInfo, signed_halves
from bookwarden.ledgers.names import TopicName
from bookwarden.orphans.copies import CopyCause
from bookwarden.pipelines.scan.folder import plans_of
from bookwarden.pipelines.scan.operation import OrphanScan
from bookwarden.pipelines.scan.planning import ScanResult
from bookwarden.wire.pb import managed_ledger_pb2
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.scan import OrphanApply
from bookwarden_dev.devcluster import DevCluster
from servers.deletion_site import DeletionSite
from servers.lone_zookeeper import LoneZooKeeper
from servers.object_store import OFFLOAD_BUCKET, ObjectStore, TroubledStore
from servers.pulsar_topics import TopicUnderTest, offload
from servers.scanned_site import ScannedSite, broker_telling_the_time
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow]

ORDERS = "t/n/persistent/orders"
VALUES = [secrets.token_bytes(2000) for _ in range(25)]


def as_setting(server: ObjectStore, *buckets: str, endpoint: str = "") -> str:
    """Give offload.stores as an override, in YAML."""
    reached = {"buckets": f"[{', '.join(buckets)}]", "endpoint": f"'{endpoint or server.endpoint}'"}
    fields = {**server.sweep_settings(""), **reached}
    return "[{" + ", ".join(f"{name}: {value}" for name, value in fields.items()) + "}]"


def put_copy(server: ObjectStore, bucket: str, uuid: UUID, ledger_id: int, owner: str | None) -> None:
    metadata = {"managedledgername": owner} if owner else {}
    for end in ("", "-index"):
        server.client.put_object(
            Bucket=bucket, Key=f"{uuid}-ledger-{ledger_id}{end}", Body=b"x" * 50, Metadata=metadata
        )


def counts(result: ScanResult) -> dict[str, int]:
    return {one.ledger_class: one.ledgers for one in result.summary.objects}


@pytest.fixture
def scanned(quiet_zookeeper: LoneZooKeeper, tmp_path: Path) -> Iterator[ScannedSite]:
    # A clock that is ahead, and tells whole seconds: objects of just now are older than the cutoff all the same.
    with (
        broker_telling_the_time(60) as admin_url,
        closing(ScannedSite(quiet_zookeeper.hosts, f"/s-{uuid4().hex}", admin_url, tmp_path / "orphans")) as made,
    ):
        yield made


def name_copy(site: ScannedSite, topic: str, ledger_id: int, uuid: UUID) -> None:
    msb, lsb = signed_halves(uuid)
    info = managed_ledger_pb2.ManagedLedgerInfo()
    ledger = info.ledgerInfo.add(ledgerId=ledger_id, entries=10, size=1000, timestamp=1)
    ledger.offloadContext.uidMsb, ledger.offloadContext.uidLsb = msb, lsb
    site.ledgers(ManagedLedgerHolder(topic), [ledger_id])
    site.store.create(f"/managed-ledgers/{topic}", info.SerializeToString(), make_parents=True)


def test_every_object_gets_its_class_and_doubt_or_a_silent_store_makes_no_orphan(
    scanned: ScannedSite, object_store: ObjectStore, bucket: str, spark: SparkSession
) -> None:
    server = object_store
    named, orphan, foreign, nobodys, segment, begun = (uuid4() for _ in range(6))
    name_copy(scanned, ORDERS, 1, named)
    put_copy(server, bucket, named, 1, ORDERS)
    put_copy(server, bucket, orphan, 2, "t/n/persistent/gone")
    put_copy(server, bucket, foreign, 3, "stranger/n/persistent/a")
    put_copy(server, bucket, nobodys, 4, None)
    for key in (str(segment), "notes"):
        server.client.put_object(Bucket=bucket, Key=key, Body=b"x")
    server.client.create_multipart_upload(Bucket=bucket, Key=f"{begun}-ledger-1")
    scanned.overrides["offload.stores"] = as_setting(server, bucket, "no-such-bucket")
    scanned.overrides["offload.attempts"] = "1"
    time.sleep(1.1)

    result = scanned.scan(spark)
    assert counts(result) == {
        "referenced": 2,
        "orphan": 3,
        "foreign": 2,
        "unknown owner": 3,
        "unknown name": 1,
        "not scanned": 0,
    }
    plans = plans_of(scanned.settings)
    found = {one.uuid: one for one in plans.all_copies(result.plan)}
    assert {uuid: (one.ledger_id, one.managed_ledger, one.cause) for uuid, one in found.items()} == {
        orphan: (2, "t/n/persistent/gone", CopyCause.TOPIC_DELETED.value),
        begun: (1, ORDERS, CopyCause.FAILED.value),
    }
    assert (found[orphan].objects, found[orphan].length, found[begun].uploads) == (2, 100, 1)
    assert [(one.copies, one.candidates) for one in result.plan.copies] == [(6, 2)]
    assert any("NoSuchBucket" in doubt.reason for doubt in result.summary.doubts)
    assert result.orphans == 0
    assert result.exit_code != 0

    # Another topic cannot be read: it may name any of them.
    scanned.store.create("/managed-ledgers/t/n/persistent/broken", b"\xff\xff\xff")
    again = scanned.scan(spark)
    assert again.plan.copy_candidates == 0
    assert counts(again)["references unknown"] == 8


def write_inventory(server: ObjectStore, bucket: str, folder: Path) -> list[Path]:
    """Write what S3 writes of the bucket: a manifest, and two files of rows in no order, which part the copies."""
    found = sorted(server.client.list_objects_v2(Bucket=bucket)["Contents"], key=lambda one: str(one["Key"]))
    files = []
    for number in range(2):
        text = io.StringIO()
        for one in found[number::2]:
            # S3 tells it so, and of a day ago.
            stamp = (one["LastModified"] - timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%S.000Z")
            csv.writer(text, quoting=csv.QUOTE_ALL).writerow([bucket, quote(one["Key"]), one["Size"], stamp])
        files.append(folder / f"data-{number}.csv.gz")
        files[-1].write_bytes(gzip.compress(text.getvalue().encode()))
    data = [(f"inventories/{file.name}", file.read_bytes()) for file in files]
    manifest = {
        "sourceBucket": bucket,
        "creationTimestamp": str(int(time.time() * 1000)),
        "fileFormat": "CSV",
        "fileSchema": "Bucket, Key, Size, LastModifiedDate",
        "files": [
            {"key": key, "size": len(raw), "MD5checksum": hashlib.md5(raw, usedforsecurity=False).hexdigest()}
            for key, raw in data
        ],
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return files


def test_a_scan_takes_an_inventory_for_the_listing_of_its_bucket(
    scanned: ScannedSite, object_store: ObjectStore, bucket: str, spark: SparkSession, tmp_path: Path
) -> None:
    server, folder = object_store, tmp_path / "inventory"
    folder.mkdir()
    named, orphan, gone, later = (uuid4() for _ in range(4))
    name_copy(scanned, ORDERS, 1, named)
    put_copy(server, bucket, named, 1, ORDERS)
    put_copy(server, bucket, orphan, 2, "t/n/persistent/gone")
    put_copy(server, bucket, gone, 3, "t/n/persistent/gone")
    server.client.put_object(Bucket=bucket, Key="a note/é", Body=b"x")
    files = write_inventory(server, bucket, folder)
    for end in ("", "-index"):
        server.client.delete_object(Bucket=bucket, Key=f"{gone}-ledger-3{end}")
    put_copy(server, bucket, later, 4, "t/n/persistent/gone")
    server.client.create_multipart_upload(Bucket=bucket, Key=f"{uuid4()}-ledger-1")
    scanned.overrides["offload.stores"] = as_setting(server, bucket)
    scanned.overrides["orphans.inventories"] = f"['{folder}']"

    result = scanned.scan(spark)
    assert counts(result) == {"referenced": 2, "orphan": 2, "gone since it was listed": 2, "unknown name": 1}
    (found,) = plans_of(scanned.settings).all_copies(result.plan)
    assert (found.uuid, found.ledger_id, found.objects, found.uploads, found.length) == (orphan, 2, 2, 0, 100)
    assert found.modified_ms < (time.time() - 86_000) * 1000

    files[1].write_bytes(files[1].read_bytes()[:-1])
    with pytest.raises(FormatError, match=r"data-1\.csv\.gz of the inventory of .* is not whole"):
        scanned.scan(spark)


def offloaded(cluster: DevCluster, namespace: str, name: str, opened: Cluster) -> TopicUnderTest:
    """Make a topic of several ledgers, all but the last offloaded."""
    topic = TopicUnderTest(cluster.connection(), namespace, name, partitions=0)
    topic.send(VALUES, batching_enabled=False)
    # The broker first unpacks its offloaders.
    offload(topic.admin, topic.name, ledgers(opened, topic)[-1].ledger_id, 180)
    return topic


def ledgers(opened: Cluster, topic: TopicUnderTest) -> tuple[LedgerInfo, ...]:
    read = ManagedLedgers(opened.store).read(TopicName.parse(topic.name).managed_ledger)
    assert read is not None
    return read.info.ledgers


def leave_behind(server: ObjectStore, key: str) -> set[str]:
    """Copy a copy's objects to names of a fresh UUID, as an attempt leaves them that was made anew."""
    fresh, rest = str(uuid4()), key[36:]
    names = {f"{fresh}{rest}": key, f"{fresh}{rest}-index": f"{key}-index"}
    for new, old in names.items():
        server.client.copy_object(Bucket=OFFLOAD_BUCKET, Key=new, CopySource={"Bucket": OFFLOAD_BUCKET, "Key": old})
    return set(names)


@pytest.mark.timeout(600)
def test_what_a_real_brokers_offloads_left_is_found_planned_marked_and_swept(
    offloading_cluster: DevCluster,
    object_store: ObjectStore,
    offload_proxy: TroubledStore,
    make_namespace: Callable[[DevCluster], str],
    tmp_path: Path,
    spark: SparkSession,
) -> None:
    cluster, server, namespace = offloading_cluster, object_store, make_namespace(offloading_cluster)
    overrides = {
        "offload.stores": as_setting(server, OFFLOAD_BUCKET, endpoint=offload_proxy.endpoint),
        "orphans.folder": str(tmp_path / "orphans"),
        "orphans.min_age_days": "0",
        "orphans.longest_compaction_hours": "0",
        "orphans.seen_apart_hours": "0",
        "orphans.max_share": "1",
    }
    site = DeletionSite.of(cluster, make_namespace(cluster), tmp_path, overrides)
    site.create_topics()
    with Cluster(site.settings) as opened:
        kept = offloaded(cluster, namespace, "kept", opened)
        doomed = offloaded(cluster, namespace, "doomed", opened)
        first, other = (ledgers(opened, topic)[0] for topic in (kept, doomed))
    assert first.offload is not None
    assert other.offload is not None
    lost = leave_behind(server, f"{first.offload.uuid}-ledger-{first.ledger_id}")
    lost |= leave_behind(server, f"{other.offload.uuid}-ledger-{other.ledger_id}")
    upload = f"{uuid4()}-ledger-{first.ledger_id}"
    server.client.create_multipart_upload(Bucket=OFFLOAD_BUCKET, Key=upload)
    # The broker deletes the copies that it names.
    mine = server.keys(OFFLOAD_BUCKET)
    doomed.admin.delete(topic_path(doomed.name), params={"force": "true"})
    eventually(lambda: len(mine - server.keys(OFFLOAD_BUCKET)) == 4, 180)
    left = server.keys(OFFLOAD_BUCKET)
    # A broker tells whole seconds, and what is younger than its clock is too young.
    made_ms = int(time.time() * 1000)
    eventually(lambda: broker_clock(doomed.admin) > made_ms)

    scan = OrphanScan(spark, site.settings)
    plan = scan.run(scan.begin()).plan
    found = list(plans_of(site.settings).all_copies(plan))
    assert sorted((one.cause, one.objects, one.uploads) for one in found) == [
        (CopyCause.FAILED.value, 0, 1),
        (CopyCause.FAILED.value, 2, 0),
        (CopyCause.TOPIC_DELETED.value, 2, 0),
    ]
    with Cluster(site.settings) as opened:
        context = OrphanApply(opened, plans_of(site.settings))
        assert context.copies.run(plan.plan_id).marked == 3
        assert site.backlog() == 0
        assert context.copies.run(plan.plan_id, execute=True).done

    def swept() -> bool:
        site.sweep_once(spark)
        return site.backlog() == 0

    eventually(swept, 120)
    # An upload that was never finished has no object, and is aborted.
    assert (site.counts()["deleted"], site.counts()["already gone"]) == (3, 0)
    assert server.keys(OFFLOAD_BUCKET) == left - lost
    assert server.uploads(OFFLOAD_BUCKET) == set()
    assert kept.read_back() == VALUES
