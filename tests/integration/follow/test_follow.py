"""What a real broker leaves behind when it dies between its update and its deletes is marked once, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from pyspark.sql import SparkSession

from bookwarden.ledgers.metadata import StoredLedger
from bookwarden.wiring.cluster import Cluster
from bookwarden_dev.devcluster import DevCluster
from servers.deletion_site import DeletionSite
from servers.follow.dropping import DROPPING
from servers.follow.life import living
from servers.follow.site import LATE_S, FollowingSite
from servers.orphan_grounds import Grounds
from servers.orphan_makers import (
    CursorRolloverAborted,
    NamespaceDeletedByHalves,
    SchemaVersionNotRecorded,
    SubscriptionDeleted,
    TrimCutShort,
    make_orphans,
)
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def following(site: DeletionSite) -> FollowingSite:
    return FollowingSite(site)


@pytest.fixture
def grounds(
    pulsar_cluster: DevCluster, site: DeletionSite, make_namespace: Callable[[DevCluster], str]
) -> Iterator[Grounds]:
    with (
        Cluster(site.settings) as opened,
        closing(Grounds(pulsar_cluster, opened, lambda: make_namespace(pulsar_cluster))) as made,
    ):
        yield made


# So often each thing is done to topics that live.
ENOUGH = {
    "send": 25,
    "trim": 12,
    "acknowledge": 6,
    "compact": 3,
    "delete_topic": 3,
    "delete_subscription": 3,
    "unload": 2,
}
# What was named, and what never was: that is the scan's alone.
DROPPED = (TrimCutShort, SubscriptionDeleted, NamespaceDeletedByHalves, *DROPPING)
NEVER_NAMED = (CursorRolloverAborted, SchemaVersionNotRecorded)


def test_what_a_killed_broker_dropped_is_marked_once_and_swept_and_nothing_else(
    grounds: Grounds, following: FollowingSite, site: DeletionSite, spark: SparkSession
) -> None:
    with following.running(spark):
        makers = [maker(grounds) for maker in (*DROPPED, *NEVER_NAMED)]
        # What is named and dropped between two looks nobody sees.
        made = make_orphans(makers, lambda: eventually(following.has_caught_up, LATE_S, pause=0.5) and None)
        dropped = {ledger for maker, ledgers in made.items() if isinstance(maker, DROPPED) for ledger in ledgers}
        others = {ledger for maker, ledgers in made.items() if isinstance(maker, NEVER_NAMED) for ledger in ledgers}
        assert others
        eventually(lambda: dropped <= set(following.marked()), LATE_S, pause=0.2)
    assert following.marked() == sorted(dropped)

    def swept() -> bool:
        # To ask for the compacted ledger in use loads its topic, which writes the cursor's node: a mark is tried again.
        site.sweep_once(spark)
        return not any(map(_is_there, grounds.opened.bookkeeper.catalog.read_many(sorted(dropped))))

    eventually(swept, 60)
    assert {
        found.ledger_id for found in grounds.opened.bookkeeper.catalog.read_many(sorted(others)) if _is_there(found)
    } == others
    for maker in made:
        if maker.readable and isinstance(maker, DROPPED):
            assert grounds.read_back(maker.topic) == [grounds.message(number) for number in maker.readable]


def test_ordinary_life_leaves_no_mark(
    pulsar_cluster: DevCluster, following: FollowingSite, make_namespace: Callable[..., str], spark: SparkSession
) -> None:
    with following.running(spark):
        with living(pulsar_cluster, make_namespace(pulsar_cluster)) as done:
            eventually(lambda: all(done[name] >= least for name, least in ENOUGH.items()), LATE_S, pause=0.5)
        eventually(lambda: following.told("gone") and following.is_settled(), LATE_S, pause=0.5)
    assert following.marked() == []
    assert following.with_outcome("inside the list") == set()


def _is_there(found: object) -> bool:
    return isinstance(found, StoredLedger)
