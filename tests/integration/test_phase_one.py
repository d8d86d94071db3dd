"""Phase one on a real cluster: what leaves the metadata was marked before, and what is refused stays.

What reads or writes the store in a way of its own is asked for on ZooKeeper and on Oxia.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pulsar
import pytest

from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.messages.mark_sender import PendingDeletionSender
from bookwarden.clusters.pulsar.metadata.managed_ledgers import ManagedLedgers
from bookwarden.clusters.pulsar.metadata.ownership import BundleOwnership
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.schemas import SchemaRegistry, WriterSchema
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.clusters.pulsar.rest.topics import Topics
from bookwarden.deletion.phase_one.mark import Marker
from bookwarden.deletion.phase_one.removal import Removal
from bookwarden.deletion.phase_one.trimming import StoreTrim
from bookwarden.errors import RefusedError
from bookwarden.ledgers.kinds import LedgerComponent
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.pending_deletion import LedgerType, PendingDeletion
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.urls import open_store
from bookwarden.wire.avro import PendingDeletionCodec
from servers.each_store import on_each_store
from servers.pulsar_topics import unload
from servers.waiting import eventually

pytestmark = pytest.mark.servers

SCHEMA = WriterSchema("AVRO", '{"type":"record","name":"R","fields":[{"name":"a","type":"long"}]}')


@dataclass
class Site:
    """A namespace with a deletion topic, and phase one over it."""

    namespace: str
    connection: PulsarConnection
    admin: PulsarAdmin
    topics: Topics
    store: MetadataStore
    client: pulsar.Client
    sender: PendingDeletionSender

    @property
    def marker(self) -> Marker:
        return Marker(self.sender)

    @property
    def managed_ledgers(self) -> ManagedLedgers:
        return ManagedLedgers(self.store)

    @property
    def catalog(self) -> BookKeeperCatalog:
        return BookKeeperCatalog(self.store)

    @property
    def deletion_topic(self) -> str:
        return self.name("deletion")

    def name(self, topic: str) -> str:
        return f"persistent://{self.namespace}/{topic}"

    def rolled_topic(self, topic: str, ledgers: int, subscription: str | None = "s") -> str:
        """Make a topic with so many ledgers of ten entries, and a subscription at its beginning."""
        name = self.name(topic)
        self.topics.create(name)
        if subscription:
            self.client.subscribe(name, subscription, initial_position=pulsar.InitialPosition.Earliest).close()
        for _ in range(ledgers):
            producer = self.client.create_producer(name)
            for number in range(10):
                producer.send(str(number).encode())
            producer.close()
            unload(self.admin, name)
        return name

    def ledgers(self, topic: str) -> list[int]:
        read = self.managed_ledgers.read(TopicName.parse(topic).managed_ledger)
        return [ledger.ledger_id for ledger in read.info.ledgers] if read else []

    def retain(self, minutes: int) -> None:
        """Let the broker keep acknowledged ledgers for so long; -1 for ever, 0 not at all."""
        body = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": minutes}
        self.admin.post(f"/namespaces/{self.namespace}/retention", body)

    def acknowledge_all(self, topic: str, subscription: str = "s") -> None:
        self.admin.post(f"{topic_path(topic)}/subscription/{subscription}/skip_all")

    def marked(self, count: int) -> list[PendingDeletion]:
        """Read so many marks from the deletion topic."""
        reader = self.client.create_reader(self.deletion_topic, pulsar.MessageId.earliest)
        codec = PendingDeletionCodec()
        found = [codec.decode(reader.read_next(10_000).data()) for _ in range(count)]
        assert not reader.has_message_available()
        reader.close()
        return found


@pytest.fixture
def site(shared_cluster, namespace) -> Iterator[Site]:
    connection = shared_cluster.connection()
    admin = PulsarAdmin(connection)
    store = open_store(shared_cluster.store_url)
    client = connection.client()
    topics = Topics(admin)
    topic = f"persistent://{namespace}/deletion"
    topics.create(topic)
    client.subscribe(topic, "keeps").close()
    sender = PendingDeletionSender(connection, topic, PendingDeletionCodec())
    yield Site(namespace, connection, admin, topics, store, client, sender)
    sender.close()
    client.close()
    store.close()
    admin.close()


def test_marks_arrive_as_sent_under_the_key_of_their_holder_and_with_the_schema(site):
    marks = [
        PendingDeletion(site.name(f"t{n % 3}"), LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, n, marked_at=5)
        for n in range(3000)
    ]
    report = site.marker.mark(marks)
    assert report.failed == ()
    assert sorted(site.marked(3000), key=lambda mark: mark.ledger_id) == marks
    reader = site.client.create_reader(site.deletion_topic, pulsar.MessageId.earliest)
    message = reader.read_next(10_000)
    assert message.partition_key() == f"{site.namespace}/persistent/t0"
    registry = SchemaRegistry(site.admin)
    version = message._message.int_schema_version().to_bytes(8, "big")
    assert registry.written_with(site.deletion_topic, version).kind == "AVRO"


def test_marks_in_whole_batches_and_those_left_over_share_the_partition_of_their_holder_and_their_order(site):
    deletion_topic = site.name("partitioned")
    site.admin.put(f"{topic_path(deletion_topic)}/partitions", 3)
    partitions = site.client.get_topic_partitions(deletion_topic)
    for partition in partitions:
        site.client.subscribe(partition, "keeps").close()
    # Five holders, one of them not of ASCII: whole batches for most partitions, and something left for each.
    marks = [
        PendingDeletion(
            site.name(("orders", "invoices", "über", "x", "y")[n % 5]),
            LedgerComponent.MANAGED_LEDGER,
            LedgerType.LEDGER,
            n,
            marked_at=5,
        )
        for n in range(4321)
    ]
    with PendingDeletionSender(site.connection, deletion_topic, PendingDeletionCodec()) as sender:
        assert sender.send_all(marks) == [None] * len(marks)
    codec = PendingDeletionCodec()
    found: dict[str, list[PendingDeletion]] = {}
    seen_in: dict[str, set[int]] = {}
    for number, partition in enumerate(partitions):
        reader = site.client.create_reader(partition, pulsar.MessageId.earliest)
        while reader.has_message_available():
            message = reader.read_next(10_000)
            found.setdefault(message.partition_key(), []).append(codec.decode(message.data()))
            seen_in.setdefault(message.partition_key(), set()).add(number)
    assert found == {str(mark.holder()): [m for m in marks if m.holder() == mark.holder()] for mark in marks[:5]}
    assert [len(places) for places in seen_in.values()] == [1] * 5


@pytest.mark.parametrize("count", [2, 1_200])
def test_a_send_that_the_broker_refuses_is_reported_for_each_mark(site, count):
    mark = PendingDeletion(site.name("t"), LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, 1)
    assert site.marker.mark([mark] * count).failed == ()
    site.admin.post(f"{topic_path(site.deletion_topic)}/terminate")
    report = site.marker.mark([mark] * count)
    assert [ledger.sent for ledger in report.ledgers] == [False] * count
    assert all("the broker answered" in str(ledger.failure) for ledger in report.failed)


@on_each_store
def test_trim_through_the_broker_marks_what_the_broker_removes(site):
    site.retain(-1)
    topic = site.rolled_topic("a", 3)
    site.acknowledge_all(topic)
    before = site.ledgers(topic)
    assert len(before) >= 3
    site.retain(0)
    (plan,) = Removal(site.marker, site.managed_ledgers, site.topics).plan_trim(topic)
    result = plan.carry_out()
    assert result.done
    marked = {mark.ledger_id for mark in site.marked(len(result.plan.marks))}
    assert marked == set(before[:-1])
    eventually(lambda: site.ledgers(topic) == before[-1:])


def test_what_retention_holds_stays_though_it_was_marked(site):
    site.retain(-1)
    topic = site.rolled_topic("a", 2)
    site.acknowledge_all(topic)
    before = site.ledgers(topic)
    (plan,) = Removal(site.marker, site.managed_ledgers, site.topics).plan_trim(topic)
    result = plan.carry_out()
    assert result.done
    assert {mark.ledger_id for mark in result.plan.marks} == set(before[:-1])
    assert site.ledgers(topic) == before


@on_each_store
def test_trim_in_the_store_is_refused_while_the_bundle_is_owned(site):
    topic = site.rolled_topic("a", 3, subscription=None)
    before = site.ledgers(topic)
    with pytest.raises(RefusedError, match="loaded by pulsar://"):
        StoreTrim(site.marker, site.managed_ledgers, BundleOwnership(site.store), site.catalog).plan(topic).carry_out()
    assert site.ledgers(topic) == before


@on_each_store
def test_a_topic_trimmed_in_the_store_is_served_as_before_with_what_remains(site):
    site.retain(-1)
    topic = site.rolled_topic("a", 3)
    site.acknowledge_all(topic)
    unload(site.admin, topic)
    before = site.ledgers(topic)

    class Nobody:
        def owner(self, topic: str) -> str | None:
            return None

    # The broker owns the bundle, but the topic was unloaded above and nobody uses it.
    result = StoreTrim(site.marker, site.managed_ledgers, Nobody(), site.catalog).plan(topic).carry_out()
    assert result.done, result.problem
    assert site.ledgers(topic) == before[-1:]
    assert list(result.removed) == before[:-1]
    producer = site.client.create_producer(topic)
    producer.send(b"after")
    consumer = site.client.subscribe(topic, "s")
    assert consumer.receive(10_000).data() == b"after"


@on_each_store
def test_deleting_a_topic_marks_data_cursor_and_schema_ledgers(site):
    topic = site.rolled_topic("a b+c", 2, subscription="x/y+z")
    SchemaRegistry(site.admin).register(topic, SCHEMA)
    consumer = site.client.subscribe(topic, "x/y+z")
    consumer.acknowledge(consumer.receive(10_000))
    consumer.close()
    name = TopicName.parse(topic)
    data = set(site.ledgers(topic))
    cursors = eventually(
        lambda: {
            cursor.info.cursors_ledger_id
            for cursor in site.managed_ledgers.cursors(name.managed_ledger).values()
            if (cursor.info.cursors_ledger_id or -1) >= 0
        }
    )
    schema = site.managed_ledgers.schema(name.schema_id)
    assert schema is not None
    result = Removal(site.marker, site.managed_ledgers, site.topics).plan_topic(topic, force=True).carry_out()
    assert result.done, result.problem
    assert {
        mark.ledger_id for mark in site.marked(len(result.plan.marks))
    } == data | cursors | schema.locator.ledger_ids
    assert site.managed_ledgers.read(name.managed_ledger) is None


def test_deleting_a_partitioned_topic_marks_and_removes_every_partition(site):
    topic = site.name("p")
    site.topics.create(topic, 3)
    producer = site.client.create_producer(topic)
    for number in range(12):
        producer.send(b"x", partition_key=str(number))
    producer.close()
    data = {ledger for index in range(3) for ledger in site.ledgers(f"{topic}-partition-{index}")}
    result = Removal(site.marker, site.managed_ledgers, site.topics).plan_topic(topic, force=True).carry_out()
    assert result.done, result.problem
    assert data <= {mark.ledger_id for mark in site.marked(len(result.plan.marks))}
    assert all(site.ledgers(f"{topic}-partition-{index}") == [] for index in range(3))
    assert topic not in site.admin.get_json(f"/persistent/{site.namespace}/partitioned")


def test_a_topic_in_use_is_not_deleted_and_the_result_says_so(site):
    topic = site.rolled_topic("a", 1)
    consumer = site.client.subscribe(topic, "s")
    before = set(site.ledgers(topic))
    result = Removal(site.marker, site.managed_ledgers, site.topics).plan_topic(topic).carry_out()
    assert not result.done
    assert "412" in result.problem
    assert before <= set(site.ledgers(topic))
    consumer.close()


@pytest.mark.parametrize("subscription", ["plain", "a b", "a+b", "a/b%2Fc"])
def test_deleting_a_subscription_removes_exactly_that_one(site, subscription):
    topic = site.name("a")
    site.topics.create(topic)
    for name in (subscription, "a b", "other"):
        site.client.subscribe(topic, name).close()
    result = Removal(site.marker, site.managed_ledgers, site.topics).plan_subscription(topic, subscription).carry_out()
    assert result.done, result.problem
    assert set(site.topics.subscriptions(topic)) == {"a b", "other"} - {subscription}


@on_each_store
def test_deleting_a_schema_removes_all_its_ledgers_from_the_metadata(site):
    topic = site.rolled_topic("a", 1)
    SchemaRegistry(site.admin).register(topic, SCHEMA)
    schema = site.managed_ledgers.schema(TopicName.parse(topic).schema_id)
    assert schema is not None
    result = Removal(site.marker, site.managed_ledgers, site.topics).plan_schema(topic).carry_out()
    assert result.done, result.problem
    assert {mark.ledger_id for mark in site.marked(len(result.plan.marks))} == schema.locator.ledger_ids
    assert site.managed_ledgers.schema(TopicName.parse(topic).schema_id) is None
