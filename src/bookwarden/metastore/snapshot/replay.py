"""Transactions replayed on the nodes of a snapshot, one path at a time.

A path may be in the snapshot in any of its states since the snapshot was begun. A transaction that does not fit (a
node to create that exists, one to change that does not) has no effect, as in ZooKeeper.
Source: server.DataTree.processTxn, ZooKeeper 3.9.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import NamedTuple

from bookwarden.metastore.snapshot.transaction_log import Change, Closed, Created, Deleted, Replaced, Transaction


class SnapshotNode(NamedTuple):
    """A node of a snapshot; times in milliseconds by the server's clock; ``owner`` is its session, 0 for none."""

    value: bytes
    version: int
    created_ms: int
    modified_ms: int
    owner: int = 0


class Replay:
    """The transactions since a snapshot was begun, in memory, by path."""

    def __init__(self, transactions: Iterable[Transaction] = ()) -> None:
        self._changes: dict[str, list[tuple[Transaction, Change]]] = {}
        self._closed: dict[int, int] = {}
        self.last_zxid: int | None = None
        self.latest_ms = 0
        for transaction in transactions:
            self.last_zxid = transaction.zxid
            self.latest_ms = max(self.latest_ms, transaction.time_ms)
            for change in transaction.changes:
                self._note(transaction, change)

    def _note(self, transaction: Transaction, change: Change) -> None:
        if isinstance(change, Closed):
            self._closed[change.session] = transaction.zxid
            return
        changes = self._changes.setdefault(change.path, [])
        if isinstance(change, Deleted):
            # Earlier changes no longer matter.
            changes.clear()
        elif isinstance(change, Replaced) and changes and isinstance(changes[-1][1], Replaced):
            changes.pop()
        changes.append((transaction, change))

    @property
    def paths(self) -> Set[str]:
        """The paths that were changed."""
        return self._changes.keys()

    @property
    def closed(self) -> Set[int]:
        """The sessions that were closed: their nodes are gone, whether a transaction names them or not."""
        return self._closed.keys()

    def resolve(self, path: str, node: SnapshotNode | None) -> SnapshotNode | None:
        """Return the node as the transactions left it; ``node`` is None where the snapshot has none."""
        for transaction, change in self._changes.get(path, ()):
            node = self._applied(transaction, change, node)
        return None if node is not None and node.owner in self._closed else node

    def _applied(self, transaction: Transaction, change: Change, node: SnapshotNode | None) -> SnapshotNode | None:
        if isinstance(change, Deleted):
            return None
        if isinstance(change, Created):
            if node is not None and self._closed.get(node.owner, transaction.zxid) >= transaction.zxid:
                return node
            return SnapshotNode(change.value, 0, transaction.time_ms, transaction.time_ms, change.owner)
        if isinstance(change, Replaced) and node is not None:
            return node._replace(value=change.value, version=change.version, modified_ms=transaction.time_ms)
        return node
