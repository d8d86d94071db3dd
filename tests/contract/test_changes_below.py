"""Changes below some nodes while connections break, sessions end, servers restart, and the metadata moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

from bookwarden.config import load_settings
from bookwarden.errors import StoreUnavailableError
from bookwarden.follow.table import NodeNow
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.metastore.changes import ChangeFeed
from bookwarden.metastore.following.progress import MigrationTimes
from bookwarden.metastore.following.store import MigratingStore
from bookwarden.metastore.oxia.store import OxiaStore
from bookwarden.metastore.zookeeper import requests
from bookwarden.metastore.zookeeper.store import ZooKeeperStore
from bookwarden_dev.devcluster.servers.oxia import OxiaServer
from contract.conftest import OxiaStoreMaker, StoreMaker
from servers.follow.step_by_step import StepByStep
from servers.lone_zookeeper import LoneZooKeeper
from servers.lossy_proxy import LossyProxy
from servers.migration.coordinator import Coordinator, copy_all
from servers.population import Population
from servers.waiting import eventually


@pytest.fixture
def proxy(lone_zookeeper: LoneZooKeeper) -> Iterator[LossyProxy]:
    made = LossyProxy(lone_zookeeper.port)
    yield made
    made.close()


@pytest.fixture
def root(connect: StoreMaker) -> str:
    path = f"/t-{uuid4().hex}"
    connect().create(path, b"")
    return path


def gap_of(feed: ChangeFeed) -> str:
    """Take until a gap is told."""
    gaps: list[str] = []

    def told() -> bool:
        try:
            gaps.append(feed.take().gap)
        except StoreUnavailableError:
            return False
        return bool(gaps[-1])

    eventually(told)
    return gaps[-1]


def tells(feed: ChangeFeed, path: str) -> None:
    """Require that the feed tells this path, and no gap."""

    def told() -> bool:
        changed = feed.take()
        assert not changed.gap
        return path in changed.paths

    eventually(told)


def test_what_changed_while_a_connection_was_broken_is_a_gap(connect: StoreMaker, proxy: LossyProxy, root: str) -> None:
    other, store = connect(), connect(hosts=f"127.0.0.1:{proxy.port}")
    feed = store.follow_below([root])
    proxy.cut_off()
    other.create(f"{root}/missed", b"")
    proxy.let_through()
    assert "broke" in gap_of(feed)
    other.create(f"{root}/seen", b"")
    tells(feed, f"{root}/seen")


def test_a_session_that_ended_is_a_gap(connect: StoreMaker, lone_zookeeper: LoneZooKeeper, root: str) -> None:
    other, store = connect(), connect()
    feed = store.follow_below([root])
    lone_zookeeper.end_session(*store._session._client.client_id)
    assert "broke" in gap_of(feed)
    other.create(f"{root}/seen", b"")
    tells(feed, f"{root}/seen")


def test_a_restart_of_the_server_is_a_gap(connect: StoreMaker, lone_zookeeper: LoneZooKeeper, root: str) -> None:
    other, store = connect(), connect()
    feed = store.follow_below([root])
    lone_zookeeper.kill()
    lone_zookeeper.start()
    assert "broke" in gap_of(feed)
    other.create(f"{root}/seen", b"")
    tells(feed, f"{root}/seen")


def test_a_server_without_such_watches_leaves_a_gap_each_time(
    connect: StoreMaker, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As an older server answers to a request that it does not know.
    monkeypatch.setattr(requests.AddWatch, "type", 1006)
    feed = connect().follow_below([root])
    told = feed.take()
    assert told.unwatched
    assert "older than 3.6" in told.gap
    assert feed.take() == told


def test_changes_are_told_by_their_paths_below_a_chroot(connect: StoreMaker, root: str) -> None:
    other, store = connect(), connect(chroot=root)
    feed = store.follow_below(["/managed-ledgers"])
    other.create(f"{root}/managed-ledgers/tenant", b"", make_parents=True)
    tells(feed, "/managed-ledgers/tenant")


def test_a_lost_stream_of_oxia_is_a_gap(connect_oxia: OxiaStoreMaker, oxia_server: OxiaServer) -> None:
    store, other = connect_oxia(), connect_oxia()
    root = f"/t-{uuid4().hex}"
    store.create(root, b"")
    feed = store.follow_below([root])
    with oxia_server.outage():
        pass
    assert "broke" in gap_of(feed)
    # Each of the three shards has a stream of its own, and leaves a gap of its own.
    eventually(lambda: _are_told(feed, other, root))


def _are_told(feed: ChangeFeed, store: OxiaStore, root: str) -> bool:
    name = uuid4().hex
    paths = {f"{root}/{name}-{number}" for number in range(20)}
    try:
        for path in paths:
            store.create(path, b"")
    except StoreUnavailableError:
        return False
    found: set[str] = set()

    def told() -> bool:
        changed = feed.take()
        found.update(changed.paths)
        return bool(changed.gap) or paths <= found

    eventually(told)
    return paths <= found


@pytest.fixture
def migrating(connect: StoreMaker, oxia_server: OxiaServer) -> Iterator[Callable[[], MigratingStore]]:
    made: list[MigratingStore] = []

    def make() -> MigratingStore:
        made.append(MigratingStore(connect(), times=MigrationTimes(look_s=0.2)))
        return made[-1]

    yield make
    for store in made:
        store.close()


def test_a_move_of_the_metadata_is_a_gap_and_the_target_is_followed(
    connect: StoreMaker,
    migrating: Callable[[], MigratingStore],
    connect_oxia: OxiaStoreMaker,
    oxia_server: OxiaServer,
    root: str,
) -> None:
    source: ZooKeeperStore = connect()
    store, target = migrating(), connect_oxia()
    feed = store.follow_below([root])
    source.create(f"{root}/before", b"")
    tells(feed, f"{root}/before")
    target.create(root, b"", make_parents=True)
    coordinator = Coordinator(source, oxia_server.url)
    coordinator.offer()
    coordinator.set_phase("COMPLETED")
    assert "moved" in gap_of(feed)
    target.create(f"{root}/after", b"")
    tells(feed, f"{root}/after")
    coordinator.remove_flag()


def test_the_source_goes_along_with_a_move_and_compares_everything_with_the_target(
    connect: StoreMaker,
    connect_oxia: OxiaStoreMaker,
    oxia_server: OxiaServer,
    lone_zookeeper: LoneZooKeeper,
    root: str,
) -> None:
    source, target = connect(chroot=root), connect_oxia()
    holders = [ManagedLedgerHolder(f"moved/n/persistent/{name}") for name in ("kept", "changed", "gone")]
    kept, changed, gone = (Population(source).names(holder, [1, 2]) for holder in holders)
    coordinator = Coordinator(source, oxia_server.url)
    coordinator.offer()
    following = StepByStep(load_settings(overrides={"metadata_store.urls": f"['zk:{lone_zookeeper.hosts}{root}']"}))
    assert {kept, changed, gone} <= set(following.paths())
    coordinator.set_phase("COPYING")
    target.create("/managed-ledgers", b"")
    copy_all(source, target, "/managed-ledgers")
    coordinator.set_phase("COMPLETED")
    try:
        # What is written to the former store counts no more.
        Population(target).names(holders[1], [2, 3])
        node = target.get(gone)
        assert node is not None
        target.delete_many([(gone, node.version)])
        found: dict[str, NodeNow] = {}

        def moved() -> bool:
            found.update({row.path: row for row in following.drained() if isinstance(row, NodeNow)})
            return changed in found and found[changed].naming != found[kept].naming

        eventually(moved)
        assert kept in found
        assert gone not in found or found[gone].naming is None
        Population(target).names(holders[0], [2])
        eventually(lambda: kept in following.paths())
    finally:
        coordinator.remove_flag()
