"""The nodes below a metadata root that name ledgers, and the reading of their values into references.

All references are read through this module: by the sweep those of its holders, by a scan all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from bookwarden.clusters.pulsar.metadata.paths import cursor_path, managed_ledger_path, schema_path
from bookwarden.errors import FormatError, StoreAccessError
from bookwarden.ledgers.kinds import CursorHolder, Holder, ManagedLedgerHolder, PlaceKind, SchemaHolder
from bookwarden.ledgers.managed_ledger import ManagedLedgerInfo
from bookwarden.ledgers.references import (
    Doubt,
    NodeReferences,
    ReferencePlace,
    doubt_about_cursor,
    doubt_about_managed_ledger,
    doubt_about_schema,
    named_by_cursor,
    named_by_managed_ledger,
    named_by_schema,
)
from bookwarden.metastore.interface import MetadataStore, Versioned
from bookwarden.wire.cursor import decode_cursor
from bookwarden.wire.log_nodes import decode_allocation, decode_segment, is_segment
from bookwarden.wire.managed_ledger import decode_managed_ledger
from bookwarden.wire.schema_locator import decode_schema_locator

# A refusal is about one node of a request, which is halved until each refused node is alone.
NodeValue = Versioned | StoreAccessError | None
_EMPTIED: Final = (
    "managed-ledger node: it has no bytes, and was written since it was made. Its list was lost, so write the node "
    "again from a backup before a broker loads the topic; or its only ledger had no entry, and the broker died before "
    "it listed the next one, which a load mends"
)


def read_each(store: MetadataStore, paths: Sequence[str]) -> list[NodeValue]:
    """Read each path, in the order asked; None where there is no node, the error where the store refuses it."""
    try:
        return list(store.get_many(paths))
    except StoreAccessError as error:
        if len(paths) == 1:
            return [error]
    middle = len(paths) // 2
    return [*read_each(store, paths[:middle]), *read_each(store, paths[middle:])]


class ManagedLedgerNode(NamedTuple):
    """The node of a managed ledger."""

    path: str
    name: str

    def read(self, node: Versioned, root: str) -> NodeReferences:
        """Read what the node's value names."""
        try:
            info = read_managed_ledger(self.name, node)
        except FormatError as error:
            doubt = doubt_about_managed_ledger(self.path, root, str(error))
            return NodeReferences(self.path, root, doubt=doubt)
        named = named_by_managed_ledger(self.name, info, self.path, root)
        return NodeReferences(self.path, root, named, info)


class CursorNode(NamedTuple):
    """The node of a cursor, whose name is encoded."""

    path: str
    managed_ledger: str
    cursor: str

    def read(self, node: Versioned, root: str) -> NodeReferences:
        """Read what the node's value names."""
        try:
            info = decode_cursor(node.value)
        except FormatError as error:
            doubt = doubt_about_cursor(self.managed_ledger, self.cursor, self.path, root, str(error))
            return NodeReferences(self.path, root, doubt=doubt)
        named = named_by_cursor(self.managed_ledger, self.cursor, info, self.path, root)
        return NodeReferences(self.path, root, named, info)


class SchemaNode(NamedTuple):
    """The node of a schema."""

    path: str
    schema_id: str

    def read(self, node: Versioned, root: str) -> NodeReferences:
        """Read what the node's value names."""
        try:
            info = decode_schema_locator(node.value)
        except FormatError as error:
            doubt = doubt_about_schema(self.schema_id, self.path, root, str(error))
            return NodeReferences(self.path, root, doubt=doubt)
        named = named_by_schema(self.schema_id, info, self.path, root)
        return NodeReferences(self.path, root, named, info)


class LogNode(NamedTuple):
    """A segment of a log, or the allocation for its next one, as `wire.log_nodes` tells them from other nodes."""

    path: str

    @property
    def log(self) -> str:
        """The node of the log that it belongs to."""
        return self.path.rpartition("/")[0].removesuffix("/ledgers")

    def read(self, node: Versioned, root: str) -> NodeReferences:
        """Read the ledger that the node names; it counts as referenced, whatever its own metadata says."""
        kind = PlaceKind.LOG_SEGMENT if is_segment(self.path) else PlaceKind.LOG_ALLOCATION
        try:
            found = (decode_segment if kind is PlaceKind.LOG_SEGMENT else decode_allocation)(node.value)
        except FormatError as error:
            return NodeReferences(self.path, root, doubt=Doubt(self.path, root, str(error)))
        ids = frozenset[int]() if found is None else frozenset((found,))
        return NodeReferences(self.path, root, ((ReferencePlace(kind, self.log, self.path, root), ids),))


def was_emptied(node: Versioned) -> bool:
    """Return whether the node of a managed ledger was written before and has no bytes now.

    A broker makes it without a byte and lists a ledger by its next write. It leaves an empty one only if it dies
    between removing the last ledger, which had no entry, and listing the next (ManagedLedgerImpl of Pulsar 4.0).
    """
    return not node.value and not node.is_as_created


def read_managed_ledger(name: str, node: Versioned) -> ManagedLedgerInfo:
    """Read the list of a managed ledger; FormatError where it is not known, as for one that was emptied.

    A cursor whose node has the name of a managed ledger lists nothing.
    """
    if was_emptied(node):
        raise FormatError(_EMPTIED)
    try:
        return decode_managed_ledger(node.value)
    except FormatError:
        if _is_cursor_of_odd_topic(name, node.value):
            return ManagedLedgerInfo()
        raise


def _is_cursor_of_odd_topic(name: str, raw: bytes) -> bool:
    """Return whether this is a cursor of a topic called "persistent", whose node has the name of a managed ledger.

    ``tenant/namespace/persistent/persistent/cursor`` might be ``tenant/cluster/namespace/persistent/topic`` as well.
    """
    parts = name.split("/")
    if len(parts) != 5 or parts[2:4] != ["persistent", "persistent"]:
        return False
    try:
        decode_cursor(raw)
    except FormatError:
        return False
    return True


ReferenceNode = ManagedLedgerNode | CursorNode | SchemaNode | LogNode


def managed_ledger_node(name: str) -> ManagedLedgerNode:
    """Return the node of a managed ledger."""
    return ManagedLedgerNode(managed_ledger_path(name), name)


def cursor_node(managed_ledger: str, cursor: str) -> CursorNode:
    """Return the node of a cursor."""
    return CursorNode(cursor_path(managed_ledger, cursor), managed_ledger, cursor)


def schema_node(schema_id: str) -> SchemaNode:
    """Return the node of a schema."""
    return SchemaNode(schema_path(schema_id), schema_id)


def node_of(holder: Holder) -> ReferenceNode:
    """Return the node of a holder that has one of its own."""
    if isinstance(holder, ManagedLedgerHolder):
        return managed_ledger_node(holder.name)
    if isinstance(holder, CursorHolder):
        return cursor_node(holder.managed_ledger, holder.cursor)
    if isinstance(holder, SchemaHolder):
        return schema_node(holder.schema_id)
    raise FormatError(f"{holder} has no node of its own")
