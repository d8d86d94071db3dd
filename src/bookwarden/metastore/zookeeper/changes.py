"""Changes of whole trees on ZooKeeper, by persistent recursive watches (servers from 3.6 on).

The watches are the connection's: one that broke has lost them, even if its session goes on, and no event
reports what changed until they are set again.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from bookwarden.metastore.changes import ChangedNodes, ChangeFeed, ChangeLog
from bookwarden.metastore.zookeeper import requests as wire
from bookwarden.metastore.zookeeper.session import ServerRefusal, ZooKeeperSession

_NOT_KNOWN = "this ZooKeeper, older than 3.6, reports no changes below a node"


class TreeChanges(ChangeFeed):
    """Changes below some nodes; a server without such watches reports a gap instead."""

    def __init__(self, session: ZooKeeperSession, prefixes: Sequence[str]) -> None:
        self._session = session
        self._prefixes = prefixes
        self._log = ChangeLog(prefixes)
        self._lock = threading.Lock()
        self._watched: int | None = None
        self._refused = False

    def start(self) -> None:
        """Set the watches; raise when there is no connection."""
        self._session.listen(self._note)
        try:
            with self._lock:
                self._watch()
        except BaseException:
            self.close()
            raise

    def take(self) -> ChangedNodes:
        with self._lock:
            if not self._refused and self._watched != self._session.breaks:
                self._watch()
                self._log.lose("the connection to ZooKeeper broke, and its watches were lost")
            return ChangedNodes(frozenset(), _NOT_KNOWN, unwatched=True) if self._refused else self._log.take()

    def close(self) -> None:
        self._session.forget(self._note)

    def _note(self, path: str) -> None:
        self._log.add((path,))

    def _watch(self) -> None:
        deadline = self._session.deadline()
        while self._watched != self._session.breaks or self._watched is None:
            # A connection that breaks meanwhile may take a watch with it that was just confirmed.
            breaks = self._session.breaks
            try:
                for prefix in self._prefixes:
                    self._session.read(wire.AddWatch(self._session.absolute(prefix)), deadline)
            except ServerRefusal as refusal:
                if refusal.code != wire.UNIMPLEMENTED:
                    raise
                self._refused = True
                return
            self._watched = breaks
