"""The Oxia store on a real server of three shards: its keys, and what happens while the server is killed or hangs."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from uuid import uuid4

import grpc
import pytest

from bookwarden.errors import ConfigError, OutcomeUnknownError, StoreError, StoreUnavailableError, StoreWedgedError
from bookwarden.ledgers.metadata import DeleteResult
from bookwarden.metastore.oxia.shards import Shard
from bookwarden.metastore.oxia.store import OxiaStore
from bookwarden.metastore.oxia.writes import PendingWrite
from bookwarden.metastore.urls import open_store
from bookwarden.wire.pb.oxia_client_pb2 import PutRequest, WriteRequest
from bookwarden_dev.devcluster.servers.oxia import OxiaServer, ensure_oxia
from contract.conftest import OxiaStoreMaker
from servers.lossy_proxy import LossyProxy
from servers.waiting import eventually

DELETED, ABSENT, LOST_RACE, UNKNOWN = (
    DeleteResult.DELETED,
    DeleteResult.ABSENT,
    DeleteResult.LOST_RACE,
    DeleteResult.UNKNOWN,
)


@pytest.fixture
def root(connect_oxia: OxiaStoreMaker) -> str:
    path = f"/t-{uuid4().hex}"
    connect_oxia().create(path, b"")
    return path


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as threads:
        yield threads


@pytest.fixture
def proxy(oxia_server: OxiaServer) -> Iterator[LossyProxy]:
    made = LossyProxy(oxia_server.ports.public)
    yield made
    made.close()


def fill(store: OxiaStore, root: str, count: int) -> list[str]:
    paths = [f"{root}/n{index:05d}" for index in range(count)]
    for path in paths:
        store.create(path, b"value")
    return paths


def expected_of(store: OxiaStore, paths: Sequence[str]) -> list[tuple[str, int]]:
    found = [(path, node.version) for path, node in zip(paths, store.get_many(paths), strict=True) if node]
    assert len(found) == len(paths)
    return found


def value_of(store: OxiaStore, path: str) -> bytes | None:
    node = store.get(path)
    return node and node.value


def answers(store: OxiaStore, path: str) -> bool:
    try:
        return store.get(path) is not None
    except StoreUnavailableError:
        return False


def client(server: OxiaServer, *arguments: str, stdin: str = "") -> str:
    """Run Oxia's own client."""
    command = [str(ensure_oxia()), "client", "-a", server.address, *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=True).stdout


def test_keys_lie_on_the_shards_where_oxia_s_own_client_has_them(
    connect_oxia: OxiaStoreMaker, root: str, oxia_server: OxiaServer
) -> None:
    store = connect_oxia()
    paths = fill(store, root, 12)
    shards = store._cluster.shards(store._cluster.deadline())
    assert len({shards.of(path).id for path in paths}) == oxia_server.shards == 3
    for path in paths:
        assert "value" in client(oxia_server, "get", path)
        client(oxia_server, "put", path, "theirs")
    assert [node and node.value for node in store.get_many(paths)] == [b"theirs"] * 12


def test_parents_are_keys_without_a_value_as_pulsar_makes_them(connect_oxia: OxiaStoreMaker, root: str) -> None:
    store = connect_oxia()
    store.create(f"{root}/ledgers/00/0000/L0001", b"ledger", make_parents=True)
    parents = [f"{root}/ledgers", f"{root}/ledgers/00", f"{root}/ledgers/00/0000"]
    assert [node and node.value for node in store.get_many(parents)] == [b""] * 3
    assert root.strip("/") in store.list_children("/")


def test_a_sequential_node_is_numbered_by_the_writes_of_its_parent_which_keeps_its_value(
    connect_oxia: OxiaStoreMaker, root: str
) -> None:
    store = connect_oxia()
    store.create(f"{root}/p", b"kept")
    assert store.ephemeral_sequential(f"{root}/p/id-", b"") == f"{root}/p/id-0000000001"
    store.put(f"{root}/p", b"kept", expected_of(store, [f"{root}/p"])[0][1])
    assert store.ephemeral_sequential(f"{root}/p/id-", b"") == f"{root}/p/id-0000000003"
    assert value_of(store, f"{root}/p") == b"kept"


def test_a_tenth_of_the_versions_changed_under_the_batch(connect_oxia: OxiaStoreMaker, root: str) -> None:
    store, other = connect_oxia(batch_size=40), connect_oxia()
    paths = fill(store, root, 1000)
    asked = expected_of(store, paths)
    for path, version in asked[3::10]:
        other.put(path, b"changed", version)
    other.create(f"{paths[5]}/deep/child", b"", make_parents=True)
    results = store.delete_many(asked)
    for index, result in enumerate(results):
        assert result is (LOST_RACE if index % 10 == 3 or index == 5 else DELETED), paths[index]
    left = [index for index, node in enumerate(store.get_many(paths)) if node is not None]
    assert left == sorted([5, *range(3, 1000, 10)])


@pytest.mark.parametrize("seen_deleted", [1, 700])
def test_a_server_killed_in_mid_batch_leaves_each_result_right(
    connect_oxia: OxiaStoreMaker, root: str, oxia_server: OxiaServer, pool: ThreadPoolExecutor, seen_deleted: int
) -> None:
    watcher, deleter = connect_oxia(), connect_oxia(batch_size=2, in_flight=2)
    paths = fill(watcher, root, 1500)
    asked = expected_of(watcher, paths)
    stale, gone = set(paths[5::97]), set(paths[6::97])
    for path, version in asked:
        if path in stale:
            watcher.put(path, b"changed", version)
    watcher.delete_many([pair for pair in asked if pair[0] in gone])
    deleter.sync()
    work: Future[list[DeleteResult]] = pool.submit(deleter.delete_many, asked)
    eventually(lambda: len(watcher.list_children(root)) <= 1500 - len(gone) - seen_deleted)
    assert not work.done()
    oxia_server.kill()
    oxia_server.start()
    results = dict(zip(paths, work.result(timeout=120), strict=True))
    for path, node in zip(paths, watcher.get_many(paths), strict=True):
        if path in gone:
            # In doubt, a key that was absent all along cannot be told from one that we deleted.
            assert results[path] in (ABSENT, DELETED)
        else:
            assert results[path] is (LOST_RACE if path in stale else DELETED), path
        assert (node is not None) == (path in stale), path


def test_deletes_whose_answers_were_lost_are_read_back(
    connect_oxia: OxiaStoreMaker, root: str, proxy: LossyProxy, pool: ThreadPoolExecutor
) -> None:
    direct, store = connect_oxia(), connect_oxia(address=f"127.0.0.1:{proxy.port}")
    paths = fill(direct, root, 250)
    asked = expected_of(store, paths)
    created = [node.created_ms for node in store.get_many(paths) if node is not None]
    send = store._writers.send

    def lose_answers_and_send(shard: Shard, request: WriteRequest, after: PendingWrite | None = None) -> PendingWrite:
        # Reads before the deletes have their answers.
        store._writers.send = send  # type: ignore[method-assign]
        proxy.lose_answers()
        return send(shard, request, after)

    store._writers.send = lose_answers_and_send  # type: ignore[method-assign]
    work = pool.submit(store.delete_many, asked, created_ms=created)
    eventually(lambda: direct.list_children(root) == [])
    # Somebody makes one of them anew.
    direct.create(paths[7], b"another")
    proxy.break_connections()
    assert work.result(timeout=60) == [LOST_RACE if index == 7 else DELETED for index in range(250)]
    assert direct.list_children(root) == ["n00007"]


def test_a_write_whose_answer_was_lost_is_in_doubt_and_not_repeated(
    connect_oxia: OxiaStoreMaker, root: str, proxy: LossyProxy, pool: ThreadPoolExecutor
) -> None:
    direct, store = connect_oxia(), connect_oxia(address=f"127.0.0.1:{proxy.port}")
    ((_, version),) = expected_of(store, [root])
    proxy.lose_answers()
    work = pool.submit(store.put, root, b"once", version)
    eventually(lambda: value_of(direct, root) == b"once")
    ((_, changed),) = expected_of(direct, [root])
    proxy.break_connections()
    with pytest.raises(OutcomeUnknownError, match="read it before retrying"):
        work.result(timeout=60)
    eventually(lambda: answers(store, root))
    assert expected_of(store, [root]) == [(root, changed)]


def test_what_was_never_sent_is_never_sent_later(
    connect_oxia: OxiaStoreMaker, root: str, oxia_server: OxiaServer
) -> None:
    store = connect_oxia(operation_timeout_s=1.0)
    paths = fill(store, root, 300)
    asked = expected_of(store, paths)
    with oxia_server.outage():
        for _ in range(3):
            with pytest.raises(StoreUnavailableError):
                store.delete_many(asked)
        with pytest.raises(StoreUnavailableError):
            store.put(root, b"", 0)
        with pytest.raises(StoreUnavailableError, match="check that it runs"):
            store.get_many(paths)
    assert all(connect_oxia().get_many(paths))
    eventually(lambda: answers(store, root))
    assert store.delete_many(asked) == [DELETED] * 300


def test_a_server_that_hangs_leaves_the_outcome_unknown(
    connect_oxia: OxiaStoreMaker, root: str, oxia_server: OxiaServer, pool: ThreadPoolExecutor
) -> None:
    store = connect_oxia(operation_timeout_s=1.0, batch_size=1, in_flight=1)
    asked = expected_of(store, fill(store, root, 1500))
    other = connect_oxia()
    work = pool.submit(store.delete_many, asked)
    eventually(lambda: len(other.list_children(root)) < 1500)
    with oxia_server.paused():
        results = work.result(timeout=60)
        with pytest.raises((OutcomeUnknownError, StoreUnavailableError)):
            store.put(root, b"", 0)
    assert set(results) == {DELETED, UNKNOWN}
    again = connect_oxia().delete_many([pair for pair, result in zip(asked, results, strict=True) if result is UNKNOWN])
    assert set(again) <= {DELETED, ABSENT}
    assert connect_oxia().list_children(root) == []


def test_a_watch_survives_a_restart_of_the_server_and_reports_it(
    connect_oxia: OxiaStoreMaker, root: str, oxia_server: OxiaServer
) -> None:
    store, other = connect_oxia(), connect_oxia()
    calls = threading.Semaphore(0)
    end = store.watch(f"{root}/watched", lambda _path: calls.release())
    with oxia_server.outage():
        assert not calls.acquire(blocking=False)
    assert calls.acquire(timeout=30), "the lost stream was not reported"
    eventually(lambda: answers(other, root))
    other.create(f"{root}/watched", b"")
    assert calls.acquire(timeout=30), "the change after the lost stream was not reported"
    end()


def test_ephemeral_nodes_outlive_a_restart_of_the_server(
    connect_oxia: OxiaStoreMaker, root: str, oxia_server: OxiaServer
) -> None:
    store, other = connect_oxia(), connect_oxia()
    path = store.ephemeral_sequential(f"{root}/id-", b"me")
    oxia_server.restart()
    eventually(lambda: answers(other, root))
    assert value_of(other, path) == b"me"
    store.close()
    assert value_of(other, path) is None


def test_a_session_that_ended_is_reported_to_watchers_and_followed_by_another(
    connect_oxia: OxiaStoreMaker, root: str
) -> None:
    store, other = connect_oxia(session_timeout_s=2.0), connect_oxia()
    path = store.ephemeral_sequential(f"{root}/id-", b"me")
    calls = threading.Semaphore(0)
    end = store.watch(path, lambda _path: calls.release())
    ((shard, session),) = store._sessions._sessions.items()
    leader = next(one for one in other._cluster.shards(other._cluster.deadline()).shards if one.id == shard)
    other._cluster.server(leader).close_session(shard, session, 30.0)
    # Once for the node that is gone, once for the session.
    assert calls.acquire(timeout=30)
    assert calls.acquire(timeout=30)
    end()
    assert value_of(other, path) is None
    again = store.ephemeral_sequential(f"{root}/id-", b"me")
    assert value_of(other, again) == b"me"


def test_a_shard_that_others_wedged_stops_every_write_until_its_server_is_restarted(
    connect_oxia: OxiaStoreMaker, root: str, oxia_server: OxiaServer
) -> None:
    store = connect_oxia(batch_size=10)
    asked = expected_of(store, fill(store, root, 100))
    (shard, *_) = store._cluster.shards(store._cluster.deadline()).shards
    try:
        wedge(oxia_server, shard.id)
        with pytest.raises(StoreWedgedError, match="restart that server"):
            store.delete_many([pair for pair in asked if store_shard(store, pair[0]) == shard])
        with pytest.raises(StoreWedgedError, match="restart that server"):
            store.create(next(path for path in names(root) if store_shard(store, path) == shard), b"")
        assert all(store.get_many([path for path, _ in asked]))
    finally:
        oxia_server.restart()
    eventually(lambda: answers(store, root))
    assert store.delete_many(asked) == [DELETED] * 100


def names(root: str) -> Iterator[str]:
    return (f"{root}/other{number}" for number in count())


def store_shard(store: OxiaStore, path: str) -> Shard:
    return store._cluster.shards(store._cluster.deadline()).of(path)


def wedge(server: OxiaServer, shard: int) -> None:
    """Write over many connections at once until the shard takes no more."""
    wedged = threading.Event()
    texts: list[str] = []

    def write(number: int) -> None:
        with grpc.insecure_channel(server.address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            call = channel.unary_unary(
                "/io.streamnative.oxia.proto.OxiaClient/Write", request_serializer=WriteRequest.SerializeToString
            )
            request = WriteRequest(shard=shard, puts=[PutRequest(key=f"/wedge/{number}", value=b"x")])
            while not wedged.is_set():
                try:
                    call(request, timeout=30)
                except grpc.RpcError as error:
                    texts.append(error.details())
                    wedged.set()

    with ThreadPoolExecutor(16) as writers:
        for writer in [writers.submit(write, number) for number in range(16)]:
            writer.result(timeout=120)
    assert texts
    assert all("can not immediately follow" in text for text in texts), texts


def test_a_namespace_that_does_not_exist_is_an_error_and_not_an_empty_store(oxia_server: OxiaServer) -> None:
    store = open_store(f"oxia://{oxia_server.address}/elsewhere")
    with pytest.raises(ConfigError, match="no such namespace: check the last part of the metadata store's URL"):
        store.get("/ledgers")
    store.close()


def test_a_value_over_the_limit_is_refused_and_harms_no_later_call(connect_oxia: OxiaStoreMaker, root: str) -> None:
    store = connect_oxia()
    with pytest.raises(StoreError, match=r"/large: .* bytes are more than the \d+"):
        store.create(f"{root}/large", b"x" * 4_300_000)
    store.create(f"{root}/large", b"x" * 4_100_000)
    assert value_of(store, f"{root}/large") == b"x" * 4_100_000
