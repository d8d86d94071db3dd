"""Raising of the count of a key's writes in Oxia, which numbers the sequential nodes below it.

Format: impl.oxia.OxiaMetadataStore of pulsar-metadata 4.2: each sequential node writes its parent, and has the
parent's modifications_count for its number. Servers from 0.15 on let a writer set that count.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bookwarden.errors import NotFoundError, OutcomeUnknownError, StoreUnavailableError
from bookwarden.metastore.deadline import Deadline
from bookwarden.metastore.interface import Versioned
from bookwarden.metastore.oxia.channels import ServerLost
from bookwarden.metastore.oxia.reads import OxiaReader
from bookwarden.metastore.oxia.shards import OxiaCluster
from bookwarden.metastore.oxia.writes import PendingWrite, ShardWriters
from bookwarden.wire.pb import oxia_client_pb2 as pb

_LOG = logging.getLogger(__name__)

# How often others may come between a read and the write that follows it.
_TRIES: Final = 100


@dataclass(frozen=True)
class KeyNumbers:
    """Reads and raises the number of the next sequential node below a key, which others may take meanwhile.

    ``write`` sends one put, and raises OutcomeUnknownError if its answer is lost.
    """

    cluster: OxiaCluster
    reader: OxiaReader
    writers: ShardWriters
    write: Callable[[pb.PutRequest], pb.PutResponse]

    def next(self, path: str, deadline: Deadline) -> int:
        """Return the number of the next sequential node; NotFoundError if there is no such key."""
        return _next_after(self._read(path, deadline))

    def set(self, path: str, number: int, deadline: Deadline) -> int:
        """Raise the next number to this one if it is smaller, with one write; return the number now.

        A server before 0.15 only counts that write, so that the number is lower. Raises StoreUnavailableError if
        others write the key all the time.
        """
        for _ in range(_TRIES):
            node = self._read(path, deadline)
            if _next_after(node) >= number:
                return _next_after(node)
            # With the version that was read: a number taken since must not be given twice.
            put = pb.PutRequest(
                key=path,
                value=node.value,
                expected_version_id=node.version,
                override_modifications_count=number - 1,
            )
            try:
                answer = self.write(put)
            except OutcomeUnknownError:
                _LOG.warning("it is not known whether %s was written: it is read again", path)
            else:
                if answer.status == pb.OK:
                    return answer.version.modifications_count + 1
        raise StoreUnavailableError(f"{path} is written by others all the time, and was not set: try again")

    def count_up(self, path: str, number: int, deadline: Deadline, progress: Callable[[int], object]) -> int:
        """Write the key until the next number is this one or a larger; return it; call ``progress`` with each.

        It may come out larger, if an answer was lost or another process wrote.
        """
        while True:
            node = self._read(path, deadline)
            if _next_after(node) >= number:
                return _next_after(node)
            self._write_often(path, node, number, deadline, progress)

    def _write_often(
        self, path: str, node: Versioned, number: int, deadline: Deadline, progress: Callable[[int], object]
    ) -> None:
        shards = self.cluster.shards(deadline)
        shard = shards.of(path)
        # Unconditional, as the brokers' writes are: each write counts, no matter by whom.
        put = pb.PutRequest(key=path, value=node.value)
        left = number - _next_after(node)
        window: deque[PendingWrite] = deque()
        last: PendingWrite | None = None
        try:
            while left > 0 or window:
                if left > 0 and len(window) < self.cluster.in_flight:
                    puts = [put] * min(left, self.cluster.batch_size)
                    self.cluster.keep_rate(len(puts), deadline)
                    last = self.writers.send(shard, pb.WriteRequest(puts=puts), last)
                    window.append(last)
                    left -= len(puts)
                    continue
                answers = window.popleft().get(deadline).puts
                deadline.progress()
                progress(answers[-1].version.modifications_count + 1)
        except ServerLost as lost:
            # The writes sent may count or not: the next read shows it.
            self.cluster.wait_for_news(shards, lost, deadline)

    def _read(self, path: str, deadline: Deadline) -> Versioned:
        (node,) = self.reader.get_many([path], deadline)
        if node is None:
            raise NotFoundError(f"the metadata store has no node {path}")
        return node


def _next_after(node: Versioned) -> int:
    assert node.modifications is not None
    return node.modifications + 1
