"""Drops of every kind are marked once, and nothing else is, on each store; kills and restarts lose none.

Nodes and ledgers are written as brokers and bookies write them, so that each drop leaves its ledger behind.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from bookwarden.ledgers.kinds import (
    BucketHolder,
    CompactedHolder,
    CursorHolder,
    Holder,
    SchemaHolder,
)
from bookwarden.metastore.interface import MetadataStore
from servers.deletion_site import DeletionSite
from servers.each_store import on_each_store
from servers.follow.planted import PlantedNodes
from servers.follow.site import LATE_S, FollowingSite
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def following(site: DeletionSite) -> Iterator[FollowingSite]:
    made = FollowingSite(site, grace_s=5.0)
    yield made
    made.process.kill()


@on_each_store
def test_each_kind_that_is_dropped_is_marked_once_and_swept_and_nothing_else_is(
    store: MetadataStore, site: DeletionSite, following: FollowingSite, spark: SparkSession
) -> None:
    ground = PlantedNodes(store, site.namespace)
    trimmed, gone, cut, emptied, damaged, source, rescued, others = (
        ground.topic(name) for name in ("trimmed", "gone", "cut", "emptied", "damaged", "source", "rescued", "others")
    )
    lists = {holder: ground.named(4, holder) for holder in (trimmed, gone, cut, emptied, damaged, source)}
    # On a topic of their own: the sweep asks its broker about some of these, which loads it and writes its node.
    replaced: list[Holder] = [
        CursorHolder(others.name, "billing"),
        CompactedHolder(others.name),
        BucketHolder(others.name, "delays"),
        SchemaHolder(f"{site.namespace}/others"),
    ]
    ground.named(1, others)
    old = {holder: ground.named(1, holder) for holder in replaced}
    with following.running(spark):
        eventually(following.has_caught_up, LATE_S, pause=0.5)

        ground.population.names(rescued, lists[source])
        for holder in replaced[:3]:
            ground.named(1, holder)
        ground.population.names(trimmed, lists[trimmed][2:])
        ground.remove(f"/schemas/{site.namespace}/others")
        ground.remove(f"/managed-ledgers/{gone.name}")
        ground.remove(f"/managed-ledgers/{source.name}")
        ground.population.names(cut, [lists[cut][0], lists[cut][3]])
        # Not a byte is left of its node, as of a damaged one: neither says anything.
        ground.population.names(emptied, [])
        value = ground.write(f"/managed-ledgers/{damaged.name}", b"\xff\xff")
        expected = sorted([*lists[trimmed][:2], *lists[gone], *(ledger for ids in old.values() for ledger in ids)])
        try:
            eventually(lambda: following.marked() == expected, LATE_S, pause=0.2)
            # They may have come with a later batch than those marked.
            eventually(lambda: following.with_outcome("inside the list") == set(lists[cut][1:3]), LATE_S, pause=0.2)
        finally:
            # While they say nothing no sweep on this cluster deletes a data ledger.
            ground.write(f"/managed-ledgers/{damaged.name}", value)
            ground.population.names(emptied, lists[emptied])
        eventually(following.is_settled, LATE_S, pause=0.2)

    assert following.marked() == expected
    assert following.with_outcome("named again") <= set(lists[source])
    site.sweep_once(spark)
    kept = {ledger for holder in (cut, emptied, damaged, source) for ledger in lists[holder]}
    left = {ledger for ledger in (*expected, *kept) if ground.has(ledger)}
    assert left >= kept
    assert left.isdisjoint(lists[trimmed][:2])
    assert left.isdisjoint(lists[gone])


def test_kills_lose_no_drop_and_a_lost_state_is_told(
    store: MetadataStore, site: DeletionSite, following: FollowingSite, spark: SparkSession
) -> None:
    ground = PlantedNodes(store, site.namespace)
    topic = ground.topic("trimmed")
    ids = ground.named(9, topic)
    following.start()
    assert following.told("the orphan scan alone") == 1
    eventually(following.has_caught_up, LATE_S, pause=0.5)

    ground.population.names(topic, ids[2:])
    eventually(lambda: dict(following.state().timers.items()).keys() >= set(ids[:2]), LATE_S, pause=0.2)
    # With its timers armed, and nothing looked at.
    following.process.kill()
    ground.population.names(topic, ids[4:])
    with following.running(spark):
        assert following.told("are known from before") == 1
        eventually(lambda: following.marked() == ids[:4], LATE_S, pause=0.2)
        ground.population.names(topic, ids[6:])
    shutil.rmtree(site.settings.follow.checkpoint)
    with following.running(spark):
        assert following.told("the orphan scan alone") == 2
        ground.population.names(topic, ids[8:])
        eventually(lambda: following.marked() == [*ids[:4], *ids[6:8]], LATE_S, pause=0.2)
        eventually(following.is_settled, LATE_S, pause=0.2)
    assert following.marked() == [*ids[:4], *ids[6:8]]


def test_a_run_that_ends_marks_what_was_dropped_since_the_last_and_a_dry_one_only_tells(
    store: MetadataStore, site: DeletionSite, following: FollowingSite, spark: SparkSession
) -> None:
    ground = PlantedNodes(store, site.namespace)
    topic = ground.topic("trimmed")
    ids = ground.named(6, topic)
    assert "nothing was due" in following.run_once()
    ground.population.names(topic, ids[2:])
    # It notes them, and their time of grace begins.
    assert "2 to be looked at" in following.run_once()
    # They are due to the second.
    eventually(
        lambda: all(timer.due_ms + 1000 < time.time() * 1000 for _, timer in following.state().timers.items()), LATE_S
    )
    assert "2 would mark" in following.run_once("--dry-run")
    assert following.marked() == []
    assert "2 marked" in following.run_once()
    assert following.marked() == ids[:2]


def test_drops_too_many_to_be_kept_reach_the_sweep_by_the_retry_topic(
    store: MetadataStore,
    site: DeletionSite,
    following: FollowingSite,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ground = PlantedNodes(store, site.namespace)
    topic = ground.topic("trimmed")
    ids = ground.named(6, topic)
    following.run_once()
    ground.population.names(topic, ids[2:])
    monkeypatch.setenv("BOOKWARDEN_FOLLOW__MAX_PENDING", "0")
    said, handed_over = following.run_once(), time.monotonic()
    assert ("2 left to the sweep" in said, "0 to be looked at" in said) == (True, True), said
    assert following.with_outcome("left to the sweep") == set(ids[:2])
    assert all(ground.has(ledger) for ledger in ids)
    # Past the time of grace.
    time.sleep(max(0.0, handed_over + 6 - time.monotonic()))
    site.sweep_once(spark)
    assert [ground.has(ledger) for ledger in ids] == [False] * 2 + [True] * 4
    assert all(row["topic"].startswith(site.settings.deletion.retry_topic) for row in site.outcomes())
