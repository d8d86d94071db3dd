"""The ZooKeeper store while its server is killed, hangs, or forgets the session."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from uuid import uuid4

import pytest

from bookwarden.errors import OutcomeUnknownError, StoreUnavailableError
from bookwarden.ledgers.metadata import DeleteResult
from bookwarden.metastore.zookeeper.store import ZooKeeperStore
from contract.conftest import StoreMaker
from servers.lone_zookeeper import LoneZooKeeper
from servers.lossy_proxy import LossyProxy
from servers.waiting import eventually

DELETED, ABSENT, LOST_RACE, UNKNOWN = (
    DeleteResult.DELETED,
    DeleteResult.ABSENT,
    DeleteResult.LOST_RACE,
    DeleteResult.UNKNOWN,
)


@pytest.fixture
def root(connect: StoreMaker) -> str:
    path = f"/t-{uuid4().hex}"
    connect().create(path, b"")
    return path


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as threads:
        yield threads


@pytest.fixture
def proxy(lone_zookeeper: LoneZooKeeper) -> Iterator[LossyProxy]:
    made = LossyProxy(lone_zookeeper.port)
    yield made
    made.close()


def fill(store: ZooKeeperStore, root: str, count: int) -> list[str]:
    paths = [f"{root}/n{index:05d}" for index in range(count)]
    for path in paths:
        store.create(path, b"value")
    return paths


def end_session_of(store: ZooKeeperStore, server: LoneZooKeeper) -> bool:
    """End the store's present session, if it has one."""
    client = store._session._client
    session = client and client.client_id
    if not session or not session[0]:
        return False
    server.end_session(*session)
    return True


@pytest.mark.parametrize("seen_deleted", [1, 300, 900])
def test_a_server_killed_in_mid_batch_leaves_each_result_right(
    connect: StoreMaker, root: str, lone_zookeeper: LoneZooKeeper, pool: ThreadPoolExecutor, seen_deleted: int
) -> None:
    watcher, deleter = connect(), connect(batch_size=3, in_flight=4)
    paths = fill(watcher, root, 2000)
    stale, gone = set(paths[5::97]), set(paths[6::97])
    for path in stale:
        watcher.put(path, b"changed", 0)
    watcher.delete_many([(path, 0) for path in gone])
    deleter.sync()
    work: Future[list[DeleteResult]] = pool.submit(deleter.delete_many, [(path, 0) for path in paths])
    eventually(lambda: len(watcher.list_children(root)) <= 2000 - len(gone) - seen_deleted)
    assert not work.done()
    lone_zookeeper.kill()
    lone_zookeeper.start()
    results = dict(zip(paths, work.result(timeout=120), strict=True))
    watcher.sync()
    for path, node in zip(paths, watcher.get_many(paths), strict=True):
        expected = LOST_RACE if path in stale else DELETED
        if path in gone:
            # In doubt, a node that was absent all along cannot be told from one that we deleted.
            assert results[path] in (ABSENT, DELETED)
        else:
            assert results[path] is expected, path
        assert (node is not None) == (path in stale), path


def test_deletes_whose_answers_were_lost_are_read_back(
    connect: StoreMaker, root: str, proxy: LossyProxy, pool: ThreadPoolExecutor
) -> None:
    direct, store = connect(), connect(hosts=f"127.0.0.1:{proxy.port}")
    paths = fill(direct, root, 250)
    created = [node.created_ms for node in store.get_many(paths) if node is not None]
    proxy.lose_answers()
    work = pool.submit(store.delete_many, [(path, 0) for path in paths], created_ms=created)
    eventually(lambda: direct.list_children(root) == [])
    # Somebody makes two of them anew, with the version that the lost ones had.
    direct.create(paths[7], b"another")
    direct.create(paths[201], b"another")
    proxy.break_connections()
    results = work.result(timeout=60)
    assert results == [LOST_RACE if index in (7, 201) else DELETED for index in range(250)]
    assert direct.list_children(root) == ["n00007", "n00201"]


def test_a_write_whose_answer_was_lost_is_in_doubt_and_not_repeated(
    connect: StoreMaker, root: str, proxy: LossyProxy, pool: ThreadPoolExecutor
) -> None:
    direct, store = connect(), connect(hosts=f"127.0.0.1:{proxy.port}")
    store.sync()
    proxy.lose_answers()
    work = pool.submit(store.put, root, b"once", 0)
    eventually(lambda: value_of(direct, root) == b"once")
    proxy.break_connections()
    with pytest.raises(OutcomeUnknownError, match="read it before retrying"):
        work.result(timeout=60)
    node = store.get(root)
    assert node is not None
    assert node.version == 1


def value_of(store: ZooKeeperStore, path: str) -> bytes | None:
    node = store.get(path)
    return node and node.value


def test_a_delete_that_was_never_sent_is_never_sent_later(
    connect: StoreMaker, root: str, lone_zookeeper: LoneZooKeeper
) -> None:
    store = connect(operation_timeout_s=1.0)
    paths = fill(store, root, 300)
    lone_zookeeper.kill()
    try:
        for _ in range(3):
            with pytest.raises(StoreUnavailableError):
                store.delete_many([(path, 0) for path in paths])
        with pytest.raises(StoreUnavailableError):
            store.get_many(paths)
    finally:
        lone_zookeeper.start()
    patient = connect()
    assert all(patient.get_many(paths))
    eventually(lambda: answers(store, root))
    assert all(store.get_many(paths))


def answers(store: ZooKeeperStore, path: str) -> bool:
    try:
        return store.get(path) is not None
    except StoreUnavailableError:
        return False


def test_a_server_that_hangs_leaves_the_outcome_unknown(
    connect: StoreMaker, root: str, lone_zookeeper: LoneZooKeeper
) -> None:
    store = connect(operation_timeout_s=1.0)
    paths = fill(store, root, 50)
    lone_zookeeper.pause()
    try:
        assert store.delete_many([(path, 0) for path in paths]) == [UNKNOWN] * 50
        with pytest.raises((OutcomeUnknownError, StoreUnavailableError)):
            store.put(root, b"", 0)
    finally:
        lone_zookeeper.resume()
    eventually(lambda: answers(store, root))
    store.sync()
    again = connect().delete_many([(path, 0) for path in paths])
    assert set(again) <= {DELETED, ABSENT}
    assert connect().list_children(root) == []


def test_calls_go_on_in_a_new_session_when_the_old_one_expired(
    connect: StoreMaker, root: str, lone_zookeeper: LoneZooKeeper
) -> None:
    store, other = connect(), connect()
    paths = fill(store, root, 150)
    store.sync()
    for round_ in range(3):
        end_session_of(store, lone_zookeeper)
        other.create(f"{root}/later{round_}", b"")
        assert len(store.list_children(root)) == 151 + round_
        assert all(store.get_many(paths))
    end_session_of(store, lone_zookeeper)
    assert store.delete_many([(path, 0) for path in paths]) == [DELETED] * 150


def test_reads_and_deletes_get_through_sessions_that_keep_expiring(
    connect: StoreMaker, root: str, lone_zookeeper: LoneZooKeeper, pool: ThreadPoolExecutor
) -> None:
    store = connect(batch_size=5, in_flight=3)
    paths = fill(connect(), root, 1500)
    assert all(store.get_many(paths))
    done = threading.Event()

    def disturb() -> int:
        count = 0
        while count < 20 and not done.is_set():
            count += end_session_of(store, lone_zookeeper)
        return count

    disturbance = pool.submit(disturb)
    try:
        assert all(store.get_many(paths))
        results = store.delete_many([(path, 0) for path in paths])
    finally:
        done.set()
    assert results == [DELETED] * 1500
    assert disturbance.result() > 0
    assert store.get_many(paths) == [None] * 1500


def test_a_watch_survives_a_lost_session_and_reports_it(
    connect: StoreMaker, root: str, lone_zookeeper: LoneZooKeeper
) -> None:
    store, other = connect(), connect()
    calls = threading.Semaphore(0)
    end = store.watch(f"{root}/watched", lambda _path: calls.release())
    end_session_of(store, lone_zookeeper)
    assert calls.acquire(timeout=30), "the lost session was not reported"
    eventually(lambda: answers(store, root))
    other.create(f"{root}/watched", b"")
    assert calls.acquire(timeout=30), "the change after the lost session was not reported"
    end()


def test_a_request_larger_than_the_server_takes_is_cut_until_it_fits(connect: StoreMaker, root: str) -> None:
    store = connect(max_request_bytes=8_000_000, batch_size=400)
    parent = f"{root}/{'p' * 10_000}"
    store.create(parent, b"")
    paths = fill(store, parent, 300)
    assert all(store.get_many(paths))
    assert store.delete_many([(path, 0) for path in paths]) == [DELETED] * 300
