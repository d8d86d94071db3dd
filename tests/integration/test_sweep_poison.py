"""Messages and ledgers that could kill a batch: each is cut out on the real servers, and the rest goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession

from bookwarden.clusters.pulsar.producers import ConfirmedProducers
from bookwarden.context import connection_of
from bookwarden.devcluster import DevCluster
from bookwarden.errors import SparkError
from bookwarden.ledgers.holders import ManagedLedgerHolder
from bookwarden.ledgers.pending_deletion import LedgerComponent, LedgerType, PendingDeletion
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.urls import open_store
from servers.deletion_site import DeletionSite
from servers.population import Population

pytestmark = pytest.mark.servers


@pytest.fixture
def site(shared_cluster: DevCluster, namespace: str, tmp_path: Path) -> DeletionSite:
    cluster = shared_cluster
    made = DeletionSite(cluster.service_url, cluster.admin_url, cluster.store_url, namespace, tmp_path)
    made.create_topics()
    return made


@pytest.fixture
def store(shared_cluster: DevCluster) -> Iterator[MetadataStore]:
    opened = open_store(shared_cluster.store_url)
    yield opened
    opened.close()


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


def send_raw(site: DeletionSite, payload: bytes, event_time: int | None = None) -> None:
    producers = ConfirmedProducers(connection_of(site.settings))
    try:
        topic = site.settings.deletion.topic
        producers.send(topic, payload, schema=None, key="k", properties={}, event_time=event_time)
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
