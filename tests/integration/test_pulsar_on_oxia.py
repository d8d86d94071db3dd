"""A Pulsar without ZooKeeper: its broker and its bookie keep their metadata in Oxia."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing

import pulsar
import pytest

from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topics import Topics
from bookwarden.devcluster import ClusterOptions, DevCluster
from bookwarden.devcluster.servers.oxia import ensure_oxia
from bookwarden.devcluster.servers.oxia_client import OxiaClient

# The first start on a machine builds Oxia.
pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(1800)]

TOPIC = "persistent://public/default/on oxia"
# Longer than any restart: what a killed server left in Oxia is still there when it comes back.
OPTIONS = ClusterOptions(pulsar="4.2.4", metadata="oxia", oxia_shards=2, max_entries_per_ledger=10, session_seconds=60)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    with DevCluster(tmp_path_factory.mktemp("pulsar"), OPTIONS) as made:
        yield made


@pytest.fixture(scope="module")
def oxia(cluster: DevCluster) -> OxiaClient:
    found = re.fullmatch(r"oxia://([^/]+)/default", cluster.store_url)
    assert found is not None
    return OxiaClient(ensure_oxia(), found[1])


def subscribe(client: pulsar.Client, topic: str) -> pulsar.Consumer:
    """Read from the beginning, and keep from now on what is not acknowledged."""
    return client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)


def send(client: pulsar.Client, topic: str, count: int) -> None:
    with closing(client.create_producer(topic, batching_enabled=False, send_timeout_millis=60_000)) as producer:
        for number in range(count):
            producer.send(b"%d" % number)


@pytest.fixture
def client(cluster: DevCluster) -> Iterator[pulsar.Client]:
    with closing(cluster.connection().client(operation_timeout_seconds=60)) as made:
        yield made


def ledgers(cluster: DevCluster, topic: str) -> list[int]:
    with closing(PulsarAdmin(cluster.connection(), timeout_s=60)) as admin:
        return [ledger["ledgerId"] for ledger in Topics(admin).internal_stats(topic)["ledgers"]]


def test_topics_and_ledgers_are_in_oxia_and_no_zookeeper_runs(
    cluster: DevCluster, oxia: OxiaClient, client: pulsar.Client
) -> None:
    assert [server.name for server in cluster.servers] == ["oxia", "bookie", "broker"]
    consumer = subscribe(client, TOPIC)
    send(client, TOPIC, 25)
    assert [consumer.receive(60_000).data() for _ in range(25)] == [b"%d" % number for number in range(25)]
    folder = "/managed-ledgers/public/default/persistent/"
    assert f"{folder}on+oxia" in oxia.keys(folder, f"{folder}/")
    used = ledgers(cluster, TOPIC)
    assert len(used) == 3
    for ledger_id in used:
        path = ledger_path("/ledgers", ledger_id)
        parent = path.rpartition("/")[0]
        assert path in oxia.keys(f"{parent}/", f"{parent}//")


def test_a_killed_bookie_comes_back_and_all_of_it_after_a_crash(cluster: DevCluster, client: pulsar.Client) -> None:
    topic = f"{TOPIC} again"
    subscribe(client, topic).close()
    send(client, topic, 5)
    cluster.bookie.kill()
    cluster.bookie.start()
    send(client, topic, 5)
    cluster.kill()
    cluster.up()
    send(client, topic, 5)
    consumer = subscribe(client, topic)
    assert [consumer.receive(60_000).data() for _ in range(15)] == [b"%d" % number for number in range(5)] * 3
