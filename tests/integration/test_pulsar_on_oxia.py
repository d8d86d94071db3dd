"""A Pulsar without ZooKeeper: its broker and its bookie keep their metadata in Oxia."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing

import pulsar
import pytest

from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topics import Topics
from bookwarden_dev.devcluster import DevCluster
from bookwarden_dev.devcluster.servers.oxia import OxiaClient, ensure_oxia
from servers.pulsar_topics import unload

# The first start on a machine builds Oxia.
pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture
def topic(oxia_cluster: DevCluster, make_namespace: Callable[[DevCluster], str]) -> str:
    return f"persistent://{make_namespace(oxia_cluster)}/on oxia"


def subscribe(client: pulsar.Client, topic: str) -> pulsar.Consumer:
    """Read from the beginning, and keep from now on what is not acknowledged."""
    return client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)


def send(client: pulsar.Client, topic: str, numbers: range) -> None:
    with closing(client.create_producer(topic, batching_enabled=False, send_timeout_millis=60_000)) as producer:
        for number in numbers:
            producer.send(b"%d" % number)


@pytest.fixture
def client(oxia_cluster: DevCluster) -> Iterator[pulsar.Client]:
    with closing(oxia_cluster.connection().client(operation_timeout_seconds=60)) as made:
        yield made


def ledgers(admin: PulsarAdmin, topic: str) -> list[int]:
    return [ledger["ledgerId"] for ledger in Topics(admin).internal_stats(topic)["ledgers"]]


def test_topics_and_ledgers_are_in_oxia_and_no_zookeeper_runs(
    oxia_cluster: DevCluster, client: pulsar.Client, topic: str
) -> None:
    assert [server.name for server in oxia_cluster.servers] == ["oxia", "bookie", "broker"]
    found = re.fullmatch(r"oxia://([^/]+)/default", oxia_cluster.store_url)
    assert found is not None
    oxia = OxiaClient(ensure_oxia(), found[1])
    subscribe(client, topic).close()
    with closing(PulsarAdmin(oxia_cluster.connection(), timeout_s=60)) as admin:
        for numbers in (range(10), range(10, 20)):
            send(client, topic, numbers)
            unload(admin, topic)
        send(client, topic, range(20, 25))
        # A consumer would have been sent again what it had not acknowledged when the topic was unloaded.
        consumer = subscribe(client, topic)
        assert [consumer.receive(60_000).data() for _ in range(25)] == [b"%d" % number for number in range(25)]
        used = ledgers(admin, topic)
    folder = f"/managed-ledgers/{topic.removeprefix('persistent://').rpartition('/')[0]}/persistent/"
    assert f"{folder}on+oxia" in oxia.keys(folder, f"{folder}/")
    assert len(used) == 3
    for ledger_id in used:
        path = ledger_path("/ledgers", ledger_id)
        parent = path.rpartition("/")[0]
        assert path in oxia.keys(f"{parent}/", f"{parent}//")


def test_a_killed_bookie_comes_back_and_all_of_it_after_a_crash(
    oxia_cluster: DevCluster, client: pulsar.Client, topic: str
) -> None:
    subscribe(client, topic).close()
    send(client, topic, range(5))
    oxia_cluster.bookie.kill()
    oxia_cluster.bookie.start()
    send(client, topic, range(5))
    oxia_cluster.kill()
    oxia_cluster.up()
    send(client, topic, range(5))
    consumer = subscribe(client, topic)
    assert [consumer.receive(60_000).data() for _ in range(15)] == [b"%d" % number for number in range(5)] * 3
