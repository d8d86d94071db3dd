"""Messages and ledgers that could kill a batch: each is cut out on the real servers, and the rest goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pulsar
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from pyspark.sql import Row, SparkSession

from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.pulsar.messages.producers import ConfirmedProducers
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import read_positions
from bookwarden.errors import SparkError
from bookwarden.ledgers.kinds import LedgerComponent, ManagedLedgerHolder
from bookwarden.ledgers.metadata import LedgerState, Segment
from bookwarden.ledgers.pending_deletion import LedgerType, PendingDeletion
from bookwarden.metastore.interface import MetadataStore
from bookwarden.wire.ledger_metadata import decode_ledger_metadata, encode_ledger_metadata
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.pulsar import connection_of
from servers.deletion_site import DeletionSite
from servers.population import ROOT, Population
from servers.pulsar_topics import not_an_entry, raw_entry, single, unload
from servers.pulsar_topics import send_raw as send_raw_entries
from servers.waiting import eventually

pytestmark = pytest.mark.servers

# In bytes, with all that is beside the payload: the broker's default.
LARGEST_MESSAGE = 5 * 1024 * 1024
NO_PROPERTIES: Mapping[str, str] = {}


@pytest.fixture
def ledger_ids(namespace: str) -> Iterator[int]:
    """Ids far above those that the bookie's ledgers get, apart for each test."""
    first = 2_100_000_000 + (hash(namespace) % 500_000) * 1000
    return iter(range(first, first + 1000))


def messages(site: DeletionSite, spark: SparkSession, topic: str) -> list[Row]:
    source = spark.read.format("pulsar").options(serviceUrl=site.service_url, adminUrl=site.admin_url, topic=topic)
    return source.load().collect()


def letters(site: DeletionSite, spark: SparkSession) -> list[Row]:
    return messages(site, spark, site.settings.deletion.dlq_topic)


def send_raw(
    site: DeletionSite, payload: bytes, event_time: int | None = None, properties: Mapping[str, str] = NO_PROPERTIES
) -> None:
    producers = ConfirmedProducers(connection_of(site.settings.pulsar).client)
    try:
        topic = site.settings.deletion.topic
        producers.send(topic, payload, schema=None, key="k", properties=properties, event_time=event_time)
        producers.flush()
    finally:
        producers.close()


def pending(ledger_id: int, holder: ManagedLedgerHolder) -> PendingDeletion:
    return PendingDeletion(holder.name, LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, ledger_id)


def test_times_that_no_clock_tells_have_one_letter_each_and_the_rest_is_settled(
    site: DeletionSite, store: MetadataStore, ledger_ids: Iterator[int], spark: SparkSession
) -> None:
    site.overrides = {"deletion.two_phase_deletion_max_retry_delete_count": "0"}
    holder, population = ManagedLedgerHolder(f"{site.namespace}/persistent/orders"), Population(store)
    good, early, damaged = next(ledger_ids), next(ledger_ids), next(ledger_ids)
    paths = [population.ledger(ledger, holder) for ledger in (good, early)]
    kept = population.ledger(damaged, holder, ctime_ms=2**62)
    fields = {"topicName": holder.name, "ledgerComponent": "MANAGED_LEDGER", "ledgerType": "LEDGER", "ledgerId": good}
    send_raw(site, json.dumps({**fields, "markedAt": 2**62}).encode())
    send_raw(site, json.dumps({**fields, "ledgerId": early}).encode(), event_time=2**62)
    site.mark(replace(pending(good, holder), marked_at=2**62), pending(damaged, holder), pending(good, holder))
    site.sweep_once(spark)
    assert site.counts() == {"malformed": 2, "deleted": 2, "gave up": 1}
    reasons = sorted(row.properties["bookwarden.reason"] for row in letters(site, spark))
    assert len(reasons) == 3
    assert "creation time 4611686018427387904" in reasons[0]
    assert all("markedAt 4611686018427387904" in reason for reason in reasons[1:])
    assert store.get_many(paths) == [None, None]
    assert store.get(kept) is not None
    assert site.backlog() == 0
    site.sweep_once(spark)
    assert site.backlog_of_dlq() == 3


def test_what_fills_a_message_nearly_alone_has_its_letter_and_stops_no_other(
    site: DeletionSite, store: MetadataStore, ledger_ids: Iterator[int], spark: SparkSession
) -> None:
    site.overrides = {"deletion.two_phase_deletion_reconsume_later_in_seconds": "600"}
    holder, population = ManagedLedgerHolder(f"{site.namespace}/persistent/orders"), Population(store)
    good, named = next(ledger_ids), next(ledger_ids)
    path, kept = population.ledger(good, holder), population.ledger(named, holder)
    population.names(holder, [named])
    fields = {"topicName": holder.name, "ledgerComponent": "MANAGED_LEDGER", "ledgerType": "LEDGER"}
    large = json.dumps({**fields, "ledgerId": good, "more": "x" * (LARGEST_MESSAGE - 400)}).encode()
    send_raw(site, large)
    theirs = {"theirs": "y" * (LARGEST_MESSAGE - 1000), "bookwarden.waives": "emptied,no such"}
    send_raw(site, json.dumps({**fields, "ledgerId": named}).encode(), properties=theirs)
    site.mark(pending(good, holder))
    site.sweep_once(spark)
    assert site.counts() == {"malformed": 1, "deleted": 1, "retry": 1}
    assert [store.get(path), store.get(kept) is not None] == [None, True]
    (retry,) = messages(site, spark, site.settings.deletion.retry_topic)
    assert "theirs" not in retry.properties
    assert retry.properties["bookwarden.waives"] == "emptied,no such"
    assert site.backlog() == 1

    with Cluster(site.settings) as cluster:
        topics = cluster.deletion_topics
        (letter,) = topics.dead_letters.read()
        assert letter.received.payload == large
        assert (letter.outcome, f"{len(large):,} bytes" in letter.reason) == ("malformed", True)
        assert len(list(topics.dead_letters.replay())) == 1
    assert site.backlog_of_dlq() == 0
    site.sweep_once(spark)
    assert site.counts()["malformed"] == 2


def test_a_batch_that_fails_behind_its_sends_sends_nothing_twice(
    site: DeletionSite, store: MetadataStore, ledger_ids: Iterator[int], spark: SparkSession
) -> None:
    site.overrides = {"deletion.two_phase_deletion_reconsume_later_in_seconds": "600"}
    holder, population, ledger = (
        ManagedLedgerHolder(f"{site.namespace}/persistent/orders"),
        Population(store),
        next(ledger_ids),
    )
    population.ledger(ledger, holder)
    population.names(holder, [ledger])
    send_raw(site, b"no mark")
    site.mark(pending(ledger, holder))
    # Where the outcome table should be a folder, its file cannot be written: the last thing of a batch.
    table = Path(site.settings.sweep.outcomes)
    table.write_bytes(b"")
    for _ in range(2):
        with pytest.raises(SparkError, match="outcomes"):
            site.sweep_once(spark)
    table.unlink()
    site.sweep_once(spark)
    assert site.counts() == {"malformed": 1, "retry": 1}
    assert len(letters(site, spark)) == 1
    assert len(messages(site, spark, site.settings.deletion.retry_topic)) == 1
    assert site.backlog() == 1


@pytest.fixture
def keys(tmp_path: Path) -> pulsar.CryptoKeyReader:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    private, public = tmp_path / "private.pem", tmp_path / "public.pem"
    private.write_bytes(key.private_bytes(encoding, serialization.PrivateFormat.TraditionalOpenSSL, plain))
    public.write_bytes(key.public_key().public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo))
    return pulsar.CryptoKeyReader(str(public), str(private))


def test_what_cannot_be_read_of_a_partition_has_letters_and_the_partition_goes_on(
    site: DeletionSite,
    store: MetadataStore,
    ledger_ids: Iterator[int],
    spark: SparkSession,
    keys: pulsar.CryptoKeyReader,
) -> None:
    holder, population = ManagedLedgerHolder(f"{site.namespace}/persistent/orders"), Population(store)
    ledgers = [next(ledger_ids) for _ in range(3)]
    paths = [population.ledger(ledger, holder) for ledger in ledgers]
    fields = {"topicName": holder.name, "ledgerComponent": "MANAGED_LEDGER", "ledgerType": "LEDGER"}
    payloads = [json.dumps({**fields, "ledgerId": ledger}).encode() for ledger in ledgers]
    partition = f"{site.settings.deletion.topic}-partition-0"
    encrypting = {"encryption_key": "k", "crypto_key_reader": keys}
    with closing(pulsar.Client(site.service_url)) as client:
        plain = client.create_producer(partition, batching_enabled=False)
        plain.send(payloads[0])
        client.create_producer(partition, batching_enabled=False, **encrypting).send(payloads[1])
        batching = client.create_producer(
            partition, batching_enabled=True, batching_max_publish_delay_ms=2000, **encrypting
        )
        for _ in range(5):
            batching.send_async(payloads[1], None)
        batching.flush()
        chunking = client.create_producer(partition, batching_enabled=False, chunking_enabled=True)
        chunking.send(b"x" * 6_000_000)
        plain.send(payloads[2])
    site.sweep_once(spark)
    assert store.get_many([paths[0], paths[2]]) == [None, None]
    assert store.get(paths[1]) is not None
    # An encrypted batch is one message: how many are in it stands inside what cannot be read.
    assert site.counts() == {"deleted": 2, "malformed": 3}
    reasons = [row.properties["bookwarden.reason"] for row in letters(site, spark)]
    assert sum("in chunks" in reason for reason in reasons) == 1
    assert len(reasons) == 3
    assert site.backlog() == 0


def test_a_mark_with_many_kilobytes_of_properties_comes_back_and_holds_up_none(
    site: DeletionSite, store: MetadataStore, ledger_ids: Iterator[int], spark: SparkSession
) -> None:
    holder, population = ManagedLedgerHolder(f"{site.namespace}/persistent/orders"), Population(store)
    ledgers = [next(ledger_ids) for _ in range(4)]
    paths = [population.ledger(ledger, holder) for ledger in ledgers]
    population.names(holder, ledgers)
    fields = {"topicName": holder.name, "ledgerComponent": "MANAGED_LEDGER", "ledgerType": "LEDGER"}
    foreign = [{"t": "y" * 9000}, {"t": "y" * 60_000}, {f"n{number}": "x" for number in range(120)}, NO_PROPERTIES]
    for ledger, properties in zip(ledgers, foreign, strict=True):
        send_raw(site, json.dumps({**fields, "ledgerId": ledger}).encode(), properties=properties)
    site.sweep_once(spark)
    assert site.counts() == {"retry": 4}
    retries = messages(site, spark, site.settings.deletion.retry_topic)
    assert len({retry.topic for retry in retries}) == 1
    assert [len(retry.properties) for retry in retries] == [9, 9, 60, 9]

    kept = next(ledger_ids)
    population.ledger(kept, holder)
    population.names(holder, [kept])

    def all_gone() -> bool:
        site.sweep_once(spark)
        return store.get_many(paths) == [None] * 4

    eventually(all_gone, 120)
    assert (site.counts()["deleted"], site.backlog()) == (4, 0)


def test_entries_that_no_client_would_send_have_letters_and_the_marks_around_them_are_carried_out(
    site: DeletionSite, store: MetadataStore, ledger_ids: Iterator[int], spark: SparkSession
) -> None:
    holder, population = ManagedLedgerHolder(f"{site.namespace}/persistent/orders"), Population(store)
    ledgers = [next(ledger_ids) for _ in range(3)]
    paths = [population.ledger(ledger, holder) for ledger in ledgers]
    fields = {"topicName": holder.name, "ledgerComponent": "MANAGED_LEDGER", "ledgerType": "LEDGER"}
    good = [raw_entry(json.dumps({**fields, "ledgerId": ledger}).encode()) for ledger in ledgers]
    bad = {
        "cannot be decompressed": raw_entry(b"garbage", compression=3, uncompressed_size=100),
        "a batch of 0 messages": raw_entry(b"", num_messages_in_batch=0),
        "ends within message 0": raw_entry(b"", num_messages_in_batch=1),
        "ends within message 1": raw_entry(single(b"x"), num_messages_in_batch=10**9),
        "should have 1,073,741,824 bytes": raw_entry(single(b"x", payload_size=2**30), num_messages_in_batch=1),
        "once it is decompressed": raw_entry(b"bomb", compression=2, uncompressed_size=2**32 - 1),
    }
    first, second = (f"{site.settings.deletion.topic}-partition-{number}" for number in (0, 1))
    connection = connection_of(site.settings.pulsar)
    # Its metadata is none, so that the broker passes over it: in the middle, and where nothing follows.
    nothing = not_an_entry()
    send_raw_entries(connection, first, good[0], *bad.values(), nothing, good[1])
    send_raw_entries(connection, second, good[2], nothing)
    site.sweep_once(spark)
    assert store.get_many(paths) == [None] * 3
    assert site.counts() == {"deleted": 3, "malformed": len(bad) + 2}
    reasons = [row.properties["bookwarden.reason"] for row in letters(site, spark)]
    assert all(sum(text in reason for reason in reasons) == 1 for text in bad), reasons
    assert sum("the broker passes over it" in reason for reason in reasons) == 2
    assert site.backlog() == 0


@pytest.mark.parametrize("lost", ["metadata", "bookies"])
def test_a_lost_ledger_of_the_retry_topic_has_one_letter_and_the_marks_behind_it_are_carried_out(
    site: DeletionSite, store: MetadataStore, ledger_ids: Iterator[int], spark: SparkSession, lost: str
) -> None:
    site.overrides = {
        "sweep.max_unreachable_seconds": "5",
        "sweep.lost_ledger_seconds": "8",
        "deletion.two_phase_deletion_reconsume_later_in_seconds": "600",
    }
    holder, population = ManagedLedgerHolder(f"{site.namespace}/persistent/orders"), Population(store)
    ledgers = [next(ledger_ids) for _ in range(5)]
    paths = [population.ledger(ledger, holder) for ledger in ledgers]
    population.names(holder, ledgers)
    site.mark(*(pending(ledger, holder) for ledger in ledgers[:3]))
    site.sweep_once(spark)
    (partition,) = {retry.topic for retry in messages(site, spark, site.settings.deletion.retry_topic)}
    connection = connection_of(site.settings.pulsar)
    admin = PulsarAdmin(connection, timeout_s=60)
    written = read_positions(admin, partition).latest
    unload(admin, partition)
    fields = {"topicName": holder.name, "ledgerComponent": "MANAGED_LEDGER", "ledgerType": "LEDGER"}
    behind = [raw_entry(json.dumps({**fields, "ledgerId": ledger}).encode()) for ledger in ledgers[3:]]
    send_raw_entries(connection, partition, *behind)
    lose(store, written.ledger_id, lost)
    # What the broker has in memory would hide that.
    unload(admin, partition)

    kept = next(ledger_ids)
    population.ledger(kept, holder)
    population.names(holder, [kept])

    def drained() -> bool:
        site.sweep_once(spark)
        return site.backlog() == 0

    eventually(drained, 240)
    assert store.get_many(paths[3:]) == [None, None]
    reasons = [row.properties["bookwarden.reason"] for row in letters(site, spark)]
    assert len(reasons) == 1
    assert f"the 3 entries {written.ledger_id}:0 to {written} cannot be read: its ledger is lost" in reasons[0]
    assert [store.get(path) is not None for path in paths[:3]] == [True] * 3


def lose(store: MetadataStore, ledger_id: int, what: str) -> None:
    """Take a closed ledger's metadata away, or let it name a bookie that is not there."""
    path = ledger_path(ROOT, ledger_id)
    found = store.get(path)
    assert found is not None
    metadata = decode_ledger_metadata(found.value)
    assert metadata.state is LedgerState.CLOSED
    if what == "metadata":
        store.delete_many([(path, found.version)])
        return
    segments = tuple(Segment(segment.first_entry_id, ("127.0.0.1:1",)) for segment in metadata.segments)
    store.put(path, encode_ledger_metadata(metadata._replace(segments=segments)), found.version)
