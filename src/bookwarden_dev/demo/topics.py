"""The topics of the demo: filled through a real producer, consumed, and read back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pulsar
from pulsar.schema import Integer, JsonSchema, Record, String

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import read_positions, topic_path
from bookwarden.errors import PulsarError

TENANT = "demo"
# Topics that are trimmed in the store have a namespace of their own, which is unloaded.
NAMESPACES = {
    "orders": "demo/shop",
    "invoices": "demo/shop",
    "archive": "demo/shop",
    "clicks": "demo/site",
    "audit": "demo/site",
    # The broker trims them by itself.
    "feed": "demo/feed",
    "news": "demo/news",
}
ENTRIES_PER_LEDGER = 20
SUBSCRIPTION = "billing"


class Order(Record):  # type: ignore[misc]  # pulsar-client ships no types
    """The messages' schema."""

    number = Integer()
    note = String()


def topic_name(name: str) -> str:
    """Return the full name of one of the demo's topics."""
    return f"persistent://{NAMESPACES[name]}/{name}"


def create_namespaces(admin: PulsarAdmin) -> None:
    """Create tenant and namespaces; by their retention the broker keeps everything, so that trimming is ours."""
    clusters = [name for name in admin.get_json("/clusters") if name != "global"]
    admin.put(f"/tenants/{TENANT}", {"allowedClusters": clusters})
    for namespace in sorted(set(NAMESPACES.values())):
        admin.put(f"/namespaces/{namespace}")
        _retain(admin, namespace, -1)


def keep_nothing(admin: PulsarAdmin, name: str) -> None:
    """Have the broker keep nothing of the topic's namespace that was consumed, once it trims."""
    _retain(admin, NAMESPACES[name], 0)


def trim(admin: PulsarAdmin, name: str) -> None:
    """Have the broker trim the topic now, by the policy that it knows of."""
    admin.post(f"{topic_path(topic_name(name))}/trim")


def keep_all(admin: PulsarAdmin, name: str) -> None:
    """Have the broker trim nothing more in the topic's namespace."""
    _retain(admin, NAMESPACES[name], -1)


def _retain(admin: PulsarAdmin, namespace: str, limit: int) -> None:
    admin.post(f"/namespaces/{namespace}/retention", {"retentionTimeInMinutes": limit, "retentionSizeInMB": limit})


@contextmanager
def _client(connection: PulsarConnection) -> Iterator[pulsar.Client]:
    client = connection.client()
    try:
        yield client
    finally:
        client.close()


def fill(connection: PulsarConnection, name: str, count: int) -> None:
    """Write orders one by one, so that each is an entry, and consume them all on the subscription."""
    with _client(connection) as client:
        schema = JsonSchema(Order)
        consumer = client.subscribe(topic_name(name), SUBSCRIPTION, schema=schema)
        producer = client.create_producer(topic_name(name), schema=schema, batching_enabled=False)
        for number in range(count):
            producer.send(Order(number=number, note=f"order {number} of {name}"))
        last = None
        for _ in range(count):
            last = consumer.receive(timeout_millis=10_000)
        consumer.acknowledge_cumulative(last)


def begin_offload(admin: PulsarAdmin, name: str) -> None:
    """Ask the broker to offload all ledgers of a topic but the last."""
    last = read_positions(admin, topic_name(name)).ledgers[-1].ledger_id
    admin.put(_offload_path(name), {"ledgerId": last, "entryId": 0, "partitionIndex": -1})


def is_offloaded(admin: PulsarAdmin, name: str) -> bool:
    """Return whether the offload is done; raise PulsarError if it failed."""
    answer = admin.get_json(_offload_path(name))
    if answer["status"] == "ERROR":
        raise PulsarError(f"the broker could not offload topic {name}: {answer['lastError']}")
    return bool(answer["status"] == "SUCCESS")


def _offload_path(name: str) -> str:
    return f"{topic_path(topic_name(name))}/offload"


def read_all(connection: PulsarConnection, name: str) -> list[int]:
    """Read the numbers of all orders that are still on a topic."""
    with _client(connection) as client:
        reader = client.create_reader(topic_name(name), pulsar.MessageId.earliest, schema=JsonSchema(Order))
        numbers = []
        while reader.has_message_available():
            numbers.append(reader.read_next(timeout_millis=10_000).value().number)
        return numbers
