"""Watches of single keys, over the notifications of their shard."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import grpc

from bookwarden.errors import BookwardenError, StoreUnavailableError
from bookwarden.metastore.deadline import Deadline
from bookwarden.metastore.oxia.channels import ServerLost, meaning_of
from bookwarden.metastore.oxia.shards import OxiaCluster
from bookwarden.wire.pb import oxia_client_pb2 as pb

_LOG = logging.getLogger(__name__)


class Watch:
    """One watched key, with a thread and a stream of its own: a watcher that raises ends its watch only.

    A stream begins with an empty batch: from there on all changes will be told. A lost stream is started again from
    now and not from its last offset: the watcher is then called in any case and reads again, which covers the changes
    missed, even if the server has forgotten them or the key has moved to another shard.
    """

    def __init__(self, cluster: OxiaCluster, path: str, changed: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._path = path
        self._changed = changed
        self._ended = threading.Event()
        self._begun = threading.Event()
        self._trouble: Exception | None = None
        self._call: Any = None
        self._thread = threading.Thread(target=self._follow, name=f"watch {path}", daemon=True)

    def start(self, deadline: Deadline) -> None:
        """Begin, and return when no later change can be missed; raise when there is no connection."""
        self._cluster.shards(deadline)
        self._thread.start()
        self._begun.wait(deadline.left())
        if self._begun.is_set() and self._trouble is None:
            return
        self.end()
        if isinstance(self._trouble, BookwardenError):
            raise self._trouble
        raise StoreUnavailableError(
            f"{self._path} cannot be watched ({self._trouble or 'no answer'}): check that Oxia runs, then retry"
        )

    def end(self) -> None:
        """Stop calling `changed`; a call under way goes on."""
        self._ended.set()
        self.restart()

    def close(self) -> None:
        """Stop calling `changed`."""
        self.end()

    def restart(self) -> None:
        """Break the stream, so that the watcher is called when the next has begun."""
        call = self._call
        if call is not None:
            call.cancel()

    @property
    def is_over(self) -> bool:
        return self._ended.is_set()

    def _follow(self) -> None:
        while self._is_wanted():
            trouble: Exception = ServerLost("the server ended the stream of notifications")
            try:
                self._follow_once()
            except grpc.RpcError as error:
                trouble = meaning_of(error, self._cluster.connection.address)
            except BookwardenError as error:
                trouble = error
            if not self._is_wanted():
                return
            if not self._begun.is_set() and isinstance(trouble, BookwardenError):
                self._trouble = trouble
                self._begun.set()
                return
            _LOG.debug("the watch of %s waits: %s", self._path, trouble)
            if not self._cluster.pause():
                return

    def _follow_once(self) -> None:
        shard = self._cluster.shards(self._cluster.deadline()).of(self._path)
        self._call = call = self._cluster.notifications(shard)
        if not self._is_wanted():
            call.cancel()
        batches = iter(call)
        next(batches, None)
        if self._begun.is_set():
            self._tell()
        self._begun.set()
        for batch in batches:
            if self._path in batch.notifications or deletes_ranges(batch):
                self._tell()

    def _tell(self) -> None:
        if self._is_wanted():
            self._changed(self._path)

    def _is_wanted(self) -> bool:
        return not (self._ended.is_set() or self._cluster.is_closed)


def deletes_ranges(batch: pb.NotificationBatch) -> bool:
    """Return whether the keys of a range were deleted, which are not named."""
    # No user of a metadata store deletes ranges; if one did, the watcher reads whether the key was in it.
    return any(change.type == pb.KEY_RANGE_DELETED for change in batch.notifications.values())
