"""The node by which brokers that mark know the deletion topic."""

from __future__ import annotations

import json

from bookwarden.clusters.pulsar.broker_marks import provide_deletion_topic_node
from bookwarden.metastore.memory import MemoryStore
from bookwarden.wire.avro import registry_schema
from bookwarden.wire.broker_marks import DELETION_TOPIC_NODE, encode_deletion_topic

TOPIC = "persistent://pulsar/system/__ledger_deletion"


def _value(partitions: int) -> bytes:
    return encode_deletion_topic(
        TOPIC, partitions, registry_schema(), "worker", retry_topic=f"{TOPIC}-RETRY", dlq_topic=f"{TOPIC}-DLQ"
    )


def test_it_is_made_found_and_replaced() -> None:
    store = MemoryStore()
    value = _value(4)
    assert provide_deletion_topic_node(store, value, dry_run=True) == "would create"
    assert store.get(DELETION_TOPIC_NODE) is None
    assert provide_deletion_topic_node(store, value) == "created"
    assert provide_deletion_topic_node(store, value) == "exists"
    other = _value(5)
    assert provide_deletion_topic_node(store, other, dry_run=True) == "would replace"
    assert provide_deletion_topic_node(store, other) == "replaced"
    found = store.get(DELETION_TOPIC_NODE)
    assert found is not None
    assert json.loads(found.value) == {
        "format": 1,
        "topic": TOPIC,
        "partitions": 5,
        "schema": registry_schema(),
        "subscription": "worker",
        "retryTopic": f"{TOPIC}-RETRY",
        "dlqTopic": f"{TOPIC}-DLQ",
    }
