"""Policies and permissions of topics, partitioned topics and namespaces: deleted on real brokers, and back."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pulsar
import pytest
from click.testing import CliRunner

from bookwarden.cli.main import cli
from bookwarden.clusters.pulsar.messages.policy_events import LastPolicyEvents
from bookwarden.clusters.pulsar.metadata.paths import managed_ledger_path, namespace_policies_path
from bookwarden.clusters.pulsar.metadata.topic_policies import OWN
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.errors import NotFoundError
from bookwarden.ledgers.trash import KeepRule
from bookwarden.trash.policy_keeper import PolicyKeeper
from bookwarden.wiring.cluster import Cluster
from bookwarden_dev.devcluster import DevCluster
from servers.deletion_site import DeletionSite
from servers.marking_brokers import MarkingGround, marking, nodes_in_outbox, two_phase
from servers.pool import NEWER, ON_OXIA, Clusters
from servers.topic_contents import compact, read_back, retain, send
from servers.trashed_topics import delete, keep_dropped
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]
COUNT = 25
RETENTION = {"retentionTimeInMinutes": 77, "retentionSizeInMB": -1}


class Ground:
    """A namespace that is kept in the trash, and what the sweep's driver would run."""

    def __init__(self, cluster: DevCluster, site: DeletionSite, namespace: str) -> None:
        self.marks = MarkingGround(cluster.connection(), site)
        self.admin = self.marks.admin
        self.client = cluster.connection().client()
        self.namespace = namespace
        self.opened = Cluster(site.settings)
        self.keeper = keep_dropped(self.opened, namespace)
        events = LastPolicyEvents(self.opened.connection, self.admin, self.opened.store)
        self.policies = PolicyKeeper(self.opened.store, self.opened.keep(events), (KeepRule(namespace, 3600),))

    def close(self) -> None:
        self.opened.close()
        self.client.close()
        self.marks.close()

    def run(self, *arguments: str) -> Any:
        """Run a command of `trash`; return what it writes for programs."""
        site = self.marks.site
        settings = {
            "metadata_store.urls": f"['{site.store_url}']",
            "pulsar.service_url": site.service_url,
            "pulsar.admin_url": site.admin_url,
        }
        options = [option for name, value in settings.items() for option in ("--set", f"{name}={value}")]
        result = CliRunner().invoke(cli, ["-o", "json", *options, "trash", *arguments])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def fill(self, topic: str, partitions: int = 0) -> None:
        """Make a topic with a subscription, messages, policies and permissions of its own."""
        path = topic_path(topic)
        if partitions:
            self.admin.put(f"{path}/partitions", partitions)
        self.client.subscribe(topic, "sub", consumer_type=pulsar.ConsumerType.Shared).close()
        send(self.client, topic, COUNT)
        self.admin.post(f"{path}/retention", RETENTION)
        self.admin.post(f"{path}/maxConsumers", 7)
        self.admin.post(f"{path}/permissions/reader", ["consume"])
        eventually(lambda: self.state(topic) == (RETENTION, 7, {"reader": ["consume"]}), 30)

    def state(self, topic: str) -> tuple[Any, Any, Any]:
        """Return the topic's own retention and limit of consumers, and its permissions."""
        path = topic_path(topic)
        found = [self.admin.get_json(f"{path}/{name}") for name in ("retention", "maxConsumers", "permissions")]
        return found[0], found[1], found[2]

    def kept(self) -> None:
        """Have the sweep's driver look, once everything that was dropped is in the trash."""
        eventually(lambda: nodes_in_outbox(self.opened.store) == 0, 30)
        self.keeper.keep_policies(self.policies)


@pytest.fixture(
    scope="module", params=["zookeeper", *(pytest.param(name, marks=pytest.mark.slow) for name in ("nodes", "oxia"))]
)
def cluster(request: pytest.FixtureRequest, clusters: Clusters) -> Iterator[DevCluster]:
    """On 4.0 and 4.2, and with policies of topics in nodes, as 4.2 may keep them."""
    if request.param != "nodes":
        yield clusters.shared(two_phase(ON_OXIA if request.param == "oxia" else None))
        return
    nodes = {"topicPoliciesServiceClassName": NEWER.broker_settings["topicPoliciesServiceClassName"]}
    lines = {"bookwardenMarks": "two-phase", "forceDeleteNamespaceAllowed": "true", **nodes}
    taken = clusters.taken(marking(dataclasses.replace(NEWER, broker_settings={}), **lines))
    yield taken
    taken.kill()


@pytest.fixture
def ground(cluster: DevCluster, make_namespace: Callable[[DevCluster], str], tmp_path: Path) -> Iterator[Ground]:
    site = DeletionSite.of(cluster, make_namespace(cluster), tmp_path)
    with closing(Ground(cluster, site, make_namespace(cluster))) as made:
        yield made


def test_a_deleted_topic_has_its_policies_and_permissions_again(ground: Ground) -> None:
    topic = f"persistent://{ground.namespace}/own"
    other = f"persistent://{ground.namespace}/other"
    for each in (topic, other):
        ground.fill(each)
    ground.keeper.keep_policies(ground.policies)
    delete(ground.opened, topic)
    # What brokers do within a minute: the events of the deleted topic are in no compacted view any more.
    keeps_events = ground.opened.store.get(managed_ledger_path(f"{ground.namespace}/persistent/__change_events"))
    if keeps_events is not None:
        compact(ground.admin, f"persistent://{ground.namespace}/__change_events")
    (listed,) = ground.run("list", topic)["generations"]
    assert listed["missing"] == ["its policies and permissions: the sweep has not looked for them yet"]
    ground.kept()
    (listed,) = ground.run("list", topic)["generations"]
    assert listed["missing"] == []
    (planned,) = ground.run("restore", topic)["topics"]
    node = f"{OWN}/{ground.namespace}/persistent/own"
    assert planned["policies"] == ([topic] if keeps_events is not None else [node])
    assert planned["permissions"] == {topic: {"reader": ["consume"]}}
    (done,) = ground.run("restore", topic, "--execute")["topics"]
    assert (done["problems"], done["gone"]) == ([], [])
    assert ground.state(topic) == ground.state(other) == (RETENTION, 7, {"reader": ["consume"]})
    assert len(read_back(ground.client, topic)) == COUNT
    # They hold for what comes later, too.
    ground.admin.post(f"{topic_path(topic)}/maxConsumers", 8)
    eventually(lambda: ground.state(topic)[1] == 8, 30)


def test_a_partitioned_topic_has_its_node_policies_and_permissions_again(ground: Ground) -> None:
    topic = f"persistent://{ground.namespace}/parted"
    ground.fill(topic, partitions=3)
    ground.admin.put(f"{topic_path(topic)}/properties", {"owner": "me"})
    # Clients may be given those of a partition alone.
    partition = f"{topic}-partition-1"
    ground.admin.post(f"{topic_path(partition)}/permissions/one", ["consume"])
    permissions = ground.admin.get_json(f"{topic_path(partition)}/permissions")
    assert permissions["one"] == ["consume"]
    ground.keeper.keep_policies(ground.policies)
    delete(ground.opened, topic, partitions=3)
    ground.kept()
    assert ground.run("restore", topic, "--execute")["partitions"] == 3
    assert ground.admin.get_json(f"{topic_path(topic)}/partitions")["partitions"] == 3
    assert ground.admin.get_json(f"{topic_path(topic)}/properties") == {"owner": "me"}
    assert ground.state(topic) == (RETENTION, 7, {"reader": ["consume"]})
    assert ground.admin.get_json(f"{topic_path(partition)}/permissions") == permissions
    assert ground.run("list", topic)["generations"] == []
    # And under another name, while somebody makes the topic again.
    ground.keeper.keep_policies(ground.policies)
    delete(ground.opened, topic, partitions=3)
    ground.kept()
    ground.admin.put(f"{topic_path(topic)}/partitions", 2)
    other = f"persistent://{ground.namespace}/renamed"
    assert ground.run("restore", topic, "--as", other, "--execute")["partitions"] == 3
    assert ground.admin.get_json(f"{topic_path(other)}/partitions")["partitions"] == 3
    assert ground.admin.get_json(f"{topic_path(other)}/properties") == {"owner": "me"}
    assert ground.state(other) == (RETENTION, 7, {"reader": ["consume"]})
    assert ground.admin.get_json(f"{topic_path(other)}-partition-1/permissions") == permissions
    assert ground.admin.get_json(f"{topic_path(topic)}/permissions") == {}
    consumer = ground.client.subscribe(other, "sub", consumer_type=pulsar.ConsumerType.Shared)
    found = sorted(int(consumer.receive(timeout_millis=30_000).data()) for _ in range(COUNT))
    assert found == list(range(COUNT))
    consumer.close()
    assert ground.admin.get_json(f"{topic_path(topic)}/partitions")["partitions"] == 2


def test_a_deleted_namespace_comes_back_with_its_topics(ground: Ground) -> None:
    alone, parted = (f"persistent://{ground.namespace}/{name}" for name in ("alone", "parted"))
    ground.fill(alone)
    ground.fill(parted, partitions=2)
    retain(ground.admin, ground.namespace)
    ground.admin.post(f"/namespaces/{ground.namespace}/permissions/writer", ["produce"])
    ground.keeper.keep_policies(ground.policies)
    policies = namespace_policies_path(ground.namespace)
    before = ground.opened.store.get(policies)
    assert before is not None
    ground.admin.delete(f"/namespaces/{ground.namespace}?force=true")
    eventually(lambda: ground.opened.store.get(policies) is None, 30)
    with pytest.raises(NotFoundError):
        ground.admin.get_json(f"/namespaces/{ground.namespace}")
    ground.kept()
    planned = ground.run("restore", "--namespace", ground.namespace)
    assert planned["policies"] == "to be made again"
    done = ground.run("restore", "--namespace", ground.namespace, "--execute")
    restored = {one["topic"]: one["problems"] for one in done["topics"]}
    # Besides the topic by which the test knows that brokers keep what they drop.
    assert {alone, f"{parted}-partition-0", f"{parted}-partition-1"} <= restored.keys()
    assert (done["not_restored"], list(filter(None, restored.values()))) == ({}, [])
    after = ground.opened.store.get(policies)
    assert after is not None
    assert json.loads(after.value) == json.loads(before.value)
    for topic in (alone, parted):
        # With those of the namespace.
        assert ground.state(topic) == (RETENTION, 7, {"reader": ["consume"], "writer": ["produce"]})
        consumer = ground.client.subscribe(topic, "sub", consumer_type=pulsar.ConsumerType.Shared)
        found = sorted(int(consumer.receive(timeout_millis=30_000).data()) for _ in range(COUNT))
        assert found == list(range(COUNT))
        consumer.close()
    assert ground.admin.get_json(f"{topic_path(parted)}/partitions")["partitions"] == 2
