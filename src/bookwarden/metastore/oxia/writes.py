"""The stream of writes of a shard: all that this store writes to it goes there, runs of creates and deletes too.

Concurrent single writes can leave a shard of Oxia 0.14 unable to take any more (docs/oxia.md). So all writes of a
store to a shard go through one stream, in one order, and nothing else of ours writes to that shard.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import grpc

from bookwarden.errors import FormatError, StoreError, StoreUnavailableError
from bookwarden.ledgers.metadata import DeleteResult
from bookwarden.metastore.deadline import Deadline
from bookwarden.metastore.doomed_nodes import BatchDelete, DoomedNode
from bookwarden.metastore.interface import CreateResult, NewNode, Versioned
from bookwarden.metastore.oxia.channels import ServerLost, meaning_of
from bookwarden.metastore.oxia.reads import OxiaReader, Parents
from bookwarden.metastore.oxia.shards import OxiaCluster, Shard, ShardMap
from bookwarden.metastore.paths import validate_path
from bookwarden.wire.pb import oxia_client_pb2 as pb

_LOG = logging.getLogger(__name__)
# Bytes of a request besides its puts.
WRITE_OVERHEAD: Final = 2048
_ABSENT: Final = -1

Puts = Mapping[str, pb.PutRequest]


class _Creation(NamedTuple):
    puts: list[pb.PutRequest]
    pending: PendingWrite


class BatchCreate:
    """Makes keys, in any order, whether or not there are keys above them.

    When an answer is lost its keys are read back: one that has the value counts as created, by us or by someone who
    wanted the same, and one that is absent is sent once more, behind any write that may still be under way.
    """

    def __init__(self, cluster: OxiaCluster, reader: OxiaReader, writers: ShardWriters) -> None:
        self._cluster = cluster
        self._reader = reader
        self._writers = writers
        self._most_bytes = cluster.connection.max_request_bytes - WRITE_OVERHEAD

    def run(self, nodes: Sequence[NewNode]) -> list[CreateResult]:
        """Make the keys, whose paths differ; a result for each, in the order asked.

        Raises StoreUnavailableError or another StoreError where it is not known which were made.
        """
        deadline = self._cluster.deadline()
        results: dict[str, CreateResult] = {}
        left: dict[str, pb.PutRequest] = {}
        for node in nodes:
            put = _put_of(node)
            if put is None:
                results[node.path] = CreateResult.BAD_NAME
            elif put.ByteSize() > self._most_bytes:
                results[node.path] = CreateResult.TOO_LARGE
            else:
                left[node.path] = put
        while left:
            shards = self._cluster.shards(deadline)
            lost = self._send_all(shards, left, results, deadline)
            left = {path: put for path, put in left.items() if path not in results}
            if lost is not None:
                self._cluster.wait_for_news(shards, lost, deadline)
        return [results[node.path] for node in nodes]

    def _send_all(
        self, shards: ShardMap, left: Puts, results: dict[str, CreateResult], deadline: Deadline
    ) -> ServerLost | None:
        """Send each key once, and note its result; return the reason if some have to be sent again."""
        most = self._cluster.in_flight * len(shards.shards)
        window: deque[_Creation] = deque()
        last: dict[int, PendingWrite] = {}
        lost: ServerLost | None = None
        for shard, puts in self._requests(shards, left):
            if lost is not None:
                break
            self._cluster.keep_rate(len(puts), deadline)
            last[shard.id] = self._writers.send(shard, pb.WriteRequest(puts=puts), last.get(shard.id))
            window.append(_Creation(puts, last[shard.id]))
            if len(window) >= most:
                lost = self._settle(window.popleft(), results, deadline)
        while window:
            lost = self._settle(window.popleft(), results, deadline) or lost
        return lost

    def _settle(self, sent: _Creation, results: dict[str, CreateResult], deadline: Deadline) -> ServerLost | None:
        try:
            answers = sent.pending.get(deadline).puts
        except ServerLost as lost:
            if sent.pending.may_be_done:
                self._read_back(sent.puts, results, deadline)
            return lost
        for put, answer in zip(sent.puts, answers, strict=True):
            results[put.key] = CreateResult.CREATED if answer.status == pb.OK else CreateResult.EXISTS
        deadline.progress()
        return None

    def _read_back(self, puts: Sequence[pb.PutRequest], results: dict[str, CreateResult], deadline: Deadline) -> None:
        found = self._reader.get_many([put.key for put in puts], deadline)
        for put, node in zip(puts, found, strict=True):
            if node is not None:
                same = node.value == put.value and not node.ephemeral
                results[put.key] = CreateResult.CREATED if same else CreateResult.EXISTS

    def _requests(self, shards: ShardMap, left: Puts) -> Iterator[tuple[Shard, list[pb.PutRequest]]]:
        """Cut puts into requests of one shard each."""
        for shard, keys in self._reader.batches(shards, left):
            batch: list[pb.PutRequest] = []
            size = 0
            for put in map(left.__getitem__, keys):
                cost = put.ByteSize() + WRITE_OVERHEAD // self._cluster.batch_size
                if batch and size + cost > self._most_bytes:
                    yield shard, batch
                    batch, size = [], 0
                batch.append(put)
                size += cost
            if batch:
                yield shard, batch


def _put_of(node: NewNode) -> pb.PutRequest | None:
    """Make the request; None where no store can have a node of that name."""
    try:
        path = validate_path(node.path)
    except FormatError:
        return None
    return pb.PutRequest(
        key=path,
        value=node.value,
        expected_version_id=_ABSENT,
        override_version_id=node.version,
        override_modifications_count=node.version,
    )


class _Delete(NamedTuple):
    paths: list[str]
    pending: PendingWrite


@dataclass
class OxiaBatchDelete(BatchDelete):
    """Versioned deletes on the write streams.

    Each delete of a request succeeds or fails alone. Oxia answers alike for an absent key and another version, so
    refused keys are read; and it deletes a key that has children, so those are asked for before anything is sent,
    as Pulsar does. A key unchanged after a lost answer is sent again, behind any write that may still be under way.
    """

    cluster: OxiaCluster
    reader: OxiaReader
    writers: ShardWriters
    _failure: StoreError | None = None

    def _send_and_settle(self, targets: Sequence[DoomedNode]) -> None:
        deadline = self.cluster.deadline()
        try:
            left = {target.path: target for target in targets}
            for path in Parents(self.cluster, self.reader).among(list(left), deadline):
                self.results[path] = DeleteResult.LOST_RACE
                del left[path]
            self._work_off(left, deadline)
        except StoreUnavailableError:
            raise
        except StoreError as error:
            self._failure = self._failure or error

    def _end(self, targets: Sequence[DoomedNode]) -> None:
        if self._failure is not None:
            if DeleteResult.DELETED not in self.results.values():
                raise self._failure
            _LOG.error("a batch of deletes ends early, with outcomes unknown: %s", self._failure)

    def _read(self, paths: Sequence[str], deadline: Deadline) -> list[Versioned | None]:
        return self.reader.get_many(paths, deadline)

    def _work_off(self, targets: dict[str, DoomedNode], deadline: Deadline) -> None:
        left = targets
        while left and self._failure is None:
            shards = self.cluster.shards(deadline)
            again, lost = self._send_all(shards, left, deadline)
            left = {target.path: target for target in again}
            if left and lost is not None and self._failure is None:
                self.cluster.wait_for_news(shards, lost, deadline)

    def _send_all(
        self, shards: ShardMap, left: dict[str, DoomedNode], deadline: Deadline
    ) -> tuple[list[DoomedNode], ServerLost | None]:
        """Send each key once; return the keys to send again, and the reason."""
        most = self.cluster.in_flight * len(shards.shards)
        window: deque[_Delete] = deque()
        last: dict[int, PendingWrite] = {}
        again: list[DoomedNode] = []
        lost: ServerLost | None = None
        for shard, paths in self.reader.batches(shards, left):
            if lost is not None or self._failure is not None:
                again += [left[path] for path in paths]
                continue
            self.cluster.keep_rate(len(paths), deadline)
            last[shard.id] = self.writers.send(shard, _request_of(paths, left), last.get(shard.id))
            window.append(_Delete(paths, last[shard.id]))
            if len(window) >= most:
                lost = self._settle(window.popleft(), left, again, deadline)
        while window:
            lost = self._settle(window.popleft(), left, again, deadline) or lost
        return again, lost

    def _settle(
        self, delete: _Delete, left: dict[str, DoomedNode], again: list[DoomedNode], deadline: Deadline
    ) -> ServerLost | None:
        """Wait for one request; settle its keys or add them to ``again``."""
        lost: ServerLost | None = None
        try:
            answers = dict(zip(delete.paths, delete.pending.get(deadline).deletes, strict=True))
        except ServerLost as error:
            lost = error
        except StoreError as error:
            self._failure = self._failure or error
        else:
            self._sent = True
            refused = [left[path] for path, answer in answers.items() if answer.status != pb.OK]
            for target in refused:
                del answers[target.path]
            self.results.update(dict.fromkeys(answers, DeleteResult.DELETED))
            if refused:
                # A key that has the same version after all was made again with it since.
                self._record(self._still_to_delete(refused, deadline), DeleteResult.LOST_RACE)
            deadline.progress()
            return None
        targets = [left[path] for path in delete.paths]
        if not delete.pending.may_be_done:
            again += targets
            return lost
        self._sent = True
        again += self._still_to_delete([target._replace(in_doubt=True) for target in targets], deadline)
        return lost


def _request_of(paths: Iterable[str], targets: Mapping[str, DoomedNode]) -> pb.WriteRequest:
    request = pb.WriteRequest()
    for path in paths:
        request.deletes.add(key=path, expected_version_id=targets[path].version)
    return request


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
