"""The sweep from end to end on the real servers: Pulsar's topics in, ledgers gone from the metadata, outcomes out.

Each outcome is asked for on ZooKeeper and on Oxia. What differs only in the messages, the settings or the kind of
forgery reaches the store in the same way, and is asked for on ZooKeeper alone.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from pyspark.sql import SparkSession

from bookwarden.clusters.pulsar.messages.producers import ConfirmedProducers
from bookwarden.clusters.pulsar.messages.switch_events import SWITCH_TOPIC, SwitchEvents
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import read_positions, topic_path
from bookwarden.errors import UnconfirmedError
from bookwarden.ledgers.kinds import CursorHolder, Holder, LedgerComponent, ManagedLedgerHolder, SchemaHolder
from bookwarden.ledgers.metadata import DeleteResult
from bookwarden.ledgers.pending_deletion import LedgerType, OffloadContext, PendingDeletion
from bookwarden.ledgers.switch_event import SwitchEvent
from bookwarden.metastore.interface import MetadataStore
from bookwarden.wiring.pulsar import connection_of
from servers.deletion_site import DeletionSite
from servers.each_store import on_each_store, on_oxia
from servers.population import Population
from servers.sweeping_site import SweepingSite
from servers.waiting import eventually

pytestmark = pytest.mark.servers


@pytest.fixture
def population(store: MetadataStore) -> Population:
    return Population(store)


@pytest.fixture
def ledger_ids(namespace: str) -> Iterator[int]:
    """Ids that no counter gives the bookie's ledgers, apart for each test."""
    first = 5_000_000_000 + (hash(namespace) % 500_000) * 1000
    return iter(range(first, first + 1000))


def pending(ledger_id: int, holder: Holder) -> PendingDeletion:
    """Make the mark of a holder's ledger; its topic is called what the holder is."""
    if isinstance(holder, SchemaHolder):
        topic = f"persistent://{holder.schema_id}"
        return PendingDeletion(topic, LedgerComponent.SCHEMA_STORAGE, LedgerType.LEDGER, ledger_id)
    name = holder.name if isinstance(holder, ManagedLedgerHolder) else holder.managed_ledger
    mark = PendingDeletion(name, LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, ledger_id)
    if isinstance(holder, CursorHolder):
        return replace(mark, component=LedgerComponent.MANAGED_CURSOR, cursor_name=holder.cursor)
    return mark


def holders(namespace: str) -> tuple[ManagedLedgerHolder, CursorHolder, SchemaHolder]:
    managed_ledger = ManagedLedgerHolder(f"{namespace}/persistent/orders")
    return managed_ledger, CursorHolder(managed_ledger.name, "billing"), SchemaHolder(f"{namespace}/orders")


def send_raw(site: DeletionSite, payload: bytes, **properties: str) -> None:
    producers = ConfirmedProducers(connection_of(site.settings.pulsar).client)
    try:
        producers.send(site.settings.deletion.topic, payload, schema=None, key="forged", properties=properties)
        producers.flush()
    finally:
        producers.close()


@on_each_store
def test_each_kind_of_ledger_is_deleted_when_nothing_names_it_and_kept_otherwise(
    site: DeletionSite, population: Population, store: MetadataStore, ledger_ids: Iterator[int], spark: SparkSession
) -> None:
    site.overrides = {"deletion.still_referenced_grace_seconds": "0"}
    doomed, kept = {}, {}
    for holder in holders(site.namespace):
        gone, named = next(ledger_ids), next(ledger_ids)
        # A schema's entry is read before it goes, and no bookie has one here.
        doomed[gone] = (population.empty_ledger if isinstance(holder, SchemaHolder) else population.ledger)(
            gone, holder
        )
        kept[named] = population.ledger(named, holder)
        population.names(holder, [named])
        site.mark(pending(gone, holder), pending(named, holder))
    site.sweep_once(spark)
    assert all(value is None for value in store.get_many(list(doomed.values())))
    assert all(value is not None for value in store.get_many(list(kept.values())))
    assert site.counts() == {"deleted": 3, "still referenced": 3}
    assert {row["ledger_id"] for row in site.outcomes() if row["outcome"] == "deleted"} == set(doomed)
    assert site.backlog() == 0


@on_each_store
def test_the_same_mark_twice_is_already_gone_the_second_time(
    site: DeletionSite, population: Population, ledger_ids: Iterator[int], spark: SparkSession
) -> None:
    holder, ledger = holders(site.namespace)[0], next(ledger_ids)
    population.ledger(ledger, holder)
    site.mark(pending(ledger, holder))
    site.sweep_once(spark)
    site.mark(pending(ledger, holder))
    site.sweep_once(spark)
    assert site.outcome_of(ledger) == ["deleted", "already gone"]


@on_each_store
def test_a_mark_that_comes_before_the_metadata_update_is_retried_until_the_reference_is_gone(
    site: DeletionSite, population: Population, store: MetadataStore, ledger_ids: Iterator[int], spark: SparkSession
) -> None:
    site.overrides = {"deletion.still_referenced_grace_seconds": "3600"}
    holder, ledger = holders(site.namespace)[0], next(ledger_ids)
    path = population.ledger(ledger, holder)
    population.names(holder, [ledger])
    site.mark(pending(ledger, holder))
    site.sweep_once(spark)
    assert store.get(path) is not None
    assert site.outcome_of(ledger) == ["retry"]
    assert site.backlog() == 1
    newer = next(ledger_ids)
    population.ledger(newer, holder)
    population.names(holder, [newer])

    def swept() -> bool:
        site.sweep_once(spark)
        return store.get(path) is None

    eventually(swept, 60)
    assert site.outcome_of(ledger) == ["retry", "deleted"]
    assert site.backlog() == 0


def test_with_a_delay_a_ledger_is_verified_twice_and_a_reference_in_between_keeps_it(
    site: DeletionSite, population: Population, store: MetadataStore, ledger_ids: Iterator[int], spark: SparkSession
) -> None:
    site.overrides = {"deletion.delete_delay_seconds": "3", "deletion.still_referenced_grace_seconds": "0"}
    holder = holders(site.namespace)[0]
    doomed, regained = next(ledger_ids), next(ledger_ids)
    paths = [population.ledger(doomed, holder), population.ledger(regained, holder)]
    site.mark(pending(doomed, holder), pending(regained, holder))
    site.sweep_once(spark)
    assert all(store.get_many(paths))
    assert site.counts() == {"delayed": 2}
    assert site.backlog() == 2
    population.names(holder, [regained])

    def settled() -> bool:
        site.sweep_once(spark)
        return site.backlog() == 0

    eventually(settled, 60)
    gone, kept = store.get_many(paths)
    assert (gone is None, kept is None) == (True, False)
    assert set(site.outcome_of(doomed)[:-1]) == {"delayed"}
    assert (site.outcome_of(doomed)[-1], site.outcome_of(regained)[-1]) == ("deleted", "still referenced")
    assert {row["attempts"] for row in site.outcomes()} == {0}


def test_a_batch_that_a_low_limit_makes_longer_than_a_stall_is_not_taken_for_one(
    site: DeletionSite, population: Population, store: MetadataStore, ledger_ids: Iterator[int], spark: SparkSession
) -> None:
    stall = 20
    # Half of the limit is the one task's, which reads and deletes 200 nodes each.
    site.overrides = {
        "metadata_store.max_requests_per_second": "24",
        "deletion.shadow_refresh_seconds": "0",
        "sweep.stall_seconds": str(stall),
    }
    holder, doomed = holders(site.namespace)[0], list(itertools.islice(ledger_ids, 200))
    paths = [population.ledger(ledger, holder) for ledger in doomed]
    site.mark(*(pending(ledger, holder) for ledger in doomed))
    begun = time.monotonic()
    site.sweep_once(spark, stall=stall)
    assert time.monotonic() - begun > stall, "the batch was too short to be taken for stalled"
    assert not any(store.get_many(paths))
    assert site.counts() == {"deleted": 200}
    assert site.backlog() == 0


OF_ANOTHER_TOPIC = {
    "application": b"pulsar",
    "component": b"managed-ledger",
    "pulsar/managed-ledger": b"a/b/persistent/c",
}


@pytest.mark.parametrize(
    ("shared_cluster", "tags", "says"),
    [
        ("zookeeper", {}, "no custom metadata"),
        ("zookeeper", {"application": b"bk-stream-storage-service", "component": b"state-store"}, "state-store"),
        ("zookeeper", OF_ANOTHER_TOPIC, "a/b/persistent/c"),
        on_oxia(OF_ANOTHER_TOPIC, "a/b/persistent/c"),
    ],
    ids=["no custom metadata", "another application", "another topic", "another topic on oxia"],
    indirect=["shared_cluster"],
)
def test_a_forged_deletion_is_a_mismatch_and_deletes_nothing(
    site: DeletionSite,
    population: Population,
    store: MetadataStore,
    ledger_ids: Iterator[int],
    spark: SparkSession,
    tags: dict[str, bytes],
    says: str,
) -> None:
    holder, ledger = holders(site.namespace)[0], next(ledger_ids)
    path = population.tagged_ledger(ledger, tags)
    site.mark(pending(ledger, holder))
    site.sweep_once(spark)
    (row,) = site.outcomes()
    assert row["outcome"] == "mismatch"
    assert str(holder) in row["reason"]
    assert says in row["reason"]
    assert store.get(path) is not None
    assert site.backlog() == 0


def test_what_is_no_pending_deletion_goes_to_the_dlq_at_once_and_the_stream_goes_on(
    site: DeletionSite, population: Population, store: MetadataStore, ledger_ids: Iterator[int], spark: SparkSession
) -> None:
    holder, ledger = holders(site.namespace)[0], next(ledger_ids)
    path = population.ledger(ledger, holder)
    fields = {"topicName": holder.name, "ledgerComponent": "MANAGED_LEDGER", "ledgerType": "LEDGER", "ledgerId": 7}
    broken = [
        b"\xff\xfe not Avro",
        json.dumps({name: value for name, value in fields.items() if name != "ledgerId"}).encode(),
        json.dumps({**fields, "ledgerComponent": "TABLE_SERVICE"}).encode(),
        json.dumps({**fields, "ledgerId": -1}).encode(),
    ]
    for payload in broken:
        send_raw(site, payload, origin="test")
    site.mark(pending(ledger, holder))
    site.sweep_once(spark)
    assert store.get(path) is None
    assert site.counts() == {"malformed": len(broken), "deleted": 1}
    letters = spark.read.format("pulsar").options(
        serviceUrl=site.service_url, adminUrl=site.admin_url, topic=site.settings.deletion.dlq_topic
    )
    rows = letters.load().collect()
    assert sorted(bytes(row.value) for row in rows) == sorted(broken)
    reasons = " | ".join(row.properties["bookwarden.reason"] for row in rows)
    assert all(word in reasons for word in ("ledgerId", "TABLE_SERVICE", "-1", "Avro"))
    assert {row.properties["origin"] for row in rows} == {"test"}
    assert site.backlog() == 0


def test_a_json_payload_with_the_same_fields_is_read(
    site: DeletionSite, population: Population, store: MetadataStore, ledger_ids: Iterator[int], spark: SparkSession
) -> None:
    holder, ledger = holders(site.namespace)[1], next(ledger_ids)
    path = population.ledger(ledger, holder)
    record = {
        "topicName": f"persistent://{site.namespace}/orders",
        "ledgerComponent": "MANAGED_CURSOR",
        "cursorName": "billing",
        "ledgerType": "LEDGER",
        "ledgerId": ledger,
    }
    send_raw(site, json.dumps(record).encode())
    site.sweep_once(spark)
    assert store.get(path) is None


@on_each_store
def test_an_unparsable_reference_is_retried_and_given_up_to_the_dlq_with_the_reason(
    site: DeletionSite, population: Population, store: MetadataStore, ledger_ids: Iterator[int], spark: SparkSession
) -> None:
    site.overrides = {
        "deletion.two_phase_deletion_reconsume_later_in_seconds": "0.5",
        "deletion.two_phase_deletion_max_retry_delete_count": "2",
    }
    holder, ledger = holders(site.namespace)[0], next(ledger_ids)
    path = population.ledger(ledger, holder)
    node = population.names(holder, [])
    found = store.get(node)
    assert found is not None
    damaged = store.put(node, b"\x0a\xff\xff", found.version)
    site.mark(pending(ledger, holder))

    def given_up() -> bool:
        site.sweep_once(spark)
        return site.counts()["gave up"] == 1

    try:
        eventually(given_up, 180)
    finally:
        # What cannot be read here would be in the way of everything that looks at all topics of the shared cluster.
        left = store.delete_many([(node, damaged)])
    assert left == [DeleteResult.DELETED]
    assert site.outcome_of(ledger) == ["retry", "retry", "gave up"]
    assert store.get(path) is not None
    assert site.backlog() == 0
    assert site.backlog_of_dlq() == 1


def test_an_offloaded_copy_is_retried_while_no_driver_can_delete_it(
    site: DeletionSite, ledger_ids: Iterator[int], spark: SparkSession
) -> None:
    mark = replace(
        pending(next(ledger_ids), holders(site.namespace)[0]),
        ledger_type=LedgerType.OFFLOAD_LEDGER,
        offload_context=OffloadContext(1, 2, "aws-s3", {"bucket": "b"}),
    )
    site.mark(mark)
    site.sweep_once(spark)
    (row,) = site.outcomes()
    assert (row["outcome"], row["ledger_type"]) == ("retry", "OFFLOAD_LEDGER")
    assert "aws-s3" in row["reason"]


def test_a_dry_run_of_the_stream_deletes_nothing(
    site: DeletionSite, population: Population, store: MetadataStore, ledger_ids: Iterator[int], spark: SparkSession
) -> None:
    holder, ledger = holders(site.namespace)[0], next(ledger_ids)
    path = population.ledger(ledger, holder)
    site.overrides = {"sweep.dry_run": "true"}
    site.mark(pending(ledger, holder))
    site.sweep_once(spark)
    assert store.get(path) is not None
    assert site.outcome_of(ledger) == ["would delete"]
    assert site.backlog() == 1
    site.overrides = {}
    site.sweep_once(spark)
    assert site.outcome_of(ledger) == ["deleted"]
    assert store.get(path) is None


def test_a_switch_directive_before_any_bookie_cluster_is_registered_changes_nothing(
    site: DeletionSite, spark: SparkSession
) -> None:
    connection = connection_of(site.settings.pulsar)
    with closing(SwitchEvents(connection)) as events, closing(PulsarAdmin(connection)) as admin:
        try:
            events.send(SwitchEvent("a", "b", "test", 3, 0, "5f2c9a41"))
            # The broker has created the topic, and the sweep reads it from its beginning.
            site.sweep_once(spark)
        finally:
            # Other tests share the topic, and each would find the directive.
            admin.delete(topic_path(SWITCH_TOPIC), params={"force": True})
    (row,) = site.outcomes()
    assert (row["outcome"], row["reason"]) == ("directive", "no bookie cluster is registered, so it changes nothing")
    assert (row["bookie_cluster"], row["topic"]) == ("b", SWITCH_TOPIC)


def test_a_partition_of_the_retry_topic_that_takes_nothing_doubles_no_retry_of_the_others(
    site: DeletionSite, population: Population, ledger_ids: Iterator[int]
) -> None:
    marks = []
    for number in range(16):
        holder, ledger = ManagedLedgerHolder(f"{site.namespace}/persistent/named-{number}"), next(ledger_ids)
        population.ledger(ledger, holder)
        population.names(holder, [ledger])
        marks.append(pending(ledger, holder))
    # They are still named, and have to be retried.
    site.overrides = {"deletion.still_referenced_grace_seconds": "1e12"}
    retry = f"{site.settings.deletion.retry_topic}-partition-"
    with closing(PulsarAdmin(connection_of(site.settings.pulsar), timeout_s=60)) as admin:

        def sent() -> int:
            found = [read_positions(admin, f"{retry}{number}").ledgers for number in (1, 2, 3)]
            return sum(span.entries for ledgers in found for span in ledgers)

        with SweepingSite(site.settings) as sweeping:
            sweeping.sweep(*marks)
            first = sent()
            assert 0 < first < 16
            admin.post(f"{topic_path(retry + '0')}/terminate")
            for _ in range(3):
                with pytest.raises(UnconfirmedError, match="messages were not confirmed") as error:
                    sweeping.sweep(*marks, run="test/1")
                assert len(error.value.messages) == 16 - first
                assert sent() == 2 * first
