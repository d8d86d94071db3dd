"""Names that URLs and Pulsar's own codec encode: each subscription is made, found, moved and deleted as named."""

from __future__ import annotations

import pytest

from bookwarden.clusters.pulsar.rest.topic_positions import (
    create_subscription,
    list_topics,
    move_subscription,
    read_positions,
)
from bookwarden.clusters.pulsar.rest.topics import Topics
from bookwarden.ledgers.managed_ledger import Position

pytestmark = pytest.mark.servers

TOPICS = ("a+b", "50%", "half%2Fway", "%252F", "über straße", "日本語~*()!'", "x=1&y=2#z?q;v:w@")
SUBSCRIPTIONS = (*TOPICS, "left/right", "/", "a\\b", "trailing/..")


def test_subscriptions_of_any_name_on_topics_of_any_name(admin, client, namespace):
    topics = Topics(admin)
    names = {f"persistent://{namespace}/{local}" for local in TOPICS}
    for topic in sorted(names):
        topics.create(topic)
        producer = client.create_producer(topic)
        entries = [producer.send(str(number).encode()) for number in range(3)]
        first = Position(entries[0].ledger_id(), entries[0].entry_id())
        last = Position(entries[2].ledger_id(), entries[2].entry_id())
        assert topics.partitions(topic) == [topic]
        for subscription in SUBSCRIPTIONS:
            assert create_subscription(admin, topic, subscription, first), (topic, subscription)
            assert not create_subscription(admin, topic, subscription, first), (topic, subscription)
        assert read_positions(admin, topic).cursors == dict.fromkeys(SUBSCRIPTIONS, first)
        assert sorted(topics.subscriptions(topic)) == sorted(SUBSCRIPTIONS)
        # What a client means by these names is the same.
        consumer = client.subscribe(topic, SUBSCRIPTIONS[-1])
        assert consumer.receive(10_000).data() == b"1"
        consumer.close()
        for subscription in SUBSCRIPTIONS:
            move_subscription(admin, topic, subscription, last)
        assert read_positions(admin, topic).cursors == dict.fromkeys(SUBSCRIPTIONS, last)
        for subscription in SUBSCRIPTIONS:
            topics.delete_subscription(topic, subscription, force=False)
        assert topics.subscriptions(topic) == []
        producer.close()
    tenant, _, name = namespace.partition("/")
    assert set(list_topics(admin, tenant, name)) == names
    for topic in names:
        topics.delete_topic(topic, force=False)
    assert list_topics(admin, tenant, name) == []


def test_a_partitioned_topic_of_any_name_is_listed_by_its_partitions(admin, namespace):
    topics = Topics(admin)
    for local in TOPICS:
        topic = f"persistent://{namespace}/{local}"
        topics.create(topic, 2)
        assert topics.partitions(topic) == [f"{topic}-partition-0", f"{topic}-partition-1"]
        assert topics.partition_count(topic) == 2
        topics.delete_topic(topic, force=False)
