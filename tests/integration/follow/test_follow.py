"""What a real broker leaves behind when it dies between its update and its deletes is marked once, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bookwarden.devcluster import ClusterOptions, DevCluster
from bookwarden.ledgers.metadata import StoredLedger
from bookwarden.wiring.metadata import MetadataContext
from servers.deletion_site import DeletionSite
from servers.follow.dropping import DROPPING
from servers.follow.life import living
from servers.follow.site import LATE_S, FollowingSite
from servers.orphan_grounds import BROKER_SETTINGS, ENTRIES_PER_LEDGER, Grounds
from servers.orphan_makers import (
    CursorRolloverAborted,
    NamespaceDeletedByHalves,
    SchemaVersionNotRecorded,
    SubscriptionDeleted,
    TrimCutShort,
    make_orphans,
)
from servers.short_lived import running_until_killed
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def grounds_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    """A cluster whose broker may be killed, and whose ZooKeeper may refuse."""
    options = ClusterOptions(max_entries_per_ledger=ENTRIES_PER_LEDGER, broker_settings=BROKER_SETTINGS)
    with running_until_killed(DevCluster(tmp_path_factory.mktemp("pulsar"), options)) as cluster:
        yield cluster


@pytest.fixture
def site(grounds_of_module: DevCluster, make_namespace: Callable[[DevCluster], str], tmp_path: Path) -> DeletionSite:
    cluster = grounds_of_module
    made = DeletionSite.of(cluster, make_namespace(cluster), tmp_path)
    made.create_topics()
    return made


@pytest.fixture
def following(site: DeletionSite) -> Iterator[FollowingSite]:
    made = FollowingSite(site)
    yield made
    made.process.kill()


@pytest.fixture
def grounds(
    grounds_of_module: DevCluster, site: DeletionSite, make_namespace: Callable[[DevCluster], str]
) -> Iterator[Grounds]:
    with (
        MetadataContext(site.settings) as metadata,
        closing(Grounds(grounds_of_module, metadata, lambda: make_namespace(grounds_of_module))) as made,
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
    following.start()
    makers = [maker(grounds) for maker in (*DROPPED, *NEVER_NAMED)]
    # What is named and dropped between two looks nobody sees.
    made = make_orphans(makers, lambda: eventually(following.has_caught_up, LATE_S, pause=0.5) and None)
    dropped = {ledger for maker, ledgers in made.items() if isinstance(maker, DROPPED) for ledger in ledgers}
    others = {ledger for maker, ledgers in made.items() if isinstance(maker, NEVER_NAMED) for ledger in ledgers}
    assert others
    eventually(lambda: dropped <= set(following.marked()), LATE_S, pause=0.2)
    following.process.stop()
    assert following.marked() == sorted(dropped)

    def swept() -> bool:
        # To ask for the compacted ledger in use loads its topic, which writes the cursor's node: a mark is tried again.
        site.sweep_once(spark)
        return not any(map(_is_there, grounds.metadata.catalog.read_many(sorted(dropped))))

    eventually(swept, 60)
    assert {
        found.ledger_id for found in grounds.metadata.catalog.read_many(sorted(others)) if _is_there(found)
    } == others
    for maker in made:
        if maker.readable and isinstance(maker, DROPPED):
            assert grounds.read_back(maker.topic) == [grounds.message(number) for number in maker.readable]


def test_ordinary_life_leaves_no_mark(
    grounds_of_module: DevCluster, site: DeletionSite, following: FollowingSite, make_namespace: Callable[..., str]
) -> None:
    following.start()
    with living(grounds_of_module, make_namespace(grounds_of_module)) as done:
        eventually(lambda: all(done[name] >= least for name, least in ENOUGH.items()), LATE_S, pause=0.5)
    eventually(lambda: following.told("gone") and following.is_settled(), LATE_S, pause=0.5)
    following.process.stop()
    assert following.marked() == []
    assert following.with_outcome("inside the list") == set()


def _is_there(found: object) -> bool:
    return isinstance(found, StoredLedger)
