"""The ZooKeeper store on an ensemble that loses its leader, all its servers, its quorum, or the session."""

from __future__ import annotations

import contextlib
import functools
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from uuid import uuid4

import pytest
from kazoo.client import KazooClient

from bookwarden.errors import LostRaceError, OutcomeUnknownError, StoreError, StoreUnavailableError
from bookwarden.ledgers.metadata import DeleteResult
from bookwarden.metastore.zookeeper import requests as wire
from bookwarden.metastore.zookeeper.session import ZooKeeperConnection
from bookwarden.metastore.zookeeper.store import ZooKeeperStore
from bookwarden_dev.devcluster.servers.readiness import zookeeper_mode
from servers.waiting import eventually
from servers.zookeeper_ensemble import ZooKeeperEnsemble

NODES = 1500
DELETED, LOST_RACE = DeleteResult.DELETED, DeleteResult.LOST_RACE
OPEN = (wire.AccessRule(31, "world", "anyone"),)

Connect = Callable[..., ZooKeeperStore]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    ensemble = ZooKeeperEnsemble(tmp_path_factory.mktemp("ensemble"))
    try:
        ensemble.start()
        yield ensemble
    finally:
        ensemble.kill()


@pytest.fixture
def ensemble(servers: ZooKeeperEnsemble) -> ZooKeeperEnsemble:
    """All three voters, whatever the test before did to them."""
    servers.start()
    return servers


@pytest.fixture
def connect(ensemble: ZooKeeperEnsemble) -> Iterator[Connect]:
    made: list[ZooKeeperStore] = []

    def make(hosts: str = ensemble.hosts, **options: object) -> ZooKeeperStore:
        fields = {"session_timeout_s": 8.0, "operation_timeout_s": 60.0, **options}
        made.append(ZooKeeperStore(ZooKeeperConnection(hosts, **fields)))  # type: ignore[arg-type]  # free-form test options
        return made[-1]

    yield make
    for store in made:
        store.close()


def filled(store: ZooKeeperStore, root: str, count: int) -> list[str]:
    """Create the node and so many below it, some hundred with one request."""
    paths = [f"{root}/n{index:05d}" for index in range(count)]
    store.create(root, b"")
    for begin in range(0, count, 500):
        operations = [wire.create_operation(path, b"value", OPEN) for path in paths[begin : begin + 500]]
        assert (
            store._session.send(wire.Multi(operations), store._session.deadline()).get() == paths[begin : begin + 500]
        )
    return paths


def kill_the_leader(ensemble: ZooKeeperEnsemble, _: ZooKeeperStore) -> None:
    ensemble.leader().kill()


def restart_all(ensemble: ZooKeeperEnsemble, _: ZooKeeperStore) -> None:
    ensemble.kill()
    ensemble.start()


def end_the_session(ensemble: ZooKeeperEnsemble, store: ZooKeeperStore) -> None:
    session = store._session._client.client_id
    assert session
    ensemble.leader().end_session(*session)


@pytest.mark.parametrize("disturb", [kill_the_leader, restart_all, end_the_session])
def test_each_result_of_a_disturbed_batch_is_what_the_store_says(
    ensemble: ZooKeeperEnsemble, connect: Connect, disturb: Callable[[ZooKeeperEnsemble, ZooKeeperStore], None]
) -> None:
    root = f"/t-{uuid4().hex}"
    watcher, deleter, changer = connect(), connect(batch_size=3, in_flight=4), connect()
    paths = filled(watcher, root, NODES)
    deleter.sync()
    changer.sync()
    # A tenth is changed: those at the front before their delete, those at the end in a race with it.
    changed = [paths[5], *reversed(paths[10::10])]
    changer.put(changed[0], b"changed", 0)
    with ThreadPoolExecutor(2) as pool:
        work = pool.submit(deleter.delete_many, [(path, 0) for path in paths])
        changes = pool.submit(change_each, changer, changed[1:])
        # One node is read, not the list of all: on a busy machine the deletes must not end before it is here.
        eventually(lambda: watcher.get(paths[61]) is None, pause=0.01)
        assert not work.done()
        lost_before = deleter._session._lost_sessions
        disturb(ensemble, deleter)
        results = work.result(timeout=120)
        changes.result(timeout=120)
    watcher.sync()
    for path, result, node in zip(paths, results, watcher.get_many(paths), strict=True):
        # What was changed is there, with the change; all else is gone; nothing is left open.
        assert (path, result) == (path, DELETED if node is None else LOST_RACE)
        assert node is None or (path in changed and node[:2] == (b"changed", 1))
    assert results[5] is LOST_RACE
    assert disturb is not end_the_session or deleter._session._lost_sessions > lost_before


def change_each(store: ZooKeeperStore, paths: list[str]) -> None:
    """Change each node that is still there, once, through whatever happens to the servers."""
    for path in paths:
        try:
            store.put(path, b"changed", 0)
        except (LostRaceError, OutcomeUnknownError, StoreUnavailableError):
            continue


def test_a_server_without_its_ensemble_is_never_believed(ensemble: ZooKeeperEnsemble, connect: Connect) -> None:
    root = f"/t-{uuid4().hex}"
    behind, *others = ensemble.voters
    writer = connect()
    writer.create(root, b"old")
    writer.sync()
    patience = {"operation_timeout_s": 1.0, "connect_timeout_s": 1.0}
    only_it, any_of_them = connect(behind.hosts, **patience), connect(**patience)
    for store in (only_it, any_of_them):
        eventually(lambda store=store: value_of(store, root) == b"old")
        store.sync()
    behind.kill()
    assert writer.put(root, b"new", 0) == 1
    for server in others:
        server.kill()
    new_one = connect(behind.hosts, **patience)
    with ensemble.parted(behind):
        # Who asks for that is told what was true once.
        assert read_only_value(behind.hosts, root) == b"old"
        for call in (
            functools.partial(new_one.get, root),
            functools.partial(only_it.get, root),
            functools.partial(any_of_them.get_many, [root, "/"]),
            functools.partial(any_of_them.list_children, "/"),
            any_of_them.sync,
            functools.partial(any_of_them.delete_many, [(root, 0)]),
        ):
            with pytest.raises(StoreUnavailableError, match="cannot be reached"):
                call()
    ensemble.start()
    for store in (new_one, only_it, any_of_them):
        eventually(lambda store=store: value_of(store, root) is not None)
        assert value_of(store, root) == b"new"


def value_of(store: ZooKeeperStore, path: str) -> bytes | None:
    """Read the value; None while there is no connection, or nothing to read."""
    with contextlib.suppress(StoreUnavailableError):
        node = store.get(path)
        return None if node is None else node.value
    return None


def read_only_value(hosts: str, path: str) -> bytes:
    client = KazooClient(hosts, timeout=8.0, read_only=True)
    client.start(timeout=30)
    try:
        value: bytes = client.get(path)[0]
    finally:
        client.stop()
        client.close()
    return value


def test_a_server_that_says_it_is_read_only_is_not_asked() -> None:
    asked: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    asked.extend(requests_to_read_only_server(connection))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        hosts = f"127.0.0.1:{listener.getsockname()[1]}"
        connection = ZooKeeperConnection(hosts, chroot="/x", session_timeout_s=8.0, operation_timeout_s=1.0)
        with closing(ZooKeeperStore(connection)) as store:
            for _ in range(2):
                with pytest.raises(StoreUnavailableError, match="answers reads alone"):
                    store.get("/ledgers")
            with pytest.raises(StoreUnavailableError, match="answers reads alone"):
                store.delete_many([("/ledgers", 0)])
    # Pings have a number of their own.
    assert [request for request in asked if request[4:8] != struct.pack("!i", -2)] == []


CLOSE = struct.pack("!i", -11)


def requests_to_read_only_server(connection: socket.socket) -> Iterator[bytes]:
    """Accept a session as a server does that has lost its ensemble, and hear what is asked until the session ends."""
    connection.recv(1000)
    answer = struct.pack("!iiqi16sB", 0, 8000, 1, 16, b"p" * 16, 1)
    connection.sendall(struct.pack("!i", len(answer)) + answer)
    while request := connection.recv(1000):
        if request[8:12] == CLOSE:
            return
        yield request


def test_a_read_after_a_sync_through_an_observer_that_hung_is_not_old(
    ensemble: ZooKeeperEnsemble, connect: Connect
) -> None:
    root = f"/t-{uuid4().hex}"
    writer = connect()
    writer.create(root, b"")
    ensemble.observer.start()
    eventually(lambda: zookeeper_mode(ensemble.observer.port) == "observer")
    try:
        reader = connect(ensemble.observer.hosts)
        reader.sync()
        version = 0
        for _ in range(5):
            with ThreadPoolExecutor(1) as pool:
                ensemble.observer.pause()
                try:
                    for _ in range(40):
                        version = writer.put(root, str(version + 1).encode(), version)
                    read = pool.submit(value_after_sync, reader, root)
                finally:
                    ensemble.observer.resume()
                assert read.result(60) == str(version).encode()
    finally:
        ensemble.observer.kill()


def value_after_sync(store: ZooKeeperStore, path: str) -> bytes:
    store.sync()
    node = store.get(path)
    assert node is not None
    return node.value


def test_a_value_that_the_servers_do_not_take_is_refused_before_it_is_sent(connect: Connect) -> None:
    root = f"/t-{uuid4().hex}"
    store = connect()
    store.create(root, b"")
    session = store._session._client.client_id
    for write in (lambda: store.put(root, b"v" * 1_048_000, 0), lambda: store.create(f"{root}/x", b"v" * 1_048_000)):
        with pytest.raises(
            StoreError, match=r"cannot be written: 1,048,\d+ bytes are more .* metadata_store.jute_maxb"
        ):
            write()
    assert store.put(root, b"v" * 1_046_000, 0) == 1
    assert store._session._client.client_id == session
