"""What a broker says of its ledgers, held against what we read from the metadata; for any version of Pulsar."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import pulsar
from pulsar.schema import JsonSchema, Record, String, StringSchema

from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.pulsar.metadata.managed_ledgers import ManagedLedgers
from bookwarden.clusters.pulsar.references.live import MetadataReferences
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topics import Topics
from bookwarden.ledgers.custom_metadata import custom_metadata_mismatch
from bookwarden.ledgers.kinds import CursorHolder, ManagedLedgerHolder, SchemaHolder
from bookwarden.ledgers.live_references import LiveReferences
from bookwarden.ledgers.metadata import StoredLedger
from bookwarden.ledgers.names import TopicName, encode_local_name
from bookwarden.ledgers.references import ReferenceIndex
from bookwarden.metastore.urls import open_store
from bookwarden_dev.devcluster import DevCluster
from servers.index_answers import is_referenced
from servers.sweeping_site import SweepingSite

SUBSCRIPTION = "my sub/1~"


class Order(Record):  # type: ignore[misc]  # the client ships no type information
    """A message with a schema, so that the topic has a schema ledger."""

    item = String()


def claimed_ledgers(stats: Mapping[str, Any]) -> set[int]:
    """Collect all ledgers that a topic's internalStats name."""
    named = {ledger["ledgerId"] for ledger in [*stats["ledgers"], *stats["schemaLedgers"]]}
    return named | {cursor["cursorLedger"] for cursor in stats["cursors"].values()} - {-1}


def assert_every_claimed_ledger_is_found(
    site: SweepingSite, admin: PulsarAdmin, client: pulsar.Client, topic: str
) -> None:
    """Give the topic ledgers of several kinds, then look for all that the broker names of it and of its own topics."""
    consumer = client.subscribe(topic, "sub/one é", schema=StringSchema())
    producer = client.create_producer(topic, schema=StringSchema())
    producer.send("x")
    consumer.acknowledge(consumer.receive(60_000))
    parsed, names = TopicName.parse(topic), set()
    for namespace in ("public/default", "pulsar/system", f"{parsed.tenant}/{parsed.namespace}"):
        found = admin.get_json(f"/persistent/{namespace}", params={"includeSystemTopic": True})
        names |= {str(name) for name in found}
    assert topic in names
    ids = {name: claimed_ledgers(Topics(admin).internal_stats(name)) for name in names}
    assert len(ids[topic]) >= 2
    for name, named in ids.items():
        assert not unfound(site, named), name


def unfound(site: SweepingSite, ledger_ids: set[int]) -> list[int]:
    """Return those of the ledgers that exist and that no place in the metadata names."""
    index = ReferenceIndex()
    site.opened.references.pieces.read_into(index)
    # Whatever brokers of this version have written is understood.
    assert not index.doubts
    unnamed = [ledger_id for ledger_id in ledger_ids if is_referenced(index, ledger_id, None) is not True]
    return [ledger_id for ledger_id in unnamed if site.exists(ledger_id)]


def assert_references_are_the_brokers(cluster: DevCluster, namespace: str) -> None:
    """Fill a topic; what the sweep reads of its data, cursor and schema is what the broker lists, and is stored so."""
    topic = TopicName.parse(f"persistent://{namespace}/orders")
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    with (
        closing(pulsar.Client(cluster.service_url, logger=logger)) as client,
        closing(open_store(cluster.store_url)) as store,
        closing(PulsarAdmin(cluster.connection(), timeout_s=60)) as admin,
    ):
        consumer = client.subscribe(str(topic), SUBSCRIPTION)
        producer = client.create_producer(str(topic), schema=JsonSchema(Order), batching_enabled=False)
        for index in range(25):
            producer.send(Order(item=str(index)))
            consumer.acknowledge(consumer.receive(timeout_millis=20_000))
        stats = Topics(admin).internal_stats(str(topic))
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
