"""The number of the next sequential node on an Oxia that follows a script: raised, never lowered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import grpc
import pytest

from bookwarden.errors import NotFoundError, StoreUnavailableError, StoreWedgedError
from bookwarden.metastore.oxia.store import OxiaStore
from bookwarden.metastore.urls import open_store
from bookwarden.wire.pb import oxia_client_pb2 as pb
from servers.scripted_oxia import Refusal, ScriptedOxia

KEY = "/ledgers/idgen"


@contextmanager
def scripted(*, is_0_15: bool = True, **options: Any) -> Iterator[tuple[ScriptedOxia, OxiaStore]]:
    with closing(ScriptedOxia(is_0_15=is_0_15)) as server, closing(open_store(server.url, **options)) as store:
        assert isinstance(store, OxiaStore)
        server.set(KEY, b"v")
        yield server, store


def after(server: ScriptedOxia, *others: Any) -> None:
    """Let others do something before each of the next writes."""
    steps = iter(others)

    def write(request: pb.WriteRequest) -> pb.WriteResponse:
        step = next(steps, None)
        if step is not None:
            step()
        return server.apply(request)

    server.write = write


def test_the_next_number_is_one_more_than_there_were_writes() -> None:
    with scripted() as (server, store):
        assert store.next_number(KEY) == 1
        server.set(KEY)
        assert store.next_number(KEY) == 2
        with pytest.raises(NotFoundError, match="/ledgers/none"):
            store.next_number("/ledgers/none")
        with pytest.raises(NotFoundError, match="/ledgers/none"):
            store.set_next_number("/ledgers/none", 5)


def test_a_later_server_is_told_the_number_at_once() -> None:
    with scripted() as (server, store):
        assert store.set_next_number(KEY, 2_000_000_000) == 2_000_000_000
        assert store.next_number(KEY) == 2_000_000_000
        assert (server.records[KEY].value, server.calls["write"]) == (b"v", 1)


def test_it_is_never_lowered() -> None:
    with scripted() as (server, store):
        server.records[KEY].modifications = 99
        assert store.set_next_number(KEY, 50) == 100
        assert server.calls["write"] == 0
        # A broker numbers ledgers between our read and our write.
        after(server, lambda: [server.set(KEY, b"") for _ in range(400)])
        assert store.set_next_number(KEY, 300) == 500
        assert server.records[KEY].modifications == 499


def test_an_older_server_counts_the_write_and_no_more() -> None:
    with scripted(is_0_15=False) as (server, store):
        assert store.set_next_number(KEY, 300) == 2
        assert server.records[KEY].value == b"v"


def test_a_key_that_others_write_all_the_time_is_given_up() -> None:
    with scripted() as (server, store):

        def write(request: pb.WriteRequest) -> pb.WriteResponse:
            server.set(KEY)
            return server.apply(request)

        server.write = write
        with pytest.raises(StoreUnavailableError, match=f"{KEY} is written by others all the time"):
            store.set_next_number(KEY, 10**9)


def test_a_lost_answer_is_asked_for() -> None:
    with scripted() as (server, store):

        def write(request: pb.WriteRequest) -> pb.WriteResponse:
            server.apply(request)
            server.write = server.apply
            raise Refusal("it went away", grpc.StatusCode.UNAVAILABLE)

        server.write = write
        assert store.set_next_number(KEY, 300) == 300
        assert server.calls["write"] == 1


def test_an_older_server_is_written_to_often() -> None:
    sizes: list[int] = []
    told: list[int] = []
    with scripted(is_0_15=False, batch_size=10, in_flight=3) as (server, store):

        def write(request: pb.WriteRequest) -> pb.WriteResponse:
            sizes.append(len(request.puts))
            return server.apply(request)

        server.write = write
        assert store.count_up(KEY, 98, progress=told.append) == 98
        assert sizes == [10] * 9 + [7]
        assert told == [*range(11, 98, 10), 98]
        assert server.records[KEY].value == b"v"
        assert store.count_up(KEY, 98) == store.count_up(KEY, 5) == 98
        assert len(sizes) == 10


def test_what_was_lost_on_the_way_is_counted_again() -> None:
    with scripted(is_0_15=False, batch_size=10, in_flight=3) as (server, store):
        calls = iter(range(1_000))

        def write(request: pb.WriteRequest) -> pb.WriteResponse:
            call = next(calls)
            # The third is not carried out, of the seventh the answer is lost.
            answer = None if call == 2 else server.apply(request)
            if answer is None or call == 6:
                raise Refusal("it went away", grpc.StatusCode.UNAVAILABLE)
            return answer

        server.write = write
        assert store.count_up(KEY, 200) == 200


def test_a_shard_that_takes_no_more_is_left_alone() -> None:
    with scripted(is_0_15=False, batch_size=10) as (server, store):

        def write(request: pb.WriteRequest) -> pb.WriteResponse:
            if server.calls["write"] > 3:
                raise Refusal("failed to append to wal: 11 can not immediately follow 8")
            return server.apply(request)

        server.write = write
        with pytest.raises(StoreWedgedError):
            store.count_up(KEY, 200)
        assert store.next_number(KEY) == 31
