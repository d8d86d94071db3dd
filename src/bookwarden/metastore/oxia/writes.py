"""The stream of writes of a shard: all that this store writes to it goes there.

Concurrent single writes can leave a shard of Oxia 0.14 unable to take any more (docs/oxia.md). So all writes of a
store to a shard go through one stream, in one order, and nothing else of ours writes beside it.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from bookwarden.metastore.deadline import Deadline
from bookwarden.metastore.oxia.channels import ServerLost, meaning_of
from bookwarden.metastore.oxia.shards import OxiaCluster, Shard
from bookwarden.wire.pb import oxia_client_pb2 as pb


class PendingWrite:
    """A write under way. ``may_be_done``: although it failed, the server may have carried it out."""

    def __init__(self, request: pb.WriteRequest, stream: WriteStream) -> None:
        self.request = request
        self.stream = stream
        self._settled = threading.Event()
        self._answer: pb.WriteResponse | None = None
        self._failure: Exception | None = None
        self._sent = False

    def get(self, deadline: Deadline) -> pb.WriteResponse:
        """Wait for the answer; raise ServerLost, or the StoreError that ended the stream."""
        if not self._settled.wait(deadline.left()):
            # Later writes on a stream that hangs would hang as well.
            self.stream.break_off()
            raise ServerLost("no answer in time")
        if self._failure is not None:
            raise self._failure
        assert self._answer is not None
        return self._answer

    @property
    def may_be_done(self) -> bool:
        return self._sent and not getattr(self._failure, "untouched", False)

    def to_send(self) -> pb.WriteRequest:
        """Hand the request over to gRPC."""
        self._sent = True
        return self.request

    def settle(self, answer: pb.WriteResponse | None, failure: Exception | None = None) -> None:
        """End the waiting."""
        self._answer, self._failure = answer, failure
        self._settled.set()


class WriteStream:
    """One stream to one leader, until it fails."""

    def __init__(self, cluster: OxiaCluster, shard: Shard) -> None:
        self._shard = shard
        self._changed = threading.Condition()
        self._queue: queue.SimpleQueue[PendingWrite | None] = queue.SimpleQueue()
        self._unanswered: deque[PendingWrite] = deque()
        self._failure: Exception | None = None
        self._call: Any = cluster.server(shard).write_stream(self._requests(), cluster.connection.namespace, shard.id)
        threading.Thread(target=self._receive, name=f"oxia writes {shard.id}", daemon=True).start()

    @property
    def leader(self) -> str:
        return self._shard.leader

    @property
    def has_failed(self) -> bool:
        return self._failure is not None

    def send(self, request: pb.WriteRequest) -> PendingWrite:
        """Queue a write behind the ones under way."""
        pending = PendingWrite(request, self)
        with self._changed:
            if self._failure is not None:
                pending.settle(None, self._failure)
                return pending
            self._unanswered.append(pending)
            self._queue.put(pending)
        return pending

    def wait_until_idle(self, deadline: Deadline) -> None:
        """Wait until nothing is under way; break off a stream that hangs."""
        with self._changed:
            idle = self._changed.wait_for(lambda: not self._unanswered, deadline.left())
        if not idle:
            self.break_off()

    def break_off(self) -> None:
        """End the stream; its writes under way are lost."""
        self._call.cancel()

    def _requests(self) -> Iterator[pb.WriteRequest]:
        while (pending := self._queue.get()) is not None:
            yield pending.to_send()

    def _receive(self) -> None:
        failure: Exception = ServerLost("the server ended the stream of writes")
        try:
            for answer in self._call:
                with self._changed:
                    pending = self._unanswered.popleft()
                    self._changed.notify_all()
                pending.settle(answer)
        except grpc.RpcError as error:
            failure = meaning_of(error, self._shard.leader)
        with self._changed:
            self._failure = failure
            left, self._unanswered = self._unanswered, deque()
            self._changed.notify_all()
        self._queue.put(None)
        for pending in left:
            pending.settle(None, failure)


class ShardWriters:
    """The streams of writes of a store, one for each shard."""

    def __init__(self, cluster: OxiaCluster) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._gates: dict[int, threading.Lock] = {}
        self._streams: dict[int, WriteStream] = {}

    def send(self, shard: Shard, request: pb.WriteRequest, after: PendingWrite | None = None) -> PendingWrite:
        """Send a write to a shard, behind the ones under way.

        With ``after`` it goes on the stream of that write, and fails with it: no write follows a failure unseen.
        """
        request.shard = shard.id
        with self._gate(shard):
            stream = self._stream(shard) if after is None else after.stream
            return stream.send(request)

    @contextmanager
    def silence(self, shard: Shard, deadline: Deadline) -> Iterator[None]:
        """Hold back our writes to the shard during another call that makes its leader write."""
        with self._gate(shard):
            stream = self._streams.get(shard.id)
            if stream is not None:
                stream.wait_until_idle(deadline)
            yield

    def close(self) -> None:
        """End all streams."""
        with self._lock:
            streams = list(self._streams.values())
        for stream in streams:
            stream.break_off()

    def _gate(self, shard: Shard) -> threading.Lock:
        with self._lock:
            return self._gates.setdefault(shard.id, threading.Lock())

    def _stream(self, shard: Shard) -> WriteStream:
        stream = self._streams.get(shard.id)
        if stream is None or stream.has_failed or stream.leader != shard.leader:
            if stream is not None:
                stream.break_off()
            stream = self._streams[shard.id] = WriteStream(self._cluster, shard)
        return stream
