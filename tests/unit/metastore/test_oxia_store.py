"""The Oxia store against servers that follow a script."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait

# Not the built-in one before Python 3.11.
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

import grpc
import pytest

from bookwarden.errors import (
    LostRaceError,
    OutcomeUnknownError,
    StoreError,
    StoreUnavailableError,
    StoreWedgedError,
)
from bookwarden.ledgers.metadata import DeleteResult
from bookwarden.metastore.oxia.store import OxiaStore
from bookwarden.metastore.pacing import Rate
from bookwarden.metastore.urls import open_store
from bookwarden.wire.pb import oxia_client_pb2 as pb
from servers.scripted_oxia import NOBODY, Refusal, ScriptedOxia
from servers.waiting import eventually

DELETED, ABSENT, LOST_RACE, UNKNOWN = (
    DeleteResult.DELETED,
    DeleteResult.ABSENT,
    DeleteResult.LOST_RACE,
    DeleteResult.UNKNOWN,
)
WEDGED = "oxia: failed to append to wal: 2806 can not immediately follow 2788: invalid next offset"

Maker = Callable[..., ScriptedOxia]
Opener = Callable[..., OxiaStore]


@pytest.fixture
def scripted() -> Iterator[Maker]:
    made: list[ScriptedOxia] = []

    def make(**options: Any) -> ScriptedOxia:
        made.append(ScriptedOxia(**options))
        return made[-1]

    yield make
    for server in made:
        server.close()


@pytest.fixture
def opened(scripted: Maker) -> Iterator[Opener]:
    made: list[OxiaStore] = []

    def make(server: ScriptedOxia, **options: Any) -> OxiaStore:
        store = open_store(server.url, **options)
        assert isinstance(store, OxiaStore)
        made.append(store)
        return store

    yield make
    for store in made:
        store.close()


def ledgers(server: ScriptedOxia, count: int, parent: str = "/ledgers/00/0000") -> list[tuple[str, int]]:
    return [(path, server.set(path, b"ledger")) for path in (f"{parent}/L{n:04d}" for n in range(count))]


def test_reads_and_deletes_follow_a_leader_that_moved(scripted: Maker, opened: Opener) -> None:
    server = scripted(servers=2, shards=3)
    store = opened(server)
    asked = ledgers(server, 60)
    assert all(store.get_many([path for path, _ in asked]))
    server.move(1, 1)
    with ThreadPoolExecutor(1) as pool:
        # Asked of the former leader, and again when the move is told.
        work = pool.submit(store.delete_many, asked)
        eventually(lambda: server.calls["refused"] > 0)
        server.tell()
        assert work.result(timeout=30) == [DELETED] * 60
    assert store.get_many([path for path, _ in asked]) == [None] * 60


def test_a_shard_without_a_leader_is_waited_for(scripted: Maker, opened: Opener) -> None:
    server = scripted(shards=3)
    store = opened(server)
    asked = ledgers(server, 60)
    server.move(1, NOBODY)
    server.tell()
    with ThreadPoolExecutor(2) as pool:
        read = pool.submit(store.get_many, [path for path, _ in asked])
        wait([read], 0.5)
        assert not read.done()
        server.move(1, 0)
        server.tell()
        assert all(read.result(timeout=30))
        server.move(1, NOBODY)
        server.tell()
        deleted = pool.submit(store.delete_many, asked)
        wait([deleted], 0.5)
        assert not deleted.done()
        server.move(1, 0)
        server.tell()
        assert deleted.result(timeout=30) == [DELETED] * 60


def test_a_shard_that_finds_no_leader_in_time_is_named_and_nothing_is_deleted(scripted: Maker, opened: Opener) -> None:
    server = scripted(shards=3)
    store = opened(server, operation_timeout_s=1.0)
    asked = ledgers(server, 60)
    store.sync()
    server.move(1, NOBODY)
    server.tell()
    with pytest.raises(StoreUnavailableError, match="a shard has no leader"):
        store.get_many([path for path, _ in asked])
    # Whether a key has children only all shards together can tell.
    with pytest.raises(StoreUnavailableError, match="a shard has no leader"):
        store.delete_many(asked)
    assert len(server.records) == 60


def test_a_write_that_the_former_leader_refused_is_not_in_doubt(scripted: Maker, opened: Opener) -> None:
    server = scripted(servers=2)
    store = opened(server)
    version = server.set("/a")
    store.sync()
    server.move(0, 1)
    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(store.put, "/a", b"new", version)
        eventually(lambda: server.calls["refused"] > 0)
        server.tell()
        assert work.result(timeout=30) == server.records["/a"].version


def test_a_shard_that_takes_no_more_writes_stops_the_writer_and_says_what_to_do(
    scripted: Maker, opened: Opener
) -> None:
    server = scripted()
    store = opened(server, batch_size=10, in_flight=2)
    asked = ledgers(server, 100)

    def refuse(request: pb.WriteRequest) -> pb.WriteResponse:
        raise Refusal(WEDGED)

    server.write = refuse
    with pytest.raises(StoreWedgedError, match=r"2806 can not immediately follow 2788.*restart that server"):
        store.delete_many(asked)
    assert server.calls["write"] == 1
    with pytest.raises(StoreWedgedError, match="restart that server"):
        store.put("/ledgers/00/0000/L0000", b"", asked[0][1])
    assert len(server.records) == 100


def test_what_was_deleted_before_a_shard_stopped_is_told_and_the_rest_is_unknown(
    scripted: Maker, opened: Opener
) -> None:
    server = scripted()
    store = opened(server, batch_size=10, in_flight=2)
    asked = ledgers(server, 100)

    def apply_three(request: pb.WriteRequest) -> pb.WriteResponse:
        if server.calls["write"] > 3:
            raise Refusal(WEDGED)
        return server.apply(request)

    server.write = apply_three
    results = store.delete_many(asked)
    assert results == [DELETED] * 30 + [UNKNOWN] * 70
    assert sorted(server.records) == [path for path, _ in asked[30:]]
    assert server.calls["write"] == 4


def test_a_delete_in_doubt_is_told_from_a_key_made_again_with_its_version(scripted: Maker, opened: Opener) -> None:
    server = scripted()
    store = opened(server)
    asked = [(path, server.set(path, version=0, created_ms=5)) for path in ("/a", "/b", "/c", "/d")]

    def lose_the_answer(request: pb.WriteRequest) -> pb.WriteResponse:
        server.write = server.apply
        del server.records["/a"]
        # A key that Pulsar copied from ZooKeeper: the version is the one that the lost key had.
        server.set("/b", version=0, created_ms=6)
        server.set("/c", version=7, created_ms=5)
        raise Refusal("going away", grpc.StatusCode.UNAVAILABLE)

    server.write = lose_the_answer
    assert store.delete_many(asked, created_ms=[5] * 4) == [DELETED, LOST_RACE, LOST_RACE, DELETED]
    assert sorted(server.records) == ["/b", "/c"]


def test_a_put_in_doubt_is_not_repeated(scripted: Maker, opened: Opener) -> None:
    server = scripted()
    store = opened(server)
    version = server.set("/a")

    def lose_the_answer(request: pb.WriteRequest) -> pb.WriteResponse:
        server.apply(request)
        raise Refusal("going away", grpc.StatusCode.UNAVAILABLE)

    server.write = lose_the_answer
    with pytest.raises(OutcomeUnknownError, match=r"/a was written: read it before retrying"):
        store.put("/a", b"new", version)
    assert server.calls["write"] == 1
    server.write = server.apply
    with pytest.raises(LostRaceError, match="no longer has version"):
        store.put("/a", b"new", version)


def test_a_put_makes_no_key(scripted: Maker, opened: Opener) -> None:
    server = scripted()
    store = opened(server)
    for version in (-1, 0):
        with pytest.raises(LostRaceError):
            store.put("/a", b"", version)
    assert server.records == {}


@pytest.mark.parametrize("directories", [2, 100, 1000])
def test_children_of_many_siblings_cost_one_read_for_each_shard(
    scripted: Maker, opened: Opener, directories: int
) -> None:
    server = scripted(shards=2)
    store = opened(server, batch_size=1000)
    asked = [
        pair
        for number in range(directories)
        for pair in ledgers(server, 1000 // directories, f"/ledgers/00/{number:04d}")
    ]
    assert store.delete_many(asked) == [DELETED] * 1000
    assert server.calls["list"] == 0
    # Two for the order of keys; nothing was refused, so nothing was read again.
    assert server.calls["read"] == 2 + 2


@pytest.mark.parametrize("by_depth", [False, True], ids=["to-0.14", "from-0.15"])
@pytest.mark.parametrize("parent", [0, 1, -1], ids=["first", "second", "last"])
@pytest.mark.parametrize("siblings", [1, 3, 40])
def test_a_key_with_a_child_on_any_shard_is_kept_and_its_neighbours_are_not(
    scripted: Maker, opened: Opener, siblings: int, parent: int, by_depth: bool
) -> None:
    server = scripted(shards=3, by_depth=by_depth)
    store = opened(server)
    asked = ledgers(server, max(siblings, 2))
    path, version = asked[parent]
    shards = store._cluster.shards(store._cluster.deadline())
    children = [f"{path}/{name}" for name in "abcdefghijklmn"]
    server.set(next(child for child in children if shards.of(child).id == 2))
    # Below neighbours that are not asked for, and whose names begin like those that are.
    for neighbour, _ in asked:
        server.set(f"{neighbour}x/child")
    if siblings == 1:
        asked = [asked[parent]]
    assert store.delete_many(asked) == [LOST_RACE if pair == (path, version) else DELETED for pair in asked]


@pytest.mark.parametrize("by_depth", [False, True], ids=["to-0.14", "from-0.15"])
@pytest.mark.parametrize("parent", ["/a", "/ab", "/abc", "/b"])
def test_siblings_whose_names_begin_alike_are_told_apart(
    scripted: Maker, opened: Opener, parent: str, by_depth: bool
) -> None:
    server = scripted(by_depth=by_depth)
    store = opened(server)
    asked = [(path, server.set(path)) for path in ("/a", "/ab", "/abc", "/b", "/bc")]
    server.set(f"{parent}/child")
    assert store.delete_many(asked) == [LOST_RACE if path == parent else DELETED for path, _ in asked]


def test_keys_sorted_in_natural_order_are_refused(scripted: Maker, opened: Opener) -> None:
    server = scripted(natural=True, shards=2)
    store = opened(server)
    asked = ledgers(server, 20)
    server.set("/ledgers")
    with pytest.raises(StoreError, match="natural order"):
        store.list_children("/ledgers")
    with pytest.raises(StoreError, match="natural order"):
        store.delete_many(asked)
    assert len(server.records) == 21


def test_all_writes_of_four_threads_go_through_one_stream_a_shard(scripted: Maker, opened: Opener) -> None:
    server = scripted(shards=2)
    store = opened(server, batch_size=5)
    parts = [ledgers(server, 50, f"/ledgers/00/000{part}") for part in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(store.delete_many, parts)) == [[DELETED] * 50] * 4
    assert dict(server.most_streams) == {0: 1, 1: 1}


def test_a_session_begins_only_when_no_write_is_under_way(scripted: Maker, opened: Opener) -> None:
    server = scripted()
    store = opened(server)
    version = server.set("/a")
    may_answer = threading.Event()

    def wait(request: pb.WriteRequest) -> pb.WriteResponse:
        assert may_answer.wait(30)
        return server.apply(request)

    server.write = wait
    (shard,) = store._cluster.shards(store._cluster.deadline()).shards
    with ThreadPoolExecutor(2) as pool:
        write = pool.submit(store.put, "/a", b"", version)
        eventually(lambda: server.calls["write"] == 1)
        session = pool.submit(store._sessions.session_of, shard, store._cluster.deadline())
        with pytest.raises(FutureTimeoutError):
            session.result(timeout=0.3)
        assert server.calls["session"] == 0
        may_answer.set()
        assert write.result(timeout=30) > version
        assert session.result(timeout=30) == 1
    # The script knows no heartbeats.
    store._sessions.forget(shard, 1)


def test_threads_that_need_a_session_at_once_share_one(scripted: Maker, opened: Opener) -> None:
    server = scripted()
    store = opened(server)
    (shard,) = store._cluster.shards(store._cluster.deadline()).shards
    with ThreadPoolExecutor(8) as pool:
        begun = [pool.submit(store._sessions.session_of, shard, store._cluster.deadline()) for _ in range(8)]
        assert {one.result(timeout=30) for one in begun} == {1}
    assert server.calls["session"] == 1
    store._sessions.forget(shard, 1)


def test_closing_a_store_ends_what_other_threads_do_with_it(scripted: Maker, opened: Opener) -> None:
    server = scripted(shards=2)
    store = opened(server)
    paths = [path for path, _ in ledgers(server, 50)]
    begun = threading.Barrier(4)

    def work(call: Callable[[], object]) -> None:
        call()
        begun.wait(30)
        while True:
            call()

    with ThreadPoolExecutor(3) as pool:
        calls: list[Callable[[], object]] = [
            lambda: store.get_many(paths),
            lambda: store.delete_many([(f"{path}-absent", 1) for path in paths]),
            lambda: store.list_children("/ledgers/00/0000"),
        ]
        running = [pool.submit(work, call) for call in calls]
        store.watch("/watched", lambda _path: None)
        begun.wait(30)
        store.close()
        for one in running:
            with pytest.raises(StoreUnavailableError, match="was closed"):
                one.result(timeout=30)
    eventually(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith(("oxia", "watch"))])


class CountingRate(Rate):
    def __init__(self) -> None:
        super().__init__(2000.0, "max_requests_per_second")
        self.reserved = 0

    def reserve(self, nodes: int) -> float:
        self.reserved += nodes
        return 0.0


def test_a_rate_counts_each_key_that_is_read_or_deleted(scripted: Maker, opened: Opener) -> None:
    server = scripted(shards=2)
    store = opened(server, max_requests_per_second=2000.0)
    assert store._cluster._rate is not None
    rate = store._cluster._rate = CountingRate()
    asked = ledgers(server, 600)
    assert all(store.get_many([path for path, _ in asked]))
    assert rate.reserved == 600
    assert store.delete_many(asked) == [DELETED] * 600
    # And a list for each shard. A tenth of a second's keys are the most of one request.
    assert rate.reserved == 600 + 2 + 600
    assert server.calls["write"] >= 600 / 200
