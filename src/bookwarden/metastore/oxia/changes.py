"""Changes of many keys, over the notifications of all shards."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from bookwarden.metastore.changes import ChangedNodes, ChangeFeed, ChangeLog
from bookwarden.metastore.deadline import Deadline
from bookwarden.metastore.oxia.notifications import NotificationStream, deletes_ranges
from bookwarden.metastore.oxia.shards import OxiaCluster, Shard
from bookwarden.wire.pb import oxia_client_pb2 as pb


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
        try:
            with self._lock:
                self._follow_shards(deadline)
        except BaseException:
            self.close()
            raise

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


class _ShardStream(NotificationStream):
    """The notifications of one shard, into a log."""

    def __init__(self, cluster: OxiaCluster, shard: int, log: ChangeLog) -> None:
        super().__init__(cluster, f"the changes of shard {shard}")
        self._number = shard
        self._log = log

    def _shard(self) -> Shard | None:
        # One that is there no more is ended by the next call of `take`.
        shards = self._cluster.shards(self._cluster.deadline()).shards
        return next((shard for shard in shards if shard.id == self._number), None)

    def _take(self, batch: pb.NotificationBatch) -> None:
        self._log.add(batch.notifications)
        if deletes_ranges(batch):
            self._log.lose("a range of keys was deleted in Oxia")

    def _miss(self) -> None:
        self._log.lose("a stream of Oxia's notifications broke")
