"""Orphans made as they come about in real life are found, planned and reclaimed, and every topic still reads back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

import pulsar
import pytest
from pyspark.sql import SparkSession

from bookwarden.context import MetadataContext
from bookwarden.deletion.named_ledgers import marks_of_ids
from bookwarden.devcluster import ClusterOptions, DevCluster
from bookwarden.devcluster.garbage import GarbageOnDemand
from bookwarden.devcluster.ports import free_ports
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.ledgers.references import ReferenceIndex
from servers.deletion_site import DeletionSite
from servers.orphan_grounds import BROKER_SETTINGS, ENTRIES_PER_LEDGER, Grounds
from servers.orphan_makers import ALL_MAKERS, Maker, make_orphans
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(900)]

# Entry logs are small and full early, and are compacted as soon as anything in them is garbage.
BOOKIE_SETTINGS = {"logSizeLimit": "1048576", "flushInterval": "1000", "majorCompactionThreshold": "0.99"}
HEALTHY = ("orders", "clicks", "audit")
MESSAGES = 40


@dataclass
class Orphanage:
    """A cluster with orphans among healthy topics, and what each topic must still give back."""

    grounds: Grounds
    garbage: GarbageOnDemand
    site: DeletionSite
    made: dict[Maker, frozenset[int]]
    contents: dict[str, list[bytes]]

    @property
    def orphans(self) -> frozenset[int]:
        return frozenset().union(*self.made.values())

    def entry_log_bytes(self) -> int:
        """Sum the sizes of the bookie's entry logs."""
        logs = (self.grounds.cluster.home / "bookie" / "ledgers" / "current").glob("*.log")
        return sum(path.stat().st_size for path in logs)


@pytest.fixture(scope="module")
def orphanage(
    tmp_path_factory: pytest.TempPathFactory, make_namespace: Callable[[DevCluster], str]
) -> Iterator[Orphanage]:
    (port,) = free_ports(1)
    garbage = GarbageOnDemand(port)
    options = ClusterOptions(
        max_entries_per_ledger=ENTRIES_PER_LEDGER,
        broker_settings=BROKER_SETTINGS,
        bookie_settings={**garbage.bookie_settings, **BOOKIE_SETTINGS},
    )
    home = tmp_path_factory.mktemp("pulsar")
    with DevCluster(home, options, avoid=[port]) as cluster:
        site = DeletionSite(
            cluster.service_url, cluster.admin_url, cluster.store_url, make_namespace(cluster), home / "site"
        )
        with (
            MetadataContext(site.settings) as metadata,
            closing(Grounds(cluster, metadata, lambda: make_namespace(cluster))) as grounds,
        ):
            yield _fill(grounds, garbage, site)


def _fill(grounds: Grounds, garbage: GarbageOnDemand, site: DeletionSite) -> Orphanage:
    namespace = grounds.fresh_namespace()
    topics = [f"persistent://{namespace}/{name}" for name in HEALTHY]
    for topic in topics:
        grounds.send(topic, MESSAGES // 2)
    made = make_orphans([maker(grounds) for maker in ALL_MAKERS])
    for topic in topics:
        grounds.send(topic, MESSAGES // 2, first=MESSAGES // 2)
    numbers = dict.fromkeys(topics, range(MESSAGES)) | {maker.topic: maker.readable for maker in made if maker.readable}
    contents = {topic: [grounds.message(number) for number in readable] for topic, readable in numbers.items()}
    return Orphanage(grounds, garbage, site, made, contents)


def read_back(grounds: Grounds, topic: str) -> list[bytes]:
    """Read the topic from its beginning to its end."""
    with closing(grounds.client()) as client:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(timeout_millis=60_000).data())
        return found


def test_each_way_leaves_ledgers_that_exist_and_that_nothing_names(orphanage: Orphanage) -> None:
    assert all(orphanage.made.values())
    assert sum(len(made) for made in orphanage.made.values()) == len(orphanage.orphans)
    index = ReferenceIndex()
    orphanage.grounds.metadata.reference_scan.read_into(index)
    for maker, made in orphanage.made.items():
        for ledger_id in made:
            assert not index.who_names(ledger_id), (type(maker).__name__, ledger_id)
    assert orphanage.grounds.on_bookie(orphanage.orphans) == orphanage.orphans
    for topic in orphanage.contents:
        assert set(orphanage.grounds.ledgers_of(topic)).isdisjoint(orphanage.orphans)
    # Nothing else was left by the way.
    assert set(orphanage.grounds.unnamed()) == orphanage.orphans


def test_they_are_reclaimed_and_every_topic_reads_back_in_full(orphanage: Orphanage, spark: SparkSession) -> None:
    grounds, site = orphanage.grounds, orphanage.site
    site.create_topics()
    stored = {ledger.ledger_id: ledger.metadata for ledger, _ in grounds.stored()}
    site.mark(*marks_of_ids(grounds.metadata.catalog, sorted(orphanage.orphans)))
    before = orphanage.entry_log_bytes()
    site.sweep_once(spark)
    assert site.counts() == {Outcome.DELETED.value: len(orphanage.orphans)}
    left = {ledger.ledger_id for ledger, _ in grounds.stored()}
    assert left >= set(stored) - orphanage.orphans
    assert left.isdisjoint(orphanage.orphans)
    reclaimable = sum(stored[ledger_id].length for ledger_id in orphanage.orphans)
    assert reclaimable > 1_000_000

    def reclaimed() -> bool:
        orphanage.garbage.collect()
        return before - orphanage.entry_log_bytes() > 0.9 * reclaimable

    eventually(reclaimed, 60)
    assert grounds.on_bookie(orphanage.orphans) == set()
    for topic, content in orphanage.contents.items():
        assert read_back(grounds, topic) == content, topic
