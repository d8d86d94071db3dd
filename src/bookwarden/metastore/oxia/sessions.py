"""Sessions with the shards of an Oxia: ephemeral keys live as long as theirs is kept alive.

Format: CreateSession, KeepAlive and CloseSession of Oxia 0.14. A session belongs to one shard, outlives a restart of
its server, and ends when the leader hears nothing for its timeout.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final
from uuid import uuid4

import grpc

from bookwarden.errors import StoreUnavailableError
from bookwarden.metastore.deadline import Deadline
from bookwarden.metastore.oxia.channels import SessionEnded, meaning_of
from bookwarden.metastore.oxia.shards import OxiaCluster, Shard
from bookwarden.metastore.oxia.writes import ShardWriters

_LOG = logging.getLogger(__name__)

_HEARTBEATS_PER_TIMEOUT: Final = 10
_CLOSE_S: Final = 5.0


class OxiaSessions:
    """One session for each shard that has an ephemeral key of ours; ``ended`` is called when one of them ended."""

    def __init__(self, cluster: OxiaCluster, writers: ShardWriters, ended: Callable[[], None]) -> None:
        self.identity: Final = uuid4().hex
        self._cluster = cluster
        self._writers = writers
        self._ended = ended
        self._lock = threading.Lock()
        self._sessions: dict[int, int] = {}
        self._closing = threading.Event()
        self._heart: threading.Thread | None = None

    def session_of(self, shard: Shard, deadline: Deadline) -> int:
        """Return the id of our session with the shard, and begin one if needed; raise ServerLost without an answer."""
        known = self._known(shard)
        if known is not None:
            return known
        settings = self._cluster.connection
        # The leader writes a session without regard to the order of our stream.
        with self._writers.silence(shard, deadline):
            known = self._known(shard)
            if known is not None:
                # Another thread began it meanwhile: of two, one would be left without heartbeats.
                return known
            try:
                session = self._cluster.server(shard).create_session(
                    shard.id, settings.session_timeout_s, self.identity, max(0.1, deadline.left())
                )
            except grpc.RpcError as error:
                raise self._cluster.lost(error, shard) from error
            self._keep(shard, session)
        return session

    def forget(self, shard: Shard, session: int) -> None:
        """Drop a session that the shard no longer knows, so that another is begun."""
        with self._lock:
            if self._sessions.get(shard.id) == session:
                del self._sessions[shard.id]

    def close(self) -> None:
        """End the sessions, as far as their servers answer."""
        self._closing.set()
        with self._lock:
            sessions, self._sessions = self._sessions, {}
        deadline = Deadline(_CLOSE_S)
        for shard_id, session in sessions.items():
            try:
                shard = self._shard(shard_id, deadline)
                with self._writers.silence(shard, deadline):
                    self._cluster.server(shard).close_session(shard_id, session, max(0.1, deadline.left()))
            except grpc.RpcError as error:
                _LOG.warning(
                    "a session with Oxia %s could not be ended and will time out: %s",
                    self._cluster.connection.address,
                    error.details(),
                )
            except StoreUnavailableError as error:
                _LOG.warning("a session could not be ended and will time out: %s", error)

    def _known(self, shard: Shard) -> int | None:
        with self._lock:
            return self._sessions.get(shard.id)

    def _keep(self, shard: Shard, session: int) -> None:
        with self._lock:
            self._sessions[shard.id] = session
            if self._heart is None:
                self._heart = threading.Thread(target=self._beat, name="oxia heartbeats", daemon=True)
                self._heart.start()

    def _beat(self) -> None:
        settings = self._cluster.connection
        pause = settings.session_timeout_s / _HEARTBEATS_PER_TIMEOUT
        while not self._closing.wait(pause):
            with self._lock:
                sessions = list(self._sessions.items())
            for shard_id, session in sessions:
                self._beat_once(shard_id, session, pause)

    def _beat_once(self, shard_id: int, session: int, timeout: float) -> None:
        try:
            shard = self._shard(shard_id, Deadline(timeout))
            self._cluster.server(shard).keep_alive(shard_id, session, max(timeout, 1.0))
        except StoreUnavailableError as error:
            _LOG.debug("a heartbeat waits: %s", error)
        except grpc.RpcError as error:
            meaning = meaning_of(error, self._cluster.connection.address)
            if not isinstance(meaning, SessionEnded):
                _LOG.debug("a heartbeat was lost: %s", meaning)
                return
            if self._closing.is_set():
                return
            _LOG.warning("a session with Oxia ended: its ephemeral keys are gone")
            with self._lock:
                if self._sessions.get(shard_id) == session:
                    del self._sessions[shard_id]
            self._ended()

    def _shard(self, shard_id: int, deadline: Deadline) -> Shard:
        for shard in self._cluster.shards(deadline).shards:
            if shard.id == shard_id:
                return shard
        raise StoreUnavailableError(f"shard {shard_id} no longer exists")
