"""Managed ledgers, cursors and schemas of one Pulsar metadata root, read and changed with their versions.

Never change the nodes of a topic that a broker has loaded: it fences the topic.
Below ``/managed-ledgers`` a managed ledger has four parts, ``tenant/namespace/persistent/topic``, or five in names of
the first version, ``tenant/cluster/namespace/persistent/topic`` (TopicName of Pulsar 4.0); a walk finds them, since a
computed name may be another topic's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from bookwarden.clusters.pulsar.metadata.paths import (
    MANAGED_LEDGERS_ROOT,
    cursor_path,
    managed_ledger_path,
    schema_path,
)
from bookwarden.errors import (
    FormatError,
    LostRaceError,
    NotFoundError,
    OutcomeUnknownError,
    StoreAccessError,
    StoreError,
)
from bookwarden.ledgers.managed_ledger import VersionedCursor, VersionedManagedLedger, VersionedSchema
from bookwarden.ledgers.metadata import DeleteResult
from bookwarden.metastore.interface import MetadataStore
from bookwarden.wire.cursor import decode_cursor
from bookwarden.wire.managed_ledger import decode_managed_ledger, remove_ledgers
from bookwarden.wire.schema_locator import decode_schema_locator

_DOMAIN = "persistent"

# Called with a node whose children may not be listed: its name below the top of the walk, and the error.
Refused = Callable[[str, StoreAccessError], None]


def walk_managed_ledgers(store: MetadataStore) -> Iterator[list[str]]:
    """Yield all managed ledgers, those of a namespace at a time.

    Where a namespace and a topic are both called "persistent" a name may be that of a cursor. Raises StoreError
    where the store does not answer or holds no managed ledgers at all.
    """
    for folder, topics in walk_topic_folders(store):
        yield [f"{folder}/{topic}" for topic in topics]


def walk_topic_folders(store: MetadataStore, refused: Refused | None = None) -> Iterator[tuple[str, list[str]]]:
    """Yield each node below which topics are, such as ``tenant/namespace/persistent``, and its children.

    Raises as walking managed ledgers does; with ``refused``, which is called with it, a tenant or namespace that the
    store refuses to list is omitted.
    """
    try:
        tenants = store.list_children(MANAGED_LEDGERS_ROOT)
    except NotFoundError as error:
        raise StoreError(f"a metadata store has no node {MANAGED_LEDGERS_ROOT}, so it is no Pulsar's") from error
    for tenant in tenants:
        for namespace in _children(store, tenant, refused):
            yield from _of_namespace(store, f"{tenant}/{namespace}", refused)


def _of_namespace(store: MetadataStore, namespace: str, refused: Refused | None) -> Iterator[tuple[str, list[str]]]:
    for part in _children(store, namespace, refused):
        below = f"{namespace}/{part}"
        names = _children(store, below, refused)
        if part == _DOMAIN:
            yield below, names
        if part != _DOMAIN or _DOMAIN in names:
            # A name of the first version: this part is the namespace, and the one above it the cluster.
            domains = names if part != _DOMAIN else [_DOMAIN]
            for domain in domains:
                yield f"{below}/{domain}", _children(store, f"{below}/{domain}", refused)


def _children(store: MetadataStore, name: str, refused: Refused | None) -> list[str]:
    return children_unless_refused(store, MANAGED_LEDGERS_ROOT, name, refused)


def children_unless_refused(store: MetadataStore, top: str, name: str, refused: Refused | None) -> list[str]:
    """List the children of a node below ``top``; if the store refuses, call ``refused`` and return none, or raise."""
    try:
        return store.children_of(f"{top}/{name}")
    except StoreAccessError as error:
        if refused is None:
            raise
        refused(name, error)
        return []


class ManagedLedgers:
    """The nodes of topics below one metadata root. Reads raise FormatError, which names the node."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def read(self, name: str) -> VersionedManagedLedger | None:
        """Read a managed ledger, never older than this call; None if there is none."""
        path = managed_ledger_path(name)
        self._store.sync()
        node = self._store.get(path)
        if node is None:
            return None
        try:
            info = decode_managed_ledger(node.value)
        except FormatError as error:
            raise FormatError(f"{path}: {error}") from error
        return VersionedManagedLedger(path, node.version, node.created_ms, name, info, node.value)

    def cursors(self, name: str) -> dict[str, VersionedCursor]:
        """Read all cursors of a managed ledger, by encoded name; none if there is no such managed ledger."""
        self._store.sync()
        try:
            names = self._store.list_children(managed_ledger_path(name))
        except NotFoundError:
            return {}
        paths = [cursor_path(name, cursor) for cursor in names]
        cursors = {}
        for cursor, path, node in zip(names, paths, self._store.get_many(paths), strict=True):
            if node is None:
                continue
            try:
                info = decode_cursor(node.value)
            except FormatError as error:
                raise FormatError(f"{path}: {error}") from error
            cursors[cursor] = VersionedCursor(path, node.version, node.created_ms, cursor, info)
        return cursors

    def schema(self, schema_id: str) -> VersionedSchema | None:
        """Read a schema's locator, never older than this call; None if there is none."""
        path = schema_path(schema_id)
        self._store.sync()
        node = self._store.get(path)
        if node is None:
            return None
        try:
            locator = decode_schema_locator(node.value)
        except FormatError as error:
            raise FormatError(f"{path}: {error}") from error
        return VersionedSchema(path, node.version, node.created_ms, schema_id, locator)

    def remove_ledgers(self, managed_ledger: VersionedManagedLedger, ids: Collection[int]) -> None:
        """Remove ledgers from the managed ledger's list, in one update of the value that was read.

        Raises LostRaceError if it changed since, OutcomeUnknownError if the connection broke under the update.
        """
        value = remove_ledgers(managed_ledger.raw, ids)
        # The versions of a topic that was deleted and created again start over too.
        now = self._store.get(managed_ledger.path)
        if now is None or now.created_ms != managed_ledger.created_ms:
            raise LostRaceError(f"{managed_ledger.path} is no longer the node that was read: read it again")
        self._store.put(managed_ledger.path, value, managed_ledger.version)

    def delete(self, nodes: Sequence[VersionedManagedLedger | VersionedCursor | VersionedSchema]) -> None:
        """Delete nodes as they were read; a managed ledger goes only after its cursors, in a call of its own.

        A node that is gone already is no error. Raises LostRaceError if one changed since or has children,
        OutcomeUnknownError if one may or may not be there; the others are deleted anyway.
        """
        results = self._store.delete_many(
            [(node.path, node.version) for node in nodes], created_ms=[node.created_ms for node in nodes]
        )
        outcomes = list(zip(nodes, results, strict=True))
        changed = [node.path for node, result in outcomes if result is DeleteResult.LOST_RACE]
        if changed:
            raise LostRaceError(f"{changed[0]} changed since it was read, or has children: read it again")
        unknown = [node.path for node, result in outcomes if result is DeleteResult.UNKNOWN]
        if unknown:
            raise OutcomeUnknownError(f"the connection broke while {unknown[0]} was deleted: read it before retrying")
