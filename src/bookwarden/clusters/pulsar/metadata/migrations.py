"""Flags of a migration to another cluster (PIP-188) and the nodes of its topics, read from blue's metadata store.

Formats: ``/admin/clusters/<cluster>/policies`` (ClusterPolicies), ``/admin/local-policies/<tenant>/<namespace>``
(LocalPolicies) and ``/loadbalance/brokers/<broker>`` of Pulsar 4.0. No broker is asked, whom a flag may keep silent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from bookwarden.clusters.pulsar.metadata.paths import MANAGED_LEDGERS_ROOT, cursor_path, managed_ledger_path
from bookwarden.errors import BookieError, FormatError, NotFoundError
from bookwarden.ledgers.managed_ledger import CursorInfo, ManagedLedgerInfo, Position
from bookwarden.metastore.changes import ChangeFeed
from bookwarden.metastore.interface import MetadataStore
from bookwarden.wire.cursor import decode_cursor, decode_position_info
from bookwarden.wire.managed_ledger import decode_managed_ledger

T = TypeVar("T")

_LOCAL_POLICIES: Final = "/admin/local-policies"
_BROKERS: Final = "/loadbalance/brokers"
_AT_ONCE: Final = 500
# Names below the root of managed ledgers: tenant, namespace, persistent, topic, cursor.
_CURSOR_DEPTH: Final = 5


class TopicNodes(NamedTuple):
    """The nodes of one topic; cursors by encoded name."""

    managed_ledger: str
    info: ManagedLedgerInfo
    cursors: Mapping[str, CursorInfo]
    created_ms: Mapping[str, int]  #: When the nodes of the cursors were made, by the store's clock.


class MigrationNodes:
    """Reads flags and topics, never older than each call. Raises StoreError, and FormatError, which names the node.

    ``last_entry`` and ``first_entry`` return those of a ledger, as `LastEntries` does.
    """

    def __init__(
        self,
        store: MetadataStore,
        last_entry: Callable[[int], bytes | None],
        first_entry: Callable[[int], bytes | None] = lambda _ledger_id: None,
    ) -> None:
        self._store = store
        self._first_entry = first_entry
        self._last_entry = last_entry

    def is_cluster_flagged(self, cluster: str) -> bool:
        """Return whether all of the cluster is migrated."""
        self._store.sync()
        return _is_migrated(self._read_json(f"/admin/clusters/{cluster}/policies"))

    def is_flagged(self, namespace: str) -> bool:
        """Return whether the namespace itself is migrated."""
        self._store.sync()
        return _is_migrated(self._read_json(f"{_LOCAL_POLICIES}/{namespace}"))

    def flagged_namespaces(self) -> list[str]:
        """List the namespaces that are migrated themselves."""
        self._store.sync()
        names = [
            f"{tenant}/{name}"
            for tenant in self._store.children_of(_LOCAL_POLICIES)
            for name in self._store.children_of(f"{_LOCAL_POLICIES}/{tenant}")
        ]
        return [name for name in names if _is_migrated(self._read_json(f"{_LOCAL_POLICIES}/{name}"))]

    def topics(self, namespace: str) -> Iterator[TopicNodes]:
        """Read all persistent topics of a namespace, each partition, with their cursors."""
        self._store.sync()
        names = self._store.children_of(f"{MANAGED_LEDGERS_ROOT}/{namespace}/persistent")
        for start in range(0, len(names), _AT_ONCE):
            yield from self._read_some([f"{namespace}/persistent/{name}" for name in names[start : start + _AT_ONCE]])

    def topic(self, managed_ledger: str) -> TopicNodes | None:
        """Read one topic; None if it is gone."""
        self._store.sync()
        return next(iter(self._read_some([managed_ledger])), None)

    def read_value(self, managed_ledger: str) -> tuple[bytes, int] | None:
        """Return the raw value of a topic's node and its version; None if there is none."""
        self._store.sync()
        node = self._store.get(managed_ledger_path(managed_ledger))
        return None if node is None else (node.value, node.version)

    def replace_value(self, managed_ledger: str, value: bytes, version: int) -> None:
        """Replace it if it has this version; LostRaceError if not, OutcomeUnknownError where that is not known.

        To be called only while no broker has the topic loaded.
        """
        self._store.put(managed_ledger_path(managed_ledger), value, version)

    def mark_delete(self, cursor: CursorInfo) -> Position | None:
        """Return how far a cursor has acknowledged, as its ledger or else its node says; None where neither does.

        The ledger is one that a broker may be writing: the answer is never ahead of the truth, and may be behind it.
        """
        if cursor.cursors_ledger_id is None:
            return cursor.mark_delete
        try:
            entry = self._last_entry(cursor.cursors_ledger_id)
        except (BookieError, NotFoundError, FormatError):
            return None
        return cursor.mark_delete if entry is None else decode_position_info(entry).mark_delete

    def first_position(self, cursor: CursorInfo) -> Position | None:
        """Return where a cursor began, by the first entry of its ledger; None where that is not known.

        A broker begins a new ledger where the cursor is by then: the answer is never before the truth.
        """
        if cursor.cursors_ledger_id is None:
            return cursor.mark_delete
        try:
            entry = self._first_entry(cursor.cursors_ledger_id)
        except (BookieError, NotFoundError, FormatError):
            return None
        return None if entry is None else decode_position_info(entry).mark_delete

    def brokers(self) -> dict[str, int]:
        """Return when each live broker registered, in ms since the epoch: a restart changes it."""
        self._store.sync()
        names = self._store.children_of(_BROKERS)
        nodes = self._store.get_many([f"{_BROKERS}/{name}" for name in names])
        return {name: node.created_ms for name, node in zip(names, nodes, strict=True) if node is not None}

    def follow(self, namespace: str) -> CursorFeed:
        """Begin to collect which cursors a namespace's topics get; StoreError where the store reports no changes."""
        return CursorFeed(self._store.follow_below([f"{MANAGED_LEDGERS_ROOT}/{namespace}/persistent"]))

    def _read_some(self, managed_ledgers: list[str]) -> Iterator[TopicNodes]:
        paths = [managed_ledger_path(name) for name in managed_ledgers]
        nodes, children = self._store.get_many(paths), self._store.list_many(paths)
        for name, path, node, cursors in zip(managed_ledgers, paths, nodes, children, strict=True):
            # A topic may be deleted between both reads.
            if node is not None:
                found = self._cursors(name, cursors)
                yield TopicNodes(
                    name,
                    _decoded(path, node.value, decode_managed_ledger),
                    {cursor: one for cursor, (one, _) in found.items()},
                    {cursor: created_ms for cursor, (_, created_ms) in found.items()},
                )

    def _cursors(self, managed_ledger: str, names: list[str]) -> dict[str, tuple[CursorInfo, int]]:
        paths = [cursor_path(managed_ledger, name) for name in names]
        nodes = self._store.get_many(paths) if paths else []
        return {
            name: (_decoded(path, node.value, decode_cursor), node.created_ms)
            for name, path, node in zip(names, paths, nodes, strict=True)
            if node is not None
        }

    def _read_json(self, path: str) -> Mapping[str, Any]:
        node = self._store.get(path)
        if node is None or not node.value:
            return {}
        try:
            found = json.loads(node.value)
        except ValueError as error:
            raise FormatError(f"{path}: its value is no JSON") from error
        if not isinstance(found, Mapping):
            raise FormatError(f"{path}: its value is no JSON object")
        return found


class CursorFeed:
    """Cursors whose nodes were made, written or deleted, each reported even if it is gone again; close it."""

    def __init__(self, changes: ChangeFeed) -> None:
        self._changes = changes

    def take(self) -> frozenset[tuple[str, str]] | None:
        """Return managed ledger and encoded name of what changed since the last call; None where some may be missing.

        A read that follows sees every change. Raises StoreUnavailableError where that is not possible now; nothing is
        lost by that.
        """
        found = self._changes.take()
        if found.gap or found.unwatched:
            return None
        names = [path.removeprefix(f"{MANAGED_LEDGERS_ROOT}/").split("/") for path in found.paths]
        return frozenset(("/".join(parts[:4]), parts[4]) for parts in names if len(parts) == _CURSOR_DEPTH)

    def close(self) -> None:
        """Stop collecting."""
        self._changes.close()


def _is_migrated(policies: Mapping[str, Any]) -> bool:
    return policies.get("migrated") is True


def _decoded(path: str, value: bytes, decode: Callable[[bytes], T]) -> T:
    try:
        return decode(value)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from error
