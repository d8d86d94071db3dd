"""Refusals of ZooKeeper, by permissions that it takes away: how a broker is made to fail between two steps."""

from __future__ import annotations

from typing import Final

from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE, make_acl

from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path

#: That of the first ten thousand ids, as many as no test and no demo gets.
LEDGERS_FOLDER: Final = ledger_path("/ledgers", 0).rpartition("/")[0]


class Refusals:
    """Refusals until they are lifted: a node cannot be deleted from, or cannot be updated."""

    def __init__(self, store_url: str) -> None:
        self._client = KazooClient(store_url.removeprefix("zk:"))
        self._client.start()
        self._paths: list[str] = []

    def deletes_in(self, path: str) -> None:
        """Refuse to delete what is directly below the node."""
        self._allow(path, read=True, write=True, create=True, admin=True)

    def updates_of(self, path: str) -> None:
        """Refuse to change the node's value."""
        self._allow(path, read=True, create=True, delete=True, admin=True)

    def lift(self) -> None:
        """Allow everything again."""
        for path in self._paths:
            self._client.set_acls(path, OPEN_ACL_UNSAFE)
        self._paths.clear()

    def close(self) -> None:
        """Allow everything again, and end the session."""
        self.lift()
        self._client.stop()
        self._client.close()

    def _allow(self, path: str, **permissions: bool) -> None:
        self._client.set_acls(path, [make_acl("world", "anyone", **permissions)])
        self._paths.append(path)
