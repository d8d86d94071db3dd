"""The decoders on what a running Pulsar has in its metadata store, held against what the broker itself says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pulsar
import pytest
from kazoo.client import KazooClient
from pulsar.schema import StringSchema

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.ledgers.names import TopicName
from bookwarden.wire.cursor import decode_cursor
from bookwarden.wire.ledger_metadata import decode_ledger_metadata
from bookwarden.wire.managed_ledger import decode_managed_ledger
from bookwarden.wire.schema_locator import decode_schema_locator
from bookwarden_dev.devcluster.cluster import DevCluster
from servers.waiting import eventually

pytestmark = pytest.mark.servers

SUBSCRIPTION = "sub/one é"
ENTRIES_PER_LEDGER = 10


@dataclass
class Written:
    """A topic that was written to, its metadata store, and the broker's statement about it."""

    topic: TopicName
    zookeeper: KazooClient
    stats: dict[str, Any]

    def read(self, path: str) -> bytes:
        value: bytes = self.zookeeper.get(path)[0]
        return value

    def ledger(self, ledger_id: int) -> bytes:
        digits = f"{ledger_id:010d}"
        return self.read(f"/ledgers/{digits[:2]}/{digits[2:6]}/L{digits[6:]}")


@pytest.fixture
def written(pulsar_cluster: DevCluster, namespace: str) -> Iterator[Written]:
    topic = TopicName.parse(f"persistent://{namespace}/real bytes~1")
    with closing(pulsar.Client(pulsar_cluster.service_url)) as client:
        consumer = client.subscribe(str(topic), SUBSCRIPTION, schema=StringSchema())
        producer = client.create_producer(str(topic), schema=StringSchema())
        # The last ledger has room left and the first is still needed: nothing rolls or is trimmed while a test looks.
        for number in range(2 * ENTRIES_PER_LEDGER + 5):
            producer.send(f"message {number}")
        for _ in range(5):
            consumer.acknowledge(consumer.receive(10_000))
        zookeeper = KazooClient(pulsar_cluster.store_url.removeprefix("zk:"))
        zookeeper.start()
        with closing(PulsarAdmin(PulsarConnection(pulsar_cluster.service_url, pulsar_cluster.admin_url))) as admin:
            path = topic.managed_ledger.replace("+", "%20").replace("/persistent/", "/").split("/", 2)
            internal_stats = f"/admin/v2/persistent/{path[0]}/{path[1]}/{path[2]}/internalStats"
            # The broker makes the cursor's ledger after the first acknowledgement, in its own time.
            stats = eventually(lambda: _with_cursor_ledger(admin.get_json(internal_stats)))
        yield Written(topic, zookeeper, stats)
        zookeeper.stop()
        zookeeper.close()


def _with_cursor_ledger(stats: dict[str, Any]) -> dict[str, Any] | None:
    return stats if all(cursor["cursorLedger"] != -1 for cursor in stats["cursors"].values()) else None


def test_the_managed_ledger_lists_what_the_broker_says(written: Written) -> None:
    info = decode_managed_ledger(written.read(f"/managed-ledgers/{written.topic.managed_ledger}"))
    assert len(info.ledgers) == 3
    assert [ledger.ledger_id for ledger in info.ledgers] == [one["ledgerId"] for one in written.stats["ledgers"]]


def test_the_cursor_has_the_ledger_that_the_broker_says(written: Written) -> None:
    (name,) = written.stats["cursors"]
    cursor = decode_cursor(written.read(f"/managed-ledgers/{written.topic.managed_ledger}/{name}"))
    assert cursor.cursors_ledger_id == written.stats["cursors"][name]["cursorLedger"]


def test_the_schema_has_the_ledgers_that_the_broker_says(written: Written) -> None:
    locator = decode_schema_locator(written.read(f"/schemas/{written.topic.schema_id}"))
    assert locator.ledger_ids == {one["ledgerId"] for one in written.stats["schemaLedgers"]}


def test_the_ledgers_name_the_topic_they_belong_to(written: Written) -> None:
    for one in written.stats["ledgers"]:
        custom = decode_ledger_metadata(written.ledger(one["ledgerId"])).custom
        assert custom["application"] == b"pulsar"
        assert custom["pulsar/managed-ledger"] == written.topic.managed_ledger.encode()
    for one in written.stats["schemaLedgers"]:
        custom = decode_ledger_metadata(written.ledger(one["ledgerId"])).custom
        assert custom["pulsar/schemaId"] == written.topic.schema_id.encode()
