"""Many keys made on the write streams of an Oxia namespace, none of which may be there before."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from bookwarden.errors import FormatError
from bookwarden.metastore.deadline import Deadline
from bookwarden.metastore.interface import CreateResult, NewNode
from bookwarden.metastore.oxia.channels import ServerLost
from bookwarden.metastore.oxia.reads import OxiaReader
from bookwarden.metastore.oxia.shards import OxiaCluster, Shard, ShardMap
from bookwarden.metastore.oxia.writes import PendingWrite, ShardWriters
from bookwarden.metastore.paths import validate_path
from bookwarden.wire.pb import oxia_client_pb2 as pb

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
