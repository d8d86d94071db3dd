"""Changes of many keys, over the notifications of all shards."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any

import grpc

from bookwarden.errors import BookwardenError, StoreUnavailableError
from bookwarden.metastore.changes import ChangedNodes, ChangeFeed, ChangeLog
from bookwarden.metastore.deadline import Deadline
from bookwarden.metastore.oxia.channels import ServerLost, meaning_of
from bookwarden.metastore.oxia.notifications import deletes_ranges
from bookwarden.metastore.oxia.shards import OxiaCluster

_LOG = logging.getLogger(__name__)


class KeyChanges(ChangeFeed):
    """Changes below some keys, with a stream of each shard.

    A stream that was lost begins anew from now, and leaves a gap once it has begun.
    """

    def __init__(self, cluster: OxiaCluster, prefixes: Sequence[str]) -> None:
        self._cluster = cluster
        self._log = ChangeLog(prefixes)
        self._lock = threading.Lock()
        self._streams: dict[int, _ShardStream] = {}
        self.is_over = False

    def start(self, deadline: Deadline) -> None:
        """Begin all streams, and return when no later change can be missed; raise when there is no connection."""
        with self._lock:
            self._follow_shards(deadline)

    def take(self) -> ChangedNodes:
        with self._lock:
            if self._follow_shards(self._cluster.deadline()):
                self._log.lose("the shards of the Oxia namespace are others than before")
            return self._log.take()

    def close(self) -> None:
        self.is_over = True
        for stream in self._streams.values():
            stream.end()

    def restart(self) -> None:
        """Break the streams, each of which leaves a gap when it has begun again."""
        for stream in list(self._streams.values()):
            stream.restart()

    def _follow_shards(self, deadline: Deadline) -> bool:
        """Begin the streams of shards that have none; return whether there was one, or a stream for no shard."""
        shards = {shard.id for shard in self._cluster.shards(deadline).shards}
        new, old = shards - self._streams.keys(), self._streams.keys() - shards
        for number in old:
            self._streams.pop(number).end()
        for number in new:
            stream = _ShardStream(self._cluster, number, self._log)
            stream.start(deadline)
            self._streams[number] = stream
        return bool(new or old)


class _ShardStream:
    """The notifications of one shard, with a thread of its own."""

    def __init__(self, cluster: OxiaCluster, shard: int, log: ChangeLog) -> None:
        self._cluster = cluster
        self._shard = shard
        self._log = log
        self._ended = threading.Event()
        self._begun = threading.Event()
        self._call: Any = None
        self._thread = threading.Thread(target=self._follow, name=f"changes of shard {shard}", daemon=True)

    def start(self, deadline: Deadline) -> None:
        self._thread.start()
        if not self._begun.wait(deadline.left()):
            self.end()
            raise StoreUnavailableError(
                f"the changes of shard {self._shard} of Oxia are not told: check that it runs, then retry"
            )

    def end(self) -> None:
        self._ended.set()
        self.restart()

    def restart(self) -> None:
        call = self._call
        if call is not None:
            call.cancel()

    def _follow(self) -> None:
        while self._is_wanted():
            trouble: Exception = ServerLost("the server ended the stream of notifications")
            try:
                self._follow_once()
            except grpc.RpcError as error:
                trouble = meaning_of(error, self._cluster.connection.address)
            except BookwardenError as error:
                trouble = error
            if self._is_wanted():
                _LOG.debug("the changes of shard %d wait: %s", self._shard, trouble)
                self._cluster.pause()

    def _follow_once(self) -> None:
        shards = self._cluster.shards(self._cluster.deadline()).shards
        shard = next((one for one in shards if one.id == self._shard), None)
        if shard is None:
            # The next call of `take` ends it.
            return
        self._call = call = self._cluster.notifications(shard)
        if not self._is_wanted():
            call.cancel()
        batches = iter(call)
        # Told by the server when every later change will be.
        if next(batches, None) is None:
            return
        if self._begun.is_set():
            self._log.lose("a stream of Oxia's notifications broke")
        self._begun.set()
        for batch in batches:
            self._log.add(batch.notifications)
            if deletes_ranges(batch):
                self._log.lose("a range of keys was deleted in Oxia")

    def _is_wanted(self) -> bool:
        return not (self._ended.is_set() or self._cluster.is_closed)
