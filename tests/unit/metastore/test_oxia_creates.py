"""Many keys made at once on an Oxia that follows a script: each once, none replaced, whatever is lost on the way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import grpc
import pytest

from bookwarden.errors import StoreWedgedError
from bookwarden.metastore.interface import CreateResult, NewNode
from bookwarden.metastore.oxia.store import OxiaStore
from bookwarden.metastore.urls import open_store
from bookwarden.wire.pb import oxia_client_pb2 as pb
from servers.scripted_oxia import Refusal, ScriptedOxia

CREATED, EXISTS = CreateResult.CREATED, CreateResult.EXISTS
NODES = [NewNode(f"/ledgers/00/0000/L{number:04d}", b"%d" % number, number) for number in range(100)]


@contextmanager
def scripted(shards: int = 1, **options: Any) -> Iterator[tuple[ScriptedOxia, OxiaStore]]:
    with closing(ScriptedOxia(shards=shards)) as server, closing(open_store(server.url, **options)) as store:
        assert isinstance(store, OxiaStore)
        yield server, store


def test_keys_of_all_shards_are_made_with_the_versions_that_are_asked_for() -> None:
    asked: list[pb.PutRequest] = []
    with scripted(shards=3, batch_size=10, in_flight=2) as (server, store):

        def note(request: pb.WriteRequest) -> pb.WriteResponse:
            asked.extend(request.puts)
            assert len(request.puts) <= 10
            return server.apply(request)

        server.write = note
        assert store.create_many(NODES) == [CREATED] * 100
        assert {path: record.value for path, record in server.records.items()} == {
            node.path: node.value for node in NODES
        }
        assert max(server.most_streams.values()) == 1
    assert {put.key: (put.override_version_id, put.override_modifications_count) for put in asked} == {
        node.path: (node.version, node.version) for node in NODES
    }


def test_a_key_that_is_there_is_never_replaced() -> None:
    with scripted() as (server, store):
        server.set(NODES[3].path, b"precious")
        assert store.create_many(NODES[:5]) == [CREATED, CREATED, CREATED, EXISTS, CREATED]
        assert server.records[NODES[3].path].value == b"precious"
        assert store.create_many([]) == []


def test_what_cannot_be_made_is_told_and_nothing_of_it_is_sent() -> None:
    with scripted(max_request_bytes=10_000) as (server, store):
        nodes = [
            NewNode("/a", b"x" * 9_000),
            NewNode("/b//c", b""),
            NewNode("/d", b"x" * 7_000),
            NewNode("/\ud800", b""),
        ]
        assert store.create_many(nodes) == [
            CreateResult.TOO_LARGE,
            CreateResult.BAD_NAME,
            CREATED,
            CreateResult.BAD_NAME,
        ]
        assert sorted(server.records) == ["/d"]


def test_requests_stay_below_their_limit() -> None:
    sizes: list[int] = []
    with scripted(max_request_bytes=20_000) as (server, store):

        def measure(request: pb.WriteRequest) -> pb.WriteResponse:
            sizes.append(request.ByteSize())
            return server.apply(request)

        server.write = measure
        nodes = [NewNode(f"/n{number}", b"x" * 5_000) for number in range(10)]
        assert store.create_many(nodes) == [CREATED] * 10
    assert max(sizes) <= 20_000
    assert len(sizes) == 4


@pytest.mark.parametrize("done", [0, 4, 10])
def test_a_lost_answer_is_made_good_by_a_look(done: int) -> None:
    """Of ten keys whose answer is lost so many were made; one of the others was made by somebody else meanwhile."""
    with scripted(batch_size=10, in_flight=2) as (server, store):

        def lose_the_answer(request: pb.WriteRequest) -> pb.WriteResponse:
            server.write = server.apply
            server.apply(pb.WriteRequest(puts=request.puts[:done]))
            if done < 10:
                server.set(request.puts[9].key, b"of another")
            raise Refusal("going away", grpc.StatusCode.UNAVAILABLE)

        server.write = lose_the_answer
        results = store.create_many(NODES[:40])
        assert results == [EXISTS if done < 10 and at == 9 else CREATED for at in range(40)]
        for at, node in enumerate(NODES[:40]):
            assert server.records[node.path].value == (b"of another" if done < 10 and at == 9 else node.value)


def test_a_shard_that_takes_no_more_writes_ends_it() -> None:
    with scripted() as (server, store):

        def refuse(_: pb.WriteRequest) -> pb.WriteResponse:
            raise Refusal("oxia: failed to append to wal: 2806 can not immediately follow 2788: invalid next offset")

        server.write = refuse
        with pytest.raises(StoreWedgedError, match="restart that server"):
            store.create_many(NODES)
        assert server.records == {}
