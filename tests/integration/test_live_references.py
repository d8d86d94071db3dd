"""References and ledger metadata read from a real Pulsar, against what its broker says of itself."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pulsar
import pytest
from pulsar.schema import JsonSchema, Record, String

from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.pulsar.managed_ledgers import ManagedLedgers
from bookwarden.clusters.pulsar.references import MetadataReferences
from bookwarden.devcluster import DevCluster
from bookwarden.ledgers.custom_metadata import custom_metadata_mismatch
from bookwarden.ledgers.holders import CursorHolder, LiveReferences, ManagedLedgerHolder, SchemaHolder
from bookwarden.ledgers.metadata import StoredLedger
from bookwarden.ledgers.names import TopicName, encode_local_name
from bookwarden.metastore.urls import open_store

pytestmark = pytest.mark.servers

SUBSCRIPTION = "my sub/1~"


class Order(Record):  # type: ignore[misc]  # the client ships no type information
    """A message with a schema, so that the topic has a schema ledger."""

    item = String()


def internal_stats(cluster: DevCluster, topic: TopicName) -> dict[str, Any]:
    path = f"{topic.tenant}/{topic.namespace}/{topic.local_name}"
    with urllib.request.urlopen(f"{cluster.admin_url}/admin/v2/persistent/{path}/internalStats") as answer:
        stats: dict[str, Any] = json.load(answer)
        return stats


def test_what_the_broker_lists_is_referenced_and_stored(pulsar_cluster: DevCluster, namespace: str) -> None:
    topic = TopicName.parse(f"persistent://{namespace}/orders")
    client = pulsar.Client(pulsar_cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    store = open_store(pulsar_cluster.store_url)
    try:
        consumer = client.subscribe(str(topic), SUBSCRIPTION)
        producer = client.create_producer(str(topic), schema=JsonSchema(Order), batching_enabled=False)
        for index in range(25):
            producer.send(Order(item=str(index)))
            consumer.acknowledge(consumer.receive(timeout_millis=20_000))
        stats = internal_stats(pulsar_cluster, topic)
        data = ManagedLedgerHolder(topic.managed_ledger)
        cursor = CursorHolder(topic.managed_ledger, encode_local_name(SUBSCRIPTION))
        schema = SchemaHolder(topic.schema_id)
        found = MetadataReferences([store]).read([data, cursor, schema])
        of_data, of_cursor, of_schema = found[data], found[cursor], found[schema]
        assert isinstance(of_data, LiveReferences)
        assert isinstance(of_cursor, LiveReferences)
        assert isinstance(of_schema, LiveReferences)
        assert of_data.ledger_ids == {ledger["ledgerId"] for ledger in stats["ledgers"]}
        assert len(of_data.ledger_ids) > 1
        assert of_schema.ledger_ids == {ledger["ledgerId"] for ledger in stats["schemaLedgers"]}
        assert of_schema.ledger_ids
        (name,) = ManagedLedgers(store).cursors(topic.managed_ledger)
        assert name == cursor.cursor
        cursor_ledger = stats["cursors"][name]["cursorLedger"]
        assert cursor_ledger in of_cursor.ledger_ids
        stored = {}
        for holder, ids in ((data, of_data.ledger_ids), (cursor, {cursor_ledger}), (schema, of_schema.ledger_ids)):
            for reading in BookKeeperCatalog(store).read_many(sorted(ids)):
                assert isinstance(reading, StoredLedger)
                assert custom_metadata_mismatch(holder, reading.metadata.custom) is None
                stored[reading.ledger_id] = reading
        assert len(stored) == len(of_data.ledger_ids | of_schema.ledger_ids) + 1
    finally:
        client.close()
        store.close()
