"""One scan over two Pulsar clusters of different versions that share one ensemble and one BookKeeper."""

from __future__ import annotations

import secrets
import time
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pulsar
import pytest
from pulsar.schema import StringSchema
from pyspark.sql import SparkSession

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.metadata.managed_ledgers import ManagedLedgers
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.brokers import broker_clock
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.clusters.pulsar.rest.topics import Topics
from bookwarden.config import Settings, load_settings
from bookwarden.errors import RefusedError
from bookwarden.ledgers.kinds import PlaceKind
from bookwarden.ledgers.managed_ledger import VersionedManagedLedger
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.references import ReferenceIndex
from bookwarden.metastore.urls import open_store
from bookwarden.orphans.classes import Cause, LedgerClass
from bookwarden.pipelines.scan.folder import plans_of
from bookwarden.pipelines.scan.operation import OrphanScan
from bookwarden.wire.pb import managed_ledger_pb2
from bookwarden.wiring.cluster import Cluster
from servers.broker_claims import claimed_ledgers
from servers.older_broker import OlderBroker
from servers.topic_contents import compact, retain, send, send_keyed
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(900)]


@dataclass(frozen=True)
class Side:
    """One of the two clusters, with a topic that has the same name on both, and one that the other has not."""

    name: str
    connection: PulsarConnection
    store_url: str
    namespace: str

    @property
    def topic(self) -> str:
        return f"persistent://{self.namespace}/everything"

    @property
    def own_topic(self) -> str:
        return f"persistent://{self.namespace}/of-{self.name}"

    @property
    def admin(self) -> PulsarAdmin:
        return PulsarAdmin(self.connection, timeout_s=60)


@pytest.fixture
def sides(older_broker: OlderBroker) -> list[Side]:
    namespace = f"t-{secrets.token_hex(4)}/n"
    both = {"older": older_broker, "newer": older_broker.beside}
    made = [Side(name, one.connection(), one.store_url, namespace) for name, one in both.items()]
    for side in made:
        admin = side.admin
        admin.put(f"/tenants/{namespace.partition('/')[0]}", {"allowedClusters": ["dev"]})
        admin.put(f"/namespaces/{namespace}")
        retain(admin, namespace)
    return made


@pytest.fixture
def settings(older_broker: OlderBroker, tmp_path: Path) -> Settings:
    newer = older_broker.beside
    return load_settings(
        overrides={
            "metadata_store.urls": f"['{newer.store_url}', '{older_broker.store_url}']",
            "pulsar.service_url": newer.service_url,
            "pulsar.admin_url": newer.admin_url,
            "orphans.folder": str(tmp_path / "orphans"),
            "orphans.min_age_days": "0",
            "orphans.longest_compaction_hours": "0",
        }
    )


def fill(side: Side) -> None:
    """Give the topic ledgers of every kind, and some data to the other one."""
    topic = side.topic
    with closing(side.connection.client()) as client:
        send(client, side.own_topic, 25)
        consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
        client.create_producer(topic, schema=StringSchema()).close()
        send_keyed(client, topic, 25)
        consumer.acknowledge(consumer.receive(60_000))
        send(client, topic, 25, deliver_after=timedelta(hours=1))
        compact(side.admin, topic)


def claimed(side: Side) -> set[int]:
    """Return the ledgers that the broker tells of, when the topic is loaded again and its reader has a ledger."""
    admin, topic = side.admin, side.topic

    def of_each_kind() -> set[int]:
        stats = Topics(admin).internal_stats(topic)
        compacted, cursor = stats["compactedLedger"]["ledgerId"], stats["cursors"]["s"]["cursorLedger"]
        # That of the compaction is the last entry of a ledger that its own cursor need not have open.
        return claimed_ledgers(stats) | {compacted} if compacted >= 0 and cursor >= 0 else set()

    with closing(side.connection.client()) as client:
        consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
        consumer.acknowledge(consumer.receive(60_000))
        return eventually(of_each_kind, 60)


def node_of(managed_ledgers: ManagedLedgers, topic: str) -> VersionedManagedLedger:
    node = managed_ledgers.read(TopicName.parse(topic).managed_ledger)
    assert node is not None
    return node


def lose_first_ledger(side: Side, topic: str, *, noted: bool) -> int:
    """Take a topic's first ledger from its node and leave it in BookKeeper, as a trim does that is cut short.

    Where ``noted``, the last ledger of a full node gets a property before, which the broker writes itself after that.
    """
    admin, unload = side.admin, f"{topic_path(topic)}/unload"
    admin.put(unload)
    with closing(open_store(side.store_url)) as store:
        managed_ledgers = ManagedLedgers(store)
        if noted:
            node = node_of(managed_ledgers, topic)
            message = managed_ledger_pb2.ManagedLedgerInfo.FromString(node.raw)
            message.ledgerInfo[1].properties.add(key="why", value="kept é")
            store.put(node.path, message.SerializeToString(), node.version)
            with closing(side.connection.client()) as client:
                send(client, topic, 1)
            admin.put(unload)
        node = node_of(managed_ledgers, topic)
        written = managed_ledger_pb2.ManagedLedgerInfo.FromString(node.raw)
        assert bool(written.ledgerInfo[1].properties) is noted
        lost = node.info.ledgers[0].ledger_id
        managed_ledgers.remove_ledgers(node, [lost])
    return lost


def kinds_of_places(settings: Settings, ledger_ids: set[int]) -> set[PlaceKind]:
    index = ReferenceIndex()
    with Cluster(settings) as cluster:
        cluster.references.pieces.read_into(index)
    return {named.place.kind for ledger_id in ledger_ids for named in index.who_names(ledger_id)}


def test_what_brokers_of_either_version_name_is_referenced_and_an_orphan_of_each_is_found(
    sides: list[Side], settings: Settings, spark: SparkSession
) -> None:
    versions = [side.admin.request("GET", "/brokers/version", ok=(200,)).data for side in sides]
    assert versions == [b"4.0.8", b"4.2.4"]
    for side in sides:
        fill(side)
    lost = [lose_first_ledger(side, side.topic, noted=False) for side in sides]
    orphans = {lose_first_ledger(side, side.own_topic, noted=side.name == "newer"): side for side in sides}
    used = [claimed(side) for side in sides]
    assert used[0].isdisjoint(used[1])
    for of_side in used:
        kinds = kinds_of_places(settings, of_side)
        assert {PlaceKind.MANAGED_LEDGER, PlaceKind.CURSOR, PlaceKind.SCHEMA} <= kinds
        assert kinds & {PlaceKind.COMPACTED, PlaceKind.COMPACTED_NOW}
    made_ms = int(time.time() * 1000)
    # Its clock is told in whole seconds, and what is younger is too young.
    eventually(lambda: broker_clock(sides[1].admin) > made_ms)

    scan = OrphanScan(spark, settings)
    result = scan.run(scan.begin())
    planned = {one.ledger_id: one for one in plans_of(settings).all_candidates(result.plan)}
    summary = result.summary
    assert planned.keys() & (used[0] | used[1]) == set()
    expected = {name: TopicName.parse(side.own_topic).managed_ledger for name, side in orphans.items()}
    assert {name: (one.cause, one.holder) for name, one in planned.items()} == {
        name: (Cause.TRIM.value, topic) for name, topic in expected.items()
    }
    # Both clusters have the other topic, and nothing says whose ledgers those were: the later one lies inside the
    # other's list, so that of this topic nothing is planned.
    assert summary.total(LedgerClass.INSIDE_LIST)[0] == 1
    assert [one.ledger_id for one in summary.inside_lists] == [max(lost)]
    assert summary.total(LedgerClass.UNKNOWN_REFERENCES)[0] == 1
    assert [name for name in planned if kinds_of_places(settings, {name})] == []
    assert summary.total(LedgerClass.REFERENCED)[0] >= len(used[0] | used[1])
    unclear = (LedgerClass.UNPARSABLE, LedgerClass.UNKNOWN_OWNER, LedgerClass.FOREIGN)
    assert [summary.total(one)[0] for one in unclear] == [0, 0, 0]
    assert (summary.missing_total, summary.doubts_total) == (0, 0)
    assert len(result.plan.cluster.roots) == 2


@pytest.mark.parametrize("number", [0, 1])
def test_a_scan_that_is_told_of_one_of_the_clusters_does_not_begin(
    older_broker: OlderBroker, settings: Settings, spark: SparkSession, number: int
) -> None:
    urls = (older_broker.beside.store_url, older_broker.store_url)
    store = settings.metadata_store.model_copy(update={"urls": (urls[number],), "bookkeeper_url": urls[0]})
    scan = OrphanScan(spark, settings.model_copy(update={"metadata_store": store}))
    with pytest.raises(RefusedError, match=f"{urls[1 - number]} is the metadata root of"):
        scan.begin()
