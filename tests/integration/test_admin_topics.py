"""Retry topic, DLQ and backlog on a real cluster: what is sent on keeps its bytes, its schema and its count."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pulsar
import pytest

from bookwarden.clusters.pulsar.messages.mark_sender import PendingDeletionSender
from bookwarden.clusters.pulsar.messages.readers import DeadLetterTopic
from bookwarden.clusters.pulsar.messages.retries import RetrySender
from bookwarden.clusters.pulsar.metadata.ownership import BundleOwnership
from bookwarden.clusters.pulsar.rest.backlog import SubscriptionBacklog
from bookwarden.clusters.pulsar.rest.schemas import SchemaRegistry
from bookwarden.clusters.pulsar.rest.topic_positions import read_positions, topic_path
from bookwarden.clusters.pulsar.rest.topics import Topics
from bookwarden.deletion.dead_letters import DeadLetters
from bookwarden.deletion.inflight import count_in_flight
from bookwarden.errors import NotFoundError, PulsarConflictError, PulsarUnavailableError
from bookwarden.ledgers.kinds import LedgerComponent
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.ledgers.pending_deletion import LedgerType, PendingDeletion
from bookwarden.ledgers.received import ReceivedMark
from bookwarden.metastore.urls import open_store
from bookwarden.wire.avro import PendingDeletionCodec, parse_writer_schema
from servers.waiting import eventually

pytestmark = pytest.mark.servers

SUBSCRIPTION = "worker"
MARK = PendingDeletion("persistent://t/n/a", LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, 7, marked_at=5)


@pytest.fixture
def topic(admin, client, namespace) -> str:
    """A deletion topic of two partitions with its retry topic and DLQ, all with the subscription."""
    name = f"persistent://{namespace}/deletion"
    Topics(admin).create(name, 2)
    for suffix in ("-RETRY", "-DLQ"):
        Topics(admin).create(name + suffix, 1)
    for each in (name, f"{name}-RETRY", f"{name}-DLQ"):
        client.subscribe(each, SUBSCRIPTION).close()
    return name


@pytest.fixture
def outbox(pulsar_cluster, admin, topic) -> Iterator[RetrySender]:
    retry_topic, dlq_topic = f"{topic}-RETRY", f"{topic}-DLQ"
    made = RetrySender(
        pulsar_cluster.connection(), retry_topic, dlq_topic, SUBSCRIPTION, registry=SchemaRegistry(admin)
    )
    yield made
    made.close()


@pytest.fixture
def dead_letters(pulsar_cluster, admin, topic) -> DeadLetters:
    return DeadLetters(DeadLetterTopic(pulsar_cluster.connection(), admin, f"{topic}-DLQ", topic, SUBSCRIPTION))


def received(topic: str, number: int = 0, **changes: object) -> ReceivedMark:
    values = {
        "topic": f"{topic}-partition-1",
        "message_id": f"5:{number}:1",
        "key": "t/n/persistent/a",
        "payload": b"\x00\xff{not to be changed",
        "properties": {"theirs": "kept"},
        "published_at": 1_000,
        "event_time": 77,
    }
    return ReceivedMark(**{**values, **changes})


def read_one(client: pulsar.Client, topic: str) -> pulsar.Message:
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    message = reader.read_next(10_000)
    reader.close()
    return message


def test_a_retry_keeps_the_message_and_counts_as_the_java_client_does(client, outbox, topic):
    read_at = "1700000000000"
    outbox.retry(received(topic, properties={"theirs": "kept", "bookwarden.first-read": read_at}), 60.0, "store away")
    outbox.flush()
    message = read_one(client, f"{topic}-RETRY-partition-0")
    assert (message.data(), message.partition_key(), message.event_timestamp()) == (
        b"\x00\xff{not to be changed",
        "t/n/persistent/a",
        77,
    )
    properties = message.properties()
    assert properties.pop("bookwarden.first-read") == read_at
    assert properties == {
        "theirs": "kept",
        "RECONSUMETIMES": "1",
        "DELAY_TIME": "60000",
        "REAL_TOPIC": topic,
        "REAL_SUBSCRIPTION": SUBSCRIPTION,
        "ORIGIN_MESSAGE_ID": "5:0:1",
        "ORIGIN_MESSAGE_IDY_TIME": "5:0:1",
        "bookwarden.first-published": "1000",
        "bookwarden.reason": "store away",
    }


def test_a_letter_fits_whatever_it_carries(client, outbox, topic, dead_letters):
    payload, long = b"x" * (5 * 1024 * 1024 - 1), "why " * 2_000_000
    theirs = {"theirs": long, "bookwarden.waives": "emptied"}
    outbox.give_up(received(topic, payload=payload), Outcome.MALFORMED, long)
    outbox.give_up(received(topic, 1, payload=payload, properties=theirs, key=long), Outcome.GAVE_UP, "why")
    outbox.flush()
    whole, without = dead_letters.read()
    assert [letter.received.payload == payload for letter in (whole, without)] == [True, True]
    # Foreign properties go first, then the reason is cut.
    assert ("theirs" in whole.received.properties, len(whole.reason) <= 6 * 1024) == (False, True)
    assert whole.reason.endswith("... (8,000,000 bytes)")
    assert (without.received.properties["bookwarden.waives"], without.received.key[:7]) == ("emptied", "sha256:")
    assert "theirs" not in without.received.properties
    list(dead_letters.drop())


def test_a_second_retry_counts_on_and_keeps_the_first_origin(client, outbox, topic):
    first = {"RECONSUMETIMES": "4", "REAL_TOPIC": "persistent://x/y/first", "ORIGIN_MESSAGE_ID": "1:1:0"}
    begun = int(time.time() * 1000)
    outbox.retry(received(f"{topic}-RETRY", properties=first), 1.0, "again")
    outbox.flush()
    found = read_one(client, f"{topic}-RETRY-partition-0").properties()
    assert found["RECONSUMETIMES"] == "5"
    assert begun <= int(found["bookwarden.first-read"]) <= time.time() * 1000
    assert (found["REAL_TOPIC"], found["ORIGIN_MESSAGE_ID"]) == ("persistent://x/y/first", "1:1:0")


def test_a_retry_is_not_due_before_its_delay(admin, outbox, topic):
    outbox.retry(received(topic), 60.0, "store away")
    outbox.flush()
    partition = f"{topic}-RETRY-partition-0"
    last = read_positions(admin, partition).latest
    path = f"/persistent/{topic.partition('://')[2]}-RETRY-partition-0/ledger/{last.ledger_id}/entry/{last.entry_id}"
    assert "X-Pulsar-deliver-at-time" in admin.request("GET", path).headers


def test_what_is_sent_on_can_be_decoded_by_the_schema_of_its_new_topic(pulsar_cluster, admin, client, outbox, topic):
    other = {
        "type": "record",
        "name": "PendingDeleteLedgerInfo",
        "fields": [
            {"name": "ledgerId", "type": "long"},
            {"name": "topicName", "type": "string"},
            {"name": "ledgerComponent", "type": "string"},
            {"name": "ledgerType", "type": "string"},
        ],
    }
    registry = SchemaRegistry(admin)
    with PendingDeletionSender(pulsar_cluster.connection(), topic, PendingDeletionCodec()) as sender:
        assert sender.send_all([MARK]) == [None]
    producer = client.create_producer(topic, schema=pulsar.schema.AvroSchema(None, schema_definition=other))
    producer.send(
        {"ledgerId": 9, "topicName": MARK.topic_name, "ledgerComponent": "MANAGED_LEDGER", "ledgerType": "LEDGER"}
    )
    for version in (1, 0):
        raw = b"\x12$persistent://t/n/a\x1cMANAGED_LEDGER\x0cLEDGER" if version else PendingDeletionCodec().encode(MARK)
        outbox.retry(received(topic, payload=raw, schema_version=version.to_bytes(8, "big")), 0, "again")
    outbox.flush()
    reader = client.create_reader(f"{topic}-RETRY-partition-0", pulsar.MessageId.earliest)
    decoded = []
    for _ in range(2):
        message = reader.read_next(10_000)
        found = registry.written_with(f"{topic}-RETRY", message._message.int_schema_version().to_bytes(8, "big"))
        decoded.append(PendingDeletionCodec().decode(message.data(), parse_writer_schema(found.definition)))
    assert [mark.ledger_id for mark in decoded] == [9, 7]
    reader.close()


def test_a_delayed_deletion_keeps_its_count_and_a_retry_or_a_wait_makes_it_unverified(client, outbox, topic):
    counted = received(topic, properties={"RECONSUMETIMES": "3"})
    outbox.delay(counted, 0.5, 12345, "waits")
    outbox.flush()
    properties = read_one(client, f"{topic}-RETRY-partition-0").properties()
    assert (properties["RECONSUMETIMES"], properties["DELAY_TIME"]) == ("3", "500")
    assert (properties["bookwarden.verified-at"], properties["bookwarden.reason"]) == ("12345", "waits")
    outbox.retry(received(topic, properties=properties), 0, "store away")
    outbox.wait(received(topic, properties=properties), 0, "a compaction is under way")
    outbox.flush()
    reader = client.create_reader(f"{topic}-RETRY-partition-0", pulsar.MessageId.earliest)
    retried, waiting = [reader.read_next(10_000).properties() for _ in range(3)][1:]
    reader.close()
    assert (retried["RECONSUMETIMES"], waiting["RECONSUMETIMES"]) == ("4", "3")
    assert waiting["bookwarden.reason"] == "a compaction is under way"
    assert "bookwarden.verified-at" not in {**retried, **waiting}


def test_flush_raises_when_a_send_is_not_confirmed(admin, outbox, topic):
    outbox.retry(received(topic), 0, "first")
    outbox.flush()
    admin.post(f"{topic_path(f'{topic}-RETRY-partition-0')}/terminate")
    outbox.retry(received(topic), 0, "second")
    with pytest.raises(PulsarUnavailableError, match="1 messages were not confirmed"):
        outbox.flush()
    outbox.flush()


def test_dead_letters_are_read_without_being_taken(outbox, dead_letters, topic):
    for number in range(3):
        outbox.give_up(received(topic, number, properties={"RECONSUMETIMES": "10"}), Outcome.GAVE_UP, "why")
    outbox.flush()
    for _ in range(2):
        found = list(dead_letters.read())
        assert [(letter.outcome, letter.reason, letter.attempts) for letter in found] == [("gave up", "why", 10)] * 3
    assert len(list(dead_letters.read(limit=2))) == 2
    assert dead_letters.show(found[1].message_id) == found[1]


def test_replay_sends_back_with_counts_reset_and_leaves_the_others(client, outbox, dead_letters, topic):
    for number in range(3):
        outbox.give_up(received(topic, number), Outcome.GAVE_UP, "why")
    outbox.flush()
    chosen = list(dead_letters.read())[1]
    assert len(list(dead_letters.replay([chosen.message_id], dry_run=True))) == 1
    assert len(list(dead_letters.read())) == 3
    list(dead_letters.replay([chosen.message_id]))
    consumer = client.subscribe(topic, SUBSCRIPTION)
    message = consumer.receive(10_000)
    assert (message.data(), message.partition_key()) == (chosen.received.payload, chosen.received.key)
    assert message.properties() == {"theirs": "kept"}
    assert chosen.message_id not in [letter.message_id for letter in dead_letters.read()]
    assert len(list(dead_letters.read())) == 2


def test_drop_takes_off_all_or_the_named_and_names_the_absent(outbox, dead_letters, topic):
    for number in range(3):
        outbox.give_up(received(topic, number), Outcome.MALFORMED, "why")
    outbox.flush()
    with pytest.raises(NotFoundError, match="0:0:0"):
        list(dead_letters.drop(["0:0:0"]))
    assert len(list(dead_letters.drop())) == 3
    assert list(dead_letters.read()) == []


def test_dead_letters_have_one_holder_at_a_time(client, outbox, dead_letters, topic):
    outbox.give_up(received(topic), Outcome.MALFORMED, "why")
    outbox.flush()
    other = client.subscribe(f"{topic}-DLQ-partition-0", SUBSCRIPTION)
    with pytest.raises(PulsarConflictError, match="another consumer"):
        list(dead_letters.read())
    other.close()


def test_in_flight_is_in_messages_not_entries(pulsar_cluster, admin, client, topic):
    with PendingDeletionSender(pulsar_cluster.connection(), topic, PendingDeletionCodec()) as sender:
        assert set(sender.send_all([MARK] * 500)) == {None}
    backlog = SubscriptionBacklog(admin)
    found = count_in_flight(backlog, [topic, f"{topic}-RETRY"], SUBSCRIPTION)
    assert [partition.topic.rpartition("/")[2] for partition in found.partitions] == [
        "deletion-partition-0",
        "deletion-partition-1",
        "deletion-RETRY-partition-0",
    ]
    assert (found.messages, found.exact) == (500, True)
    assert 0 < found.entries < 500
    consumer = client.subscribe(topic, SUBSCRIPTION)
    last = [consumer.receive(10_000) for _ in range(500)][-1]
    consumer.acknowledge_cumulative(last)
    eventually(lambda: count_in_flight(backlog, [topic], SUBSCRIPTION).messages == 0)
    with pytest.raises(NotFoundError, match="init"):
        count_in_flight(backlog, [topic], "nobody")


def test_a_bounded_count_says_that_it_is_not_exact(admin, client, topic):
    producer = client.create_producer(f"{topic}-RETRY")
    for _ in range(30):
        producer.send(b"one entry each")
    found = count_in_flight(SubscriptionBacklog(admin), [f"{topic}-RETRY"], SUBSCRIPTION, max_entries=0)
    assert (found.entries, found.exact) == (30, False)


def test_the_owner_of_a_bundle_counts_as_the_owner_of_its_topics(pulsar_cluster, namespace, topic):
    store = open_store(pulsar_cluster.store_url)
    owner = BundleOwnership(store).owner(f"{topic}-RETRY-partition-0")
    assert owner == pulsar_cluster.service_url
    store.close()
