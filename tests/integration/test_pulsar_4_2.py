"""Pulsar 4.2: what it refers to its ledgers by is read as that of 4.0, and each kind is marked and swept."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

import pulsar
import pytest
from click.testing import CliRunner
from pulsar.schema import StringSchema
from pyspark.sql import SparkSession

from bookwarden.cli.main import cli
from bookwarden.cluster_migration.sides.policies import topic_settings
from bookwarden.clusters.pulsar.messages.topic_policies import read_topic_quorums
from bookwarden.clusters.pulsar.metadata.managed_ledgers import ManagedLedgers
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.clusters.pulsar.rest.topics import Topics
from bookwarden.config import ClusterMigrationSettings, GreenSideSettings, Settings
from bookwarden.deletion.phase_one.named_ledgers import marks_of_ids
from bookwarden.java import find_java
from bookwarden.ledgers.kinds import LedgerComponent, PlaceKind
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.wire.pb import managed_ledger_pb2
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.cluster_migration import ClusterMigration
from bookwarden.wiring.deletion import PhaseOne
from bookwarden_dev.devcluster import DevCluster
from bookwarden_dev.devcluster.releases.distribution import ensure_jars
from servers.broker_claims import (
    assert_every_claimed_ledger_is_found,
    assert_references_are_the_brokers,
    claimed_ledgers,
    unfound,
)
from servers.deletion_site import DeletionSite
from servers.pool import NEWER, Clusters
from servers.sweeping_site import SweepingSite
from servers.topic_contents import compact, listed, managed_ledger_of, retain, send, send_keyed
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cluster(clusters: Clusters) -> DevCluster:
    return clusters.shared(NEWER)


@pytest.fixture
def namespace(cluster: DevCluster, make_namespace: Callable[[DevCluster], str]) -> str:
    return make_namespace(cluster)


@pytest.fixture
def deletion_site(cluster: DevCluster, namespace: str, tmp_path: Path) -> DeletionSite:
    made = DeletionSite.of(cluster, namespace, tmp_path)
    made.create_topics()
    return made


@pytest.fixture
def site(deletion_site: DeletionSite) -> Iterator[SweepingSite]:
    with SweepingSite(deletion_site.settings) as made:
        yield made


@pytest.fixture
def admin(cluster: DevCluster) -> Iterator[PulsarAdmin]:
    with closing(PulsarAdmin(cluster.connection(), timeout_s=60)) as made:
        yield made


@pytest.fixture
def client(cluster: DevCluster) -> Iterator[pulsar.Client]:
    with closing(cluster.connection().client()) as made:
        yield made


def test_the_broker_is_of_that_version(admin: PulsarAdmin) -> None:
    assert admin.request("GET", "/brokers/version", ok=(200,)).data == b"4.2.4"


def test_every_ledger_that_the_broker_names_is_found_in_the_metadata(
    site: SweepingSite, admin: PulsarAdmin, client: pulsar.Client, namespace: str
) -> None:
    assert_every_claimed_ledger_is_found(site, admin, client, f"persistent://{namespace}/a b~1")


def test_the_ledgers_of_transactions_are_found_in_the_metadata(
    cluster: DevCluster, site: SweepingSite, admin: PulsarAdmin, namespace: str, tmp_path: Path
) -> None:
    topic, subscription = f"persistent://{namespace}/transacted", "a sub"
    source = Path(__file__).parents[1] / "java/Transactions.java"
    command = [find_java().executable, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{ensure_jars() / 'lib'}/*"]
    command += [str(source), cluster.service_url, topic, subscription]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr[-3000:]
    # Managed ledgers both, and no topics: the log of a coordinator, and that of what is acknowledged in transactions.
    coordinators = admin.get_json("/admin/v3/transactions/coordinatorStats")
    assert coordinators
    paths = [f"coordinatorInternalStats/{number}" for number in coordinators]
    paths.append(f"pendingAckInternalStats/{namespace}/transacted/{quote(subscription)}")
    for path in paths:
        found = admin.get_json(f"/admin/v3/transactions/{path}", params={"metadata": True})
        (log,) = (stats["managedLedgerInternalStats"] for stats in found.values())
        claimed = {ledger["ledgerId"] for ledger in log["ledgers"]}
        assert claimed
        assert not unfound(site, claimed), path


def test_what_the_broker_lists_is_referenced_and_stored(cluster: DevCluster, namespace: str) -> None:
    assert_references_are_the_brokers(cluster, namespace)


def test_policies_of_topics_are_read_from_the_metadata_store(
    cluster: DevCluster, deletion_site: DeletionSite, site: SweepingSite, admin: PulsarAdmin, namespace: str
) -> None:
    topic, other = f"persistent://{namespace}/a b+é", f"persistent://{namespace}/other"
    quorums = {"bookkeeperEnsemble": 5, "bookkeeperWriteQuorum": 3, "bookkeeperAckQuorum": 2}
    retention = {"retentionTimeInMinutes": 60, "retentionSizeInMB": 100}
    quota = {"limitSize": 1000, "limitTime": -1, "policy": "producer_exception"}
    for name in (topic, other):
        admin.put(topic_path(name))
    admin.post(f"{topic_path(topic)}/persistence", {**quorums, "managedLedgerMaxMarkDeleteRate": 0})
    admin.post(f"{topic_path(topic)}/backlogQuota", quota, params={"backlogQuotaType": "destination_storage"})
    admin.post(f"{topic_path(other)}/retention", retention, params={"isGlobal": True})
    # The precheck of a switch asks for these.
    found = read_topic_quorums(site.opened.store, cluster.connection(), admin)
    assert [one for one in found.asked if namespace in one[0]] == [(topic, (5, 3, 2))]
    assert found.unread == ()
    # The cluster as both sides of a migration: what pre-flight and preparation see of its topics.
    with ClusterMigration(of_itself(deletion_site.settings)) as context:
        seen = context.preflight.observe([namespace])
    for side in (seen.blue, seen.green):
        of_side = side.namespaces[namespace]
        assert of_side.policy_errors == ()
        told = {name: topic_settings(policies) for name, policies in of_side.topic_policies.items()}
        assert set(told) == {topic, other}
        assert quorums.items() <= told[topic]["persistence"].items()
        assert told[topic]["backlogQuota/destination_storage"] == quota
        assert told[other] == {"retention": retention}


def of_itself(settings: Settings) -> Settings:
    """Make the settings' cluster both sides of a migration."""
    green = GreenSideSettings(pulsar=settings.pulsar, metadata_store=settings.metadata_store)
    return settings.model_copy(update={"cluster_migration": ClusterMigrationSettings(green=green)})


def used_ledgers(site: SweepingSite, admin: PulsarAdmin, topic: str) -> dict[LedgerComponent, set[int]]:
    """Give the ledgers of a topic, by kind."""
    cursors = [found.info for found in ManagedLedgers(site.opened.store).cursors(managed_ledger_of(topic)).values()]
    stats = Topics(admin).internal_stats(topic)
    return {
        LedgerComponent.MANAGED_LEDGER: set(listed(site, topic)),
        LedgerComponent.MANAGED_CURSOR: {cursor.cursors_ledger_id for cursor in cursors if cursor.cursors_ledger_id},
        LedgerComponent.SCHEMA_STORAGE: {ledger["ledgerId"] for ledger in stats["schemaLedgers"]},
        LedgerComponent.COMPACTED_LEDGER: {stats["compactedLedger"]["ledgerId"]},
        LedgerComponent.DELAYED_INDEX_BUCKET: {bucket for cursor in cursors for bucket in cursor.delayed_bucket_ids},
    }


def places_of(site: SweepingSite, ledger_ids: set[int]) -> set[PlaceKind]:
    """Say which kinds of places name any of the ledgers, in all of the metadata."""
    return {named.place.kind for ledger_id in ledger_ids for named in site.explain(ledger_id).everywhere or ()}


def test_ledgers_of_each_kind_are_kept_in_use_and_marked_and_swept_with_their_topic(
    deletion_site: DeletionSite,
    site: SweepingSite,
    admin: PulsarAdmin,
    client: pulsar.Client,
    namespace: str,
    spark: SparkSession,
) -> None:
    topic = f"persistent://{namespace}/everything"
    retain(admin, namespace)
    consumer = client.subscribe(topic, "my sub", pulsar.ConsumerType.Shared)
    client.create_producer(topic, schema=StringSchema()).close()
    send_keyed(client, topic, 25)
    consumer.acknowledge(consumer.receive(60_000))
    send(client, topic, 25, deliver_after=timedelta(hours=1))
    compact(admin, topic)
    eventually(lambda: all(used_ledgers(site, admin, topic).values()), 60)
    consumer.close()
    used = used_ledgers(site, admin, topic)
    assert len(used[LedgerComponent.MANAGED_LEDGER]) > 2
    rows = site.sweep(*marks_of_ids(site.opened.bookkeeper.catalog, sorted(set().union(*used.values()))))
    assert {row.component: set() for row in rows} == {component.name: set() for component in used}
    assert {row.outcome for row in rows} == {Outcome.STILL_REFERENCED}
    assert {component: places_of(site, ids) for component, ids in used.items()} == {
        LedgerComponent.MANAGED_LEDGER: {PlaceKind.MANAGED_LEDGER},
        LedgerComponent.MANAGED_CURSOR: {PlaceKind.CURSOR},
        LedgerComponent.SCHEMA_STORAGE: {PlaceKind.SCHEMA},
        # The last entry of its cursor's ledger: the node does not name it before the cursor has a ledger anew.
        LedgerComponent.COMPACTED_LEDGER: {PlaceKind.COMPACTED_NOW},
        LedgerComponent.DELAYED_INDEX_BUCKET: {PlaceKind.BUCKET},
    }

    ledgers = {ledger_id: site.stored(ledger_id) for ids in used.values() for ledger_id in ids}
    with Cluster(deletion_site.settings) as opened:
        phase_one = PhaseOne(opened)
        result = phase_one.removal.plan_topic(topic).carry_out()
    assert result.done, result.problem
    assert {(mark.component, mark.ledger_id) for mark in result.plan.marks} == {
        (component, ledger_id) for component, ids in used.items() for ledger_id in ids
    }
    # The broker deletes them too: it failed to, as far as the sweep sees.
    eventually(lambda: not any(site.exists(ledger_id) for ledger_id in ledgers), 60)
    for ledger in ledgers.values():
        site.put_back(ledger)
    deletion_site.sweep_once(spark)
    assert deletion_site.counts() == {"deleted": len(ledgers)}
    assert not any(site.exists(ledger_id) for ledger_id in ledgers)
    assert deletion_site.backlog() == 0


def test_properties_of_a_ledger_are_kept_when_another_ledger_is_taken_from_the_node(
    site: SweepingSite, admin: PulsarAdmin, client: pulsar.Client, namespace: str
) -> None:
    topic = f"persistent://{namespace}/noted"
    retain(admin, namespace)
    send(client, topic, 25)
    store, managed_ledgers = site.opened.store, ManagedLedgers(site.opened.store)
    admin.put(f"{topic_path(topic)}/unload")
    node = managed_ledgers.read(managed_ledger_of(topic))
    assert node is not None
    message = managed_ledger_pb2.ManagedLedgerInfo.FromString(node.raw)
    message.ledgerInfo[1].properties.add(key="why", value="kept é")
    store.put(node.path, message.SerializeToString(), node.version)
    first, noted = (ledger.ledgerId for ledger in message.ledgerInfo[:2])
    # The broker understands it, and writes it again when it adds a ledger.
    assert properties_of(admin, topic)[noted] == {"why": "kept é"}
    send(client, topic, 1)
    admin.put(f"{topic_path(topic)}/unload")
    rewritten = managed_ledgers.read(managed_ledger_of(topic))
    assert rewritten is not None
    assert rewritten.version > node.version + 1
    assert [ledger.ledger_id for ledger in rewritten.info.ledgers][:2] == [first, noted]
    managed_ledgers.remove_ledgers(rewritten, [first])
    found = properties_of(admin, topic)
    assert first not in found
    assert found[noted] == {"why": "kept é"}
    assert claimed_ledgers(Topics(admin).internal_stats(topic)) == set(listed(site, topic))


def properties_of(admin: PulsarAdmin, topic: str) -> dict[int, dict[str, str]]:
    return {
        ledger["ledgerId"]: ledger.get("properties") or {} for ledger in Topics(admin).internal_stats(topic)["ledgers"]
    }


def test_the_commands_show_and_read_its_ledgers(
    cluster: DevCluster, site: SweepingSite, admin: PulsarAdmin, client: pulsar.Client, namespace: str
) -> None:
    topic = f"persistent://{namespace}/read"
    retain(admin, namespace)
    send(client, topic, 15)
    ledger_id = listed(site, topic)[0]

    def command(*arguments: str) -> str:
        ended = CliRunner().invoke(cli, ["--set", f"metadata_store.urls=['{cluster.store_url}']", *arguments])
        assert ended.exit_code == 0, ended.output
        return ended.stdout

    shown = command("ledger", "show", str(ledger_id))
    assert "closed" in shown
    assert managed_ledger_of(topic) in shown
    rows = [json.loads(line) for line in command("-o", "json", "ledger", "read", str(ledger_id)).splitlines()]
    assert [row["entry_id"] for row in rows] == list(range(10))
    # An entry ends with the message.
    assert [base64.b64decode(row["payload_base64"])[-1:].decode() for row in rows] == list("0123456789")
