"""A Pulsar cluster over our BookKeeper that the settings do not name: nothing of it is planned, marked or swept."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pulsar
import pytest
from pulsar.schema import StringSchema
from pyspark.sql import SparkSession

from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.brokers import broker_clock
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.config import Settings
from bookwarden.deletion.phase_one.named_ledgers import marks_of_ids
from bookwarden.errors import RefusedError
from bookwarden.ledgers.kinds import PlaceKind
from bookwarden.ledgers.metadata import StoredLedger
from bookwarden.ledgers.references import ReferenceIndex
from bookwarden.orphans.classes import LedgerClass
from bookwarden.pipelines.scan.folder import plans_of
from bookwarden.pipelines.scan.operation import OrphanScan
from bookwarden.pipelines.sweep.driver import run_sweep
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.scan import OrphanApply
from bookwarden_dev.devcluster import ClusterOptions
from servers.deletion_site import DeletionSite
from servers.topic_contents import retain, send
from servers.two_clusters import ClusterInChroot, TwoClusters, two_clusters
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(900)]

NAMESPACE = "shop/orders"
BOTH = ("t", "u")
OF_B = ("onlyB", "schemaB")


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoClusters]:
    with two_clusters(tmp_path_factory.mktemp("pulsar"), ClusterOptions(max_entries_per_ledger=10)) as running:
        fill(running.a, BOTH)
        fill(running.b, (*BOTH, *OF_B), subscribed=BOTH[0])
        yield running


def fill(cluster: ClusterInChroot, topics: tuple[str, ...], subscribed: str = "") -> None:
    """Give each topic three ledgers; a topic with a schema, and one that is subscribed, has a cursor's ledger too."""
    admin = cluster.admin
    admin.put("/tenants/shop", {"allowedClusters": ["dev"]})
    admin.put(f"/namespaces/{NAMESPACE}")
    retain(admin, NAMESPACE)
    with closing(cluster.connection().client()) as client:
        for name in topics:
            topic = f"persistent://{NAMESPACE}/{name}"
            if name.startswith("schema"):
                consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared, schema=StringSchema())
                producer = client.create_producer(topic, schema=StringSchema(), batching_enabled=False)
                for number in range(25):
                    producer.send(str(number))
                consumer.acknowledge(consumer.receive(60_000))
                eventually(partial(has_a_cursors_ledger, admin, topic), 60)
            else:
                consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared) if name in subscribed else None
                send(client, topic, 25)
                if consumer is not None:
                    consumer.acknowledge(consumer.receive(60_000))
                    eventually(partial(has_a_cursors_ledger, admin, topic), 60)
                admin.put(f"{topic_path(topic)}/unload")


def has_a_cursors_ledger(admin: PulsarAdmin, topic: str) -> bool:
    stats = admin.get_json(f"{topic_path(topic)}/internalStats")
    return int(stats["cursors"]["s"]["cursorLedger"]) >= 0


def site_of(
    clusters: TwoClusters, namespace: str, folder: Path, *roots: ClusterInChroot, separate: bool = False
) -> DeletionSite:
    """Give the settings that name these roots, with the ages of production taken out."""
    overrides = {
        "metadata_store.urls": str([root.store_url for root in roots]),
        "metadata_store.bookkeeper_url": clusters.ensemble.bookkeeper_uri,
        "metadata_store.separate_roots": str([clusters.b.store_url] if separate else []),
        "orphans.folder": str(folder / "orphans"),
        "orphans.min_age_days": "0",
        "orphans.longest_compaction_hours": "0",
        "orphans.seen_apart_hours": "0",
        "orphans.max_share": "1",
    }
    a = clusters.a
    return DeletionSite.of(a, namespace, folder, overrides)


def named_by(settings: Settings, root: str) -> dict[PlaceKind, set[int]]:
    """Read which ledgers a root names, by the kinds of their places."""
    index, found = ReferenceIndex(), dict[PlaceKind, set[int]]()
    with Cluster(settings) as opened:
        opened.references.pieces.read_into(index)
        for ledger_id in range(1_000):
            for reference in index.who_names(ledger_id):
                if reference.place.root == root:
                    found.setdefault(reference.place.kind, set()).add(ledger_id)
    return found


def there(settings: Settings, ledger_ids: set[int]) -> set[int]:
    with Cluster(settings) as opened:
        readings = opened.bookkeeper.catalog.read_many(sorted(ledger_ids))
    return {reading.ledger_id for reading in readings if isinstance(reading, StoredLedger)}


def test_nothing_of_a_cluster_that_the_settings_do_not_name_is_planned_marked_or_swept(
    clusters: TwoClusters, tmp_path: Path, spark: SparkSession
) -> None:
    a, b = clusters.a, clusters.b
    namespace = f"shop/deletion-{secrets.token_hex(4)}"
    a.admin.put(f"/namespaces/{namespace}")
    blind, whole = site_of(clusters, namespace, tmp_path, a), site_of(clusters, namespace, tmp_path / "whole", a, b)
    told_wrong = site_of(clusters, namespace, tmp_path, a, separate=True)
    blind.create_topics()
    of_b = named_by(whole.settings, b.store_url)
    assert {PlaceKind.MANAGED_LEDGER, PlaceKind.CURSOR, PlaceKind.SCHEMA} <= of_b.keys()
    ledgers = set().union(*of_b.values())
    made_ms = time.time() * 1000
    # Its clock is told in whole seconds, and what is younger is too young.
    eventually(lambda: broker_clock(a.admin) > made_ms)

    evidence = rf"{b.store_url} is the metadata root of a Pulsar cluster .* ledger \d+ of .*shop/orders"
    with pytest.raises(RefusedError, match=evidence):
        OrphanScan(spark, blind.settings).begin()

    # Whoever says that it has a BookKeeper of its own is believed. A plan made so is not applied once nobody says it.
    scan = OrphanScan(spark, told_wrong.settings)
    wrong = scan.run(scan.begin())
    candidates = list(plans_of(blind.settings).all_candidates(wrong.plan))
    planned = {one.ledger_id for one in candidates}
    assert planned & of_b[PlaceKind.MANAGED_LEDGER]
    # Nothing of a topic that both have, where B's ledgers lie inside A's list: B's cursor is held back with them.
    assert not [one for one in candidates if f"{NAMESPACE}/persistent/{BOTH[0]}" in one.holder]
    assert wrong.summary.total(LedgerClass.INSIDE_LIST)[0] >= len(BOTH)
    # So is what a node of ours may have lost, for all that can be told of a ledger of B.
    assert wrong.summary.total(LedgerClass.UNKNOWN_REFERENCES)[0] >= 1
    allowed = [one.name for one in wrong.plan.emptied]
    for execute in (False, True):
        with (
            Cluster(blind.settings) as opened,
            pytest.raises(RefusedError, match=evidence),
        ):
            OrphanApply(opened, plans_of(blind.settings)).ledgers.run(
                wrong.plan.plan_id, execute=execute, allow_emptied=allowed
            )
    assert blind.backlog() == 0

    with Cluster(blind.settings) as opened:
        blind.mark(*marks_of_ids(opened.bookkeeper.catalog, sorted(ledgers & planned)))
    with pytest.raises(RefusedError, match=evidence):
        run_sweep(spark, blind.settings, once=True)
    assert there(whole.settings, ledgers) == ledgers

    scan = OrphanScan(spark, whole.settings)
    right = scan.run(scan.begin())
    assert {one.ledger_id for one in plans_of(whole.settings).all_candidates(right.plan)} & ledgers == set()
    assert right.summary.total(LedgerClass.REFERENCED)[0] >= len(ledgers)
    assert (right.summary.missing_total, right.summary.doubts_total) == (0, 0)
    assert run_sweep(spark, whole.settings, once=True).counts["deleted"] == 0
    assert there(whole.settings, ledgers) == ledgers
