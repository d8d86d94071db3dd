"""A real broker offloads to a real S3 server; what it leaves there when it crashes is swept, and nothing else."""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from pyspark.sql import SparkSession

from bookwarden.cli.main import cli
from bookwarden.clusters.offload.names import data_name, object_names
from bookwarden.clusters.pulsar.metadata.managed_ledgers import ManagedLedgers
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.deletion.phase_two.copy_deletion import copy_of
from bookwarden.ledgers.managed_ledger import LedgerInfo
from bookwarden.ledgers.metadata import AbsentLedger, StoredLedger
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.pending_deletion import LedgerType, PendingDeletion
from bookwarden.pipelines.scan.folder import plans_of
from bookwarden.pipelines.scan.operation import OrphanScan
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.deletion import PhaseOne
from bookwarden_dev.devcluster import DevCluster
from bookwarden_dev.devcluster.refusals import LEDGERS_FOLDER, Refusals
from servers.deletion_site import DeletionSite
from servers.follow.site import LATE_S, FollowingSite
from servers.object_store import ACCESS_KEY, OFFLOAD_BUCKET, SECRET_KEY, ObjectStore, TroubledStore
from servers.pulsar_topics import TopicUnderTest, offload
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow]

# What waits in real life, for clocks and a second look, need not wait for what has just been made.
SCAN_AT_ONCE = {
    "orphans.min_age_days": "0",
    "orphans.longest_compaction_hours": "0",
    "orphans.seen_apart_hours": "0",
    "orphans.max_share": "1",
}
VALUES = [secrets.token_bytes(2000) for _ in range(45)]


@dataclass
class Place:
    """A cluster that offloads, where it offloads to, and what sweeps it."""

    cluster: DevCluster
    server: ObjectStore
    site: DeletionSite
    opened: Cluster

    def topic(self, namespace: str, name: str) -> TopicUnderTest:
        """Make a topic of several ledgers, all but the last offloaded."""
        topic = TopicUnderTest(self.cluster.connection(), namespace, name, partitions=0)
        topic.send(VALUES, batching_enabled=False)
        offload(topic.admin, topic.name, self.ledgers(topic)[-1].ledger_id)
        return topic

    def ledgers(self, topic: TopicUnderTest) -> tuple[LedgerInfo, ...]:
        read = ManagedLedgers(self.opened.store).read(TopicName.parse(topic.name).managed_ledger)
        assert read is not None
        return read.info.ledgers

    def drop_from_bookkeeper(self, topic: TopicUnderTest) -> None:
        """Let the broker delete BookKeeper's copy of what is offloaded."""

        def only_copies() -> bool:
            topic.admin.post(f"{topic_path(topic.name)}/trim")
            ids = [ledger.ledger_id for ledger in self.ledgers(topic)[:-1]]
            return all(isinstance(found, AbsentLedger) for found in self.opened.bookkeeper.catalog.read_many(ids))

        eventually(only_copies, 60)

    def leave_behind(self, *topics: TopicUnderTest) -> None:
        """Let the broker die when it has written that BookKeeper's ledgers are deleted, and before it deletes them."""
        with closing(Refusals(self.cluster.store_url)) as refusals:
            refusals.deletes_in(LEDGERS_FOLDER)

            def said() -> bool:
                for topic in topics:
                    topic.admin.post(f"{topic_path(topic.name)}/trim")
                offloads = [ledger.offload for topic in topics for ledger in self.ledgers(topic)[:-1]]
                return all(offload is not None and offload.bookkeeper_deleted for offload in offloads)

            eventually(said, 60)
            self.cluster.broker.kill()
        self.cluster.broker.start()

    def stored(self, topic: TopicUnderTest) -> set[int]:
        """Say which of the topic's ledgers BookKeeper has, but for the last."""
        ids = [ledger.ledger_id for ledger in self.ledgers(topic)[:-1]]
        return {
            found.ledger_id
            for found in self.opened.bookkeeper.catalog.read_many(ids)
            if isinstance(found, StoredLedger)
        }

    def run(self, *arguments: str) -> Any:
        """Run a command and return what it says."""
        file = Path(self.site.settings.orphans.folder).with_name("bookwarden.yaml")
        file.write_text(yaml.safe_dump(self.site.settings.model_dump(mode="json", exclude_defaults=True)))
        result = CliRunner().invoke(cli, ["--config", str(file), "-o", "json", *arguments])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def objects(self, marks: list[PendingDeletion]) -> set[str]:
        return {name for mark in marks for name in object_names(copy_of(mark))}


@pytest.fixture
def place(
    offloading_cluster: DevCluster,
    object_store: ObjectStore,
    make_namespace: Callable[[DevCluster], str],
    tmp_path: Path,
    offload_proxy: TroubledStore,
) -> Iterator[Place]:
    store = (
        f"{{driver: S3, endpoint: '{offload_proxy.endpoint}', buckets: [{OFFLOAD_BUCKET}], "
        f"access_key: {ACCESS_KEY}, secret_key: {SECRET_KEY}}}"
    )
    overrides = {
        "offload.stores": f"[{store}]",
        "offload.attempts": "2",
        "deletion.still_referenced_grace_seconds": "0",
        "orphans.folder": str(tmp_path / "orphans"),
        **SCAN_AT_ONCE,
    }
    cluster = offloading_cluster
    site = DeletionSite.of(cluster, make_namespace(cluster), tmp_path, overrides)
    site.create_topics()
    with Cluster(site.settings) as opened:
        yield Place(cluster, object_store, site, opened)
    offload_proxy.refuse(0, 0, "", "")


def test_what_a_crashed_broker_leaves_in_the_store_is_swept_and_what_is_named_reads_back_byte_for_byte(
    place: Place, offload_proxy: TroubledStore, make_namespace: Callable[[DevCluster], str], spark: SparkSession
) -> None:
    both, single = make_namespace(place.cluster), make_namespace(place.cluster)
    orders, kept, invoices = (place.topic(both, "orders"), place.topic(single, "kept"), place.topic(single, "invoices"))
    orders.admin.put(f"/namespaces/{single}/offloadDeletionLagMs", 0)
    for topic in (kept, invoices):
        place.drop_from_bookkeeper(topic)
    kept.unload()
    assert kept.read_back() == VALUES

    # The store refuses deletes: the broker updates its metadata all the same, and tries again from memory.
    offload_proxy.refuse(10**9, 403, "AccessDenied", "Access Denied by the test", only="?delete")
    with Cluster(place.site.settings) as opened:
        phase_one = PhaseOne(opened)
        results = [phase_one.removal.plan_topic(topic.name, force=True).carry_out() for topic in (orders, invoices)]
    assert [result.problem for result in results] == ["", ""]
    planned = [mark for result in results for mark in result.plan.marks]
    place.cluster.broker.kill()
    copies = [mark for mark in planned if mark.ledger_type is LedgerType.OFFLOAD_LEDGER]
    bookies = {mark.ledger_id for mark in planned if mark.ledger_type is LedgerType.LEDGER}
    with_both = [mark for mark in copies if mark.ledger_id in bookies]
    assert (len(copies), len(with_both)) == (8, 8)
    doomed = place.objects(copies)
    left = place.server.keys(OFFLOAD_BUCKET)
    assert doomed < left
    place.server.client.create_multipart_upload(Bucket=OFFLOAD_BUCKET, Key=data_name(copy_of(copies[0])))
    place.cluster.broker.start()

    live = place.ledgers(kept)[0]
    assert live.offload is not None
    assert (live.offload.complete, live.offload.bookkeeper_deleted, live.offload.driver_name) == (True, True, "S3")
    context = copies[0].offload_context
    assert context is not None
    stolen = replace(context, msb=live.offload.uid_msb, lsb=live.offload.uid_lsb)
    place.site.mark(
        replace(copies[0], ledger_id=live.ledger_id, offload_context=stolen),
        replace(copies[0], ledger_id=live.ledger_id, offload_context=stolen, topic_name=kept.name),
    )
    place.site.sweep_once(spark)
    rows = [row for row in place.site.outcomes() if row["ledger_type"] == "OFFLOAD_LEDGER"]
    # Whoever is said to have made it: another topic lists the ledger, and its copy.
    others = {"still referenced": 2}
    assert Counter(row["outcome"] for row in rows) == {"retry": len(copies), **others}, rows
    retried = [row for row in rows if row["outcome"] == "retry"]
    assert all("AccessDenied: Access Denied by the test" in row["reason"] for row in retried)
    assert place.server.keys(OFFLOAD_BUCKET) == left

    offload_proxy.refuse(0, 0, "", "")

    def swept() -> bool:
        place.site.sweep_once(spark)
        return place.site.backlog() == 0

    eventually(swept, 120)
    deleted = [row for row in place.site.outcomes() if row["outcome"] == "deleted"]
    assert sorted(row["ledger_id"] for row in deleted if row["ledger_type"] == "OFFLOAD_LEDGER") == sorted(
        mark.ledger_id for mark in copies
    )
    assert place.server.keys(OFFLOAD_BUCKET) == left - doomed
    assert place.server.uploads(OFFLOAD_BUCKET) == set()
    assert kept.read_back() == VALUES


def test_copies_that_the_broker_deleted_itself_are_already_gone(
    place: Place, make_namespace: Callable[[DevCluster], str], spark: SparkSession
) -> None:
    topic = place.topic(make_namespace(place.cluster), "orders")
    with Cluster(place.site.settings) as opened:
        phase_one = PhaseOne(opened)
        planned = list(phase_one.removal.plan_topic(topic.name, force=True).carry_out().plan.marks)
    objects = place.objects([mark for mark in planned if mark.ledger_type is LedgerType.OFFLOAD_LEDGER])
    assert len(objects) == 8
    eventually(lambda: not objects & place.server.keys(OFFLOAD_BUCKET), 60)
    place.site.sweep_once(spark)
    assert set(place.site.counts()) == {"already gone"}
    assert place.site.backlog() == 0


def test_what_a_broker_left_behind_after_its_offload_is_reclaimed_once_the_copy_is_proven(
    place: Place, make_namespace: Callable[[DevCluster], str], spark: SparkSession
) -> None:
    namespace = make_namespace(place.cluster)
    whole, damaged = place.topic(namespace, "whole"), place.topic(namespace, "damaged")
    whole.admin.put(f"/namespaces/{namespace}/offloadDeletionLagMs", 0)
    place.leave_behind(whole, damaged)
    left, (kept, hollow, *_) = place.stored(whole), sorted(place.stored(damaged))
    assert (len(left), len(place.stored(damaged))) == (4, 4)
    first, second = (one.offload for one in place.ledgers(damaged)[:2])
    assert first is not None
    assert second is not None
    place.server.client.delete_object(Bucket=OFFLOAD_BUCKET, Key=f"{first.uuid}-ledger-{kept}-index")
    index = f"{second.uuid}-ledger-{hollow}-index"
    assert index in place.server.keys(OFFLOAD_BUCKET)
    size = place.server.client.head_object(Bucket=OFFLOAD_BUCKET, Key=index)["ContentLength"]
    place.server.client.put_object(Bucket=OFFLOAD_BUCKET, Key=index, Body=bytes(size))

    scan = OrphanScan(spark, place.site.settings)
    found = scan.run(scan.begin())
    assert (found.missing, found.exit_code) == (0, 20)
    planned = {
        one.ledger_id: one.cause for some in plans_of(place.site.settings).candidates(found.plan, 100) for one in some
    }
    ours = left | place.stored(damaged)
    assert found.left_behind >= len(ours) == 8
    assert {planned.get(ledger_id) for ledger_id in ours} == {"offloaded, never deleted"}
    explained = place.run("ledger", "explain", str(kept))
    assert (explained["left_behind"], explained["outcome"]) == (True, "retry")
    assert "no index" in explained["reason"]
    assert "index is damaged" in place.run("ledger", "explain", str(hollow))["reason"]
    assert place.run("ledger", "explain", str(min(left)))["outcome"] == "deleted"

    place.run("orphans", "apply", "--plan", found.plan.plan_id, "--execute")
    place.site.sweep_once(spark)
    assert (place.stored(whole), place.stored(damaged)) == (set(), {kept, hollow})
    assert set(place.site.outcome_of(kept)) == set(place.site.outcome_of(hollow)) == {"retry"}
    assert all("no index" in row["reason"] for row in place.site.outcomes() if row["ledger_id"] == kept)
    assert whole.read_back() == VALUES


@pytest.mark.timeout(900)
def test_what_a_killed_broker_leaves_of_offloaded_topics_is_marked_without_a_scan(
    place: Place, offload_proxy: TroubledStore, make_namespace: Callable[[DevCluster], str], spark: SparkSession
) -> None:
    kept, gone = make_namespace(place.cluster), make_namespace(place.cluster)
    whole, doomed = place.topic(kept, "whole"), place.topic(gone, "doomed")
    whole.admin.put(f"/namespaces/{kept}/offloadDeletionLagMs", 0)
    following = FollowingSite(place.site)
    with following.running(spark):
        eventually(following.has_caught_up, LATE_S, pause=0.5)
        copies = {ledger.ledger_id for ledger in place.ledgers(doomed)[:-1]}
        # The store refuses deletes, which the broker would try again from its memory; so does the other's BookKeeper.
        offload_proxy.refuse(10**9, 403, "AccessDenied", "Access Denied by the test", only="?delete")
        doomed.admin.delete(topic_path(doomed.name), params={"force": True})
        place.leave_behind(whole)
        offload_proxy.refuse(0, 0, "", "")
        left = place.stored(whole)
        assert (len(left), len(copies)) == (4, 4)
        eventually(lambda: len(following.marked()) >= len(left | copies), LATE_S, pause=0.2)
        eventually(following.is_settled, LATE_S, pause=0.2)
    assert following.marked("OFFLOAD_LEDGER") == sorted(copies)
    assert following.marked("LEDGER") == sorted(left)
    place.site.sweep_once(spark)
    assert place.stored(whole) == set()
    assert not [
        key for key in place.server.keys(OFFLOAD_BUCKET) if any(f"-ledger-{ledger}" in key for ledger in copies)
    ]
    assert whole.read_back() == VALUES
