"""Notifications of shards, watches of single keys over them, and changes of many keys."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import grpc

from bookwarden.errors import BookwardenError, StoreUnavailableError
from bookwarden.metastore.changes import ChangedNodes, ChangeFeed, ChangeLog
from bookwarden.metastore.deadline import Deadline
from bookwarden.metastore.oxia.channels import ServerLost, meaning_of
from bookwarden.metastore.oxia.shards import OxiaCluster, Shard
from bookwarden.wire.pb import oxia_client_pb2 as pb

_LOG = logging.getLogger(__name__)


class NotificationStream(ABC):
    """The notifications of one shard, with a thread of its own.

    A stream begins with an empty batch: from there on the server sends all changes. A lost stream is started again from
    now and not from its last offset, and `_miss` is called then: the listener reads again, which covers the changes
    missed, even if the server has forgotten them or a key has moved to another shard.
    """

    def __init__(self, cluster: OxiaCluster, what: str) -> None:
        self._cluster = cluster
        self._what = what
        self._ended = threading.Event()
        self._begun = threading.Event()
        self._error: Exception | None = None
        self._call: Any = None
        self._thread = threading.Thread(target=self._follow, name=what, daemon=True)

    def start(self, deadline: Deadline) -> None:
        """Begin, and return when no later change can be missed; raise when there is no connection."""
        self._cluster.shards(deadline)
        self._thread.start()
        self._begun.wait(deadline.left())
        if self._begun.is_set() and self._error is None:
            return
        self.end()
        if isinstance(self._error, BookwardenError):
            raise self._error
        raise StoreUnavailableError(f"Oxia does not send {self._what}: check that it runs, then retry")

    def end(self) -> None:
        """Stop telling changes; a call under way goes on."""
        self._ended.set()
        self.restart()

    def restart(self) -> None:
        """Break the stream, so that changes count as missed when the next has begun."""
        call = self._call
        if call is not None:
            call.cancel()

    @property
    def is_over(self) -> bool:
        """Whether it was ended."""
        return self._ended.is_set()

    @abstractmethod
    def _shard(self) -> Shard | None:
        """Find the shard among those of now; None where there is none."""

    @abstractmethod
    def _take(self, batch: pb.NotificationBatch) -> None:
        """Take a batch of changes."""

    @abstractmethod
    def _miss(self) -> None:
        """Note that a stream broke, and changes may be missing; later ones arrive again."""

    def _follow(self) -> None:
        while self._is_wanted():
            failure: Exception = ServerLost("the server ended the stream of notifications")
            try:
                self._follow_once()
            except grpc.RpcError as error:
                failure = meaning_of(error, self._cluster.connection.address)
            except BookwardenError as error:
                failure = error
            if not self._is_wanted():
                return
            if not self._begun.is_set() and isinstance(failure, BookwardenError):
                self._error = failure
                self._begun.set()
                return
            _LOG.debug("%s: waiting: %s", self._what, failure)
            if not self._cluster.pause():
                return

    def _follow_once(self) -> None:
        shard = self._shard()
        if shard is None:
            return
        self._call = call = self._cluster.notifications(shard)
        if not self._is_wanted():
            call.cancel()
        batches = iter(call)
        # The server sends it once it will send every later change.
        if next(batches, None) is None:
            return
        if self._begun.is_set():
            self._miss()
        self._begun.set()
        for batch in batches:
            self._take(batch)

    def _is_wanted(self) -> bool:
        return not (self._ended.is_set() or self._cluster.is_closed)


class Watch(NotificationStream):
    """One watched key: a watcher that raises ends its watch only, and is called in any case after a lost stream."""

    def __init__(self, cluster: OxiaCluster, path: str, changed: Callable[[str], None]) -> None:
        super().__init__(cluster, f"the changes of {path}")
        self._path = path
        self._changed = changed

    def close(self) -> None:
        """Stop calling `changed`."""
        self.end()

    def _shard(self) -> Shard:
        return self._cluster.shards(self._cluster.deadline()).of(self._path)

    def _take(self, batch: pb.NotificationBatch) -> None:
        if self._path in batch.notifications or deletes_ranges(batch):
            self._miss()

    def _miss(self) -> None:
        if self._is_wanted():
            self._changed(self._path)


def deletes_ranges(batch: pb.NotificationBatch) -> bool:
    """Return whether the keys of a range were deleted, which are not named."""
    # No user of a metadata store deletes ranges; if one did, the watcher reads whether the key was in it.
    return any(change.type == pb.KEY_RANGE_DELETED for change in batch.notifications.values())


class KeyChanges(ChangeFeed):
    """Changes below some keys, with a stream of each shard.

    A stream that was lost begins again from now, and leaves a gap once it has begun.
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
        # One that no longer exists is ended by the next call of `take`.
        shards = self._cluster.shards(self._cluster.deadline()).shards
        return next((shard for shard in shards if shard.id == self._number), None)

    def _take(self, batch: pb.NotificationBatch) -> None:
        self._log.add(batch.notifications)
        if deletes_ranges(batch):
            self._log.lose("a range of keys was deleted in Oxia")

    def _miss(self) -> None:
        self._log.lose("a stream of Oxia's notifications broke")
