"""What is known of a write when its stream has failed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from bookwarden.errors import StoreUnavailableError
from bookwarden.metastore.deadline import Deadline
from bookwarden.metastore.oxia.channels import Channels, OxiaConnection, ServerLost
from bookwarden.metastore.oxia.shards import OxiaCluster, Shard
from bookwarden.metastore.oxia.writes import ShardWriters, WriteStream
from bookwarden.wire.pb import oxia_client_pb2 as pb

SHARD = Shard(0, "a:1", 0, 2**32 - 1)


class Broken(grpc.RpcError):
    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "Socket closed"


class Call:
    """A stream that takes so many requests and fails when it is told to."""

    def __init__(self, takes: int) -> None:
        self.fail = threading.Event()
        self.taken = threading.Event()
        self._takes = takes

    def __call__(self, requests: Iterator[pb.WriteRequest], _namespace: str, _shard: int) -> Call:
        for _ in range(self._takes):
            threading.Thread(target=lambda: (next(requests), self.taken.set()), daemon=True).start()
        return self

    def __iter__(self) -> Iterator[pb.WriteResponse]:
        assert self.fail.wait(30)
        raise Broken
        yield

    def cancel(self) -> None:
        self.fail.set()


def cluster_over(call: Any) -> OxiaCluster:
    cluster: Any = OxiaCluster(OxiaConnection("a:1"))
    server: Any = type("Server", (), {"write_stream": staticmethod(call)})
    cluster.server = lambda _shard: server
    made: OxiaCluster = cluster
    return made


def stream_over(call: Call) -> WriteStream:
    return WriteStream(cluster_over(call), SHARD)


@pytest.mark.parametrize("takes", [0, 1])
def test_a_write_may_be_done_only_if_it_was_handed_over(takes: int) -> None:
    call = Call(takes)
    stream = stream_over(call)
    pending = stream.send(pb.WriteRequest())
    assert call.taken.wait(30 if takes else 0) == bool(takes)
    call.fail.set()
    with pytest.raises(ServerLost, match="Socket closed"):
        pending.get(Deadline(30))
    assert pending.may_be_done == bool(takes)
    assert stream.has_failed
    with pytest.raises(ServerLost):
        stream.send(pb.WriteRequest()).get(Deadline(30))


def test_a_write_without_an_answer_in_time_ends_its_stream() -> None:
    call = Call(1)
    stream = stream_over(call)
    first, second = stream.send(pb.WriteRequest()), stream.send(pb.WriteRequest())
    assert call.taken.wait(30)
    with pytest.raises(ServerLost, match="no answer in time"):
        first.get(Deadline(0))
    with pytest.raises(ServerLost, match="Socket closed"):
        second.get(Deadline(30))
    assert first.may_be_done
    assert not second.may_be_done


def test_what_is_sent_behind_a_write_fails_with_it_and_begins_no_other_stream() -> None:
    calls: list[Call] = []

    def begin(requests: Iterator[pb.WriteRequest], namespace: str, shard: int) -> Call:
        calls.append(Call(1))
        return calls[-1](requests, namespace, shard)

    writers = ShardWriters(cluster_over(begin))
    first = writers.send(SHARD, pb.WriteRequest())
    calls[0].fail.set()
    with pytest.raises(ServerLost):
        first.get(Deadline(30))
    behind = writers.send(SHARD, pb.WriteRequest(), first)
    with pytest.raises(ServerLost):
        behind.get(Deadline(30))
    assert not behind.may_be_done
    assert len(calls) == 1
    writers.send(SHARD, pb.WriteRequest())
    assert len(calls) == 2
    writers.close()


def test_a_server_of_a_store_that_was_closed_meanwhile_says_so() -> None:
    channels = Channels(OxiaConnection("127.0.0.1:1"))
    server = channels.server("127.0.0.1:1")
    channels.close()
    with pytest.raises(StoreUnavailableError, match="was closed"):
        server.read(pb.ReadRequest(), 1.0)
    with pytest.raises(StoreUnavailableError, match="was closed"):
        channels.server("127.0.0.1:1")
