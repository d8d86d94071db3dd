"""The store that follows a migration: a real ZooKeeper, a real Oxia as its target, and we as the coordinator."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest

from bookwarden.errors import StoreError, StoreMigratingError
from bookwarden.ledgers.metadata import Condition, DeleteResult
from bookwarden.metastore.following.phases import ParticipantState
from bookwarden.metastore.following.progress import MigrationTimes
from bookwarden.metastore.following.store import MigratingStore
from bookwarden_dev.devcluster.ports import LOOPBACK, free_ports
from bookwarden_dev.devcluster.servers.oxia import OxiaServer
from contract.conftest import OxiaStoreMaker, StoreMaker
from servers.lone_zookeeper import LoneZooKeeper
from servers.migration.coordinator import Coordinator
from servers.waiting import eventually

DELETED = DeleteResult.DELETED
LEDGERS = 3000

Follow = Callable[..., MigratingStore]


@pytest.fixture
def root() -> str:
    return f"/t-{uuid4().hex}"


@pytest.fixture
def dead_url() -> str:
    """The URL of an Oxia that nobody runs."""
    return f"oxia://{LOOPBACK}:{free_ports(1)[0]}/default"


@pytest.fixture
def coordinator_of(connect: StoreMaker) -> Iterator[Callable[[str], Coordinator]]:
    """Make the coordinator of a migration to this URL, in a source where a broker of 4.2 has been."""
    made: list[Coordinator] = []

    def make(target_url: str) -> Coordinator:
        made.append(Coordinator(connect(), target_url))
        made[-1].offer()
        made[-1].remove_flag()
        return made[-1]

    yield make
    for coordinator in made:
        coordinator.remove_flag()


@pytest.fixture
def follow(connect: StoreMaker) -> Iterator[Follow]:
    """Make stores that follow migrations, closed after the test."""
    made: list[MigratingStore] = []

    def make(times: MigrationTimes | None = None, **options: object) -> MigratingStore:
        made.append(MigratingStore(connect(**options), times=times))
        return made[-1]

    yield make
    for store in made:
        store.close()


def delete_all(store: MigratingStore, paths: list[str], begun: threading.Event) -> list[str]:
    """Delete as a sweep does: read, delete with what was read, and do again what did not come to an end."""
    gone: list[str] = []
    left = paths
    while left:
        batch, left = left[:100], left[100:]
        try:
            store.sync()
            found = [(path, node) for path, node in zip(batch, store.get_many(batch), strict=True) if node]
            results = store.delete_many([(path, node.version) for path, node in found])
        except StoreError:
            left += batch
            continue
        done = [path for (path, _), result in zip(found, results, strict=True) if result is DELETED]
        gone += done
        left += [path for path in batch if path not in done and path in dict(found)]
        begun.set()
    return gone


def test_deletes_through_a_migration_all_count_and_none_reaches_what_was_copied(
    coordinator_of: Callable[[str], Coordinator],
    follow: Follow,
    oxia_server: OxiaServer,
    connect_oxia: OxiaStoreMaker,
    root: str,
) -> None:
    coordinator, target = coordinator_of(oxia_server.url), connect_oxia()
    source = coordinator.source
    source.create(root, b"")
    paths = [f"{root}/n{number:05d}" for number in range(LEDGERS)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda path: source.create(path, b"ledger"), paths))
    store, begun = follow(batch_size=10, in_flight=2), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(delete_all, store, paths, begun)
        assert begun.wait(60)
        coordinator.set_phase("PREPARATION")
        eventually(lambda: coordinator.participants() == [])
        left_behind = source.list_children(root)
        assert 0 < len(left_behind) < LEDGERS
        coordinator.set_phase("COPYING")
        target.create(root, b"")
        for name in left_behind:
            target.create(f"{root}/{name}", b"ledger")
        assert not work.done()
        coordinator.set_phase("COMPLETED")
        gone = work.result(120)
    source.sync()
    assert source.list_children(root) == left_behind
    assert target.list_children(root) == []
    assert sorted(gone) == paths
    assert store.state is ParticipantState.SERVING_TARGET


def test_a_process_with_the_former_url_follows_to_the_target(
    coordinator_of: Callable[[str], Coordinator],
    follow: Follow,
    oxia_server: OxiaServer,
    connect_oxia: OxiaStoreMaker,
    root: str,
) -> None:
    coordinator_of(oxia_server.url).set_phase("COMPLETED")
    store = follow()
    assert store.get(root) is None
    store.create(root, b"new")
    node = connect_oxia().get(root)
    assert node is not None
    assert node.value == b"new"


def test_a_migration_whose_target_is_down_waits_for_us_and_fails_without_harm(
    coordinator_of: Callable[[str], Coordinator], follow: Follow, dead_url: str, root: str
) -> None:
    coordinator = coordinator_of(dead_url)
    store = follow(MigrationTimes(write_wait_s=1))
    store.create(root, b"1")
    coordinator.set_phase("PREPARATION")
    eventually(lambda: store.state is ParticipantState.CONNECTING_TARGET)
    with pytest.raises(StoreMigratingError, match="PREPARATION"):
        store.put(root, b"2", 0)
    assert len(coordinator.participants()) == 1
    coordinator.set_phase("FAILED")
    eventually(lambda: store.state is ParticipantState.SERVING_SOURCE)
    assert store.put(root, b"2", 0) == 1
    assert len(coordinator.participants()) == 1


@pytest.mark.parametrize("session", ["a session that ends", "a session that lives"])
def test_deletes_go_on_with_another_node_when_ours_is_gone(
    coordinator_of: Callable[[str], Coordinator],
    follow: Follow,
    connect: StoreMaker,
    lone_zookeeper: LoneZooKeeper,
    dead_url: str,
    root: str,
    session: str,
) -> None:
    coordinator, source = coordinator_of(dead_url), connect(batch_size=5, in_flight=4)
    store = MigratingStore(source)
    try:
        store.create(root, b"")
        paths = [f"{root}/n{number:05d}" for number in range(LEDGERS)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda path: coordinator.source.create(path, b"ledger"), paths))
        first = store.participant
        assert first is not None
        with ThreadPoolExecutor(1) as pool:
            work = pool.submit(store.delete_many, [(path, 0) for path in paths])
            # One node is read, not the list of all: on a busy machine the deletes must not end before it is here.
            eventually(lambda: coordinator.source.get(paths[0]) is None, pause=0.01)
            if session == "a session that ends":
                lone_zookeeper.end_session(*source._session._client.client_id)
            else:
                coordinator.source.delete_many([(first, 0)])
            assert work.result(60) == [DELETED] * LEDGERS
        assert store.participant not in (None, first)
        assert coordinator.participants() == [store.participant.rpartition("/")[2]]
    finally:
        store.close()


class Demand:
    """One condition, which may be told to have failed; then there is none."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.failures = 0

    def current(self) -> list[Condition]:
        if self.failures:
            raise StoreMigratingError("the demand failed")
        return [Condition(self._path, 0)]

    def failed(self, condition: Condition) -> None:
        assert condition == (self._path, 0)
        self.failures += 1


@pytest.mark.parametrize("chroot", [False, True])
def test_zookeeper_writes_nothing_when_a_condition_fails(connect: StoreMaker, root: str, chroot: bool) -> None:
    connect().create(root, b"")
    plain = connect(chroot=root) if chroot else connect()
    base = "" if chroot else root
    plain.create(f"{base}/demanded", b"")
    plain.create(f"{base}/node", b"1")
    kept = Demand(f"{base}/demanded")
    store = plain.under(kept)
    assert store.put(f"{base}/node", b"2", 0) == 1
    store.create(f"{base}/other", b"")
    assert store.delete_many([(f"{base}/other", 0), (f"{base}/none", 0), (f"{base}/node", 0)]) == [
        DELETED,
        DeleteResult.ABSENT,
        DeleteResult.LOST_RACE,
    ]
    assert kept.failures == 0
    for write in (
        lambda broken: plain.under(broken).put(f"{base}/node", b"3", 1),
        lambda broken: plain.under(broken).create(f"{base}/third", b""),
        lambda broken: plain.under(broken).delete_many([(f"{base}/node", 1)]),
        lambda broken: plain.under(broken).ephemeral_sequential(f"{base}/id-", b""),
    ):
        demand = Demand(f"{base}/none")
        with pytest.raises(StoreMigratingError):
            write(demand)
        assert demand.failures == 1
    node = plain.get(f"{base}/node")
    assert node is not None
    assert (node.value, node.version) == (b"2", 1)
    assert plain.list_children(base or "/") == ["demanded", "node"]
