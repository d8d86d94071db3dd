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

from bookwarden.clusters.pulsar.messages.producers import ConfirmedProducers
from bookwarden.errors import SparkError
from bookwarden.ledgers.kinds import LedgerComponent, ManagedLedgerHolder
from bookwarden.ledgers.pending_deletion import LedgerType, PendingDeletion
from bookwarden.metastore.interface import MetadataStore
from bookwarden.wiring.pulsar import TopicsContext, connection_of
from servers.deletion_site import DeletionSite
from servers.population import Population

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
    assert retry.properties["bookwarden.waives"] == "emptied"
    assert site.backlog() == 1

    with TopicsContext(site.settings) as topics:
        (letter,) = topics.dead_letters.read()
        assert letter.received.payload == large
        assert (letter.outcome, f"{len(large):,} bytes" in letter.reason) == ("malformed", True)
        assert len(topics.dead_letters.replay()) == 1
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
