"""Whether a place that named a ledger still does, read anew: for ledgers that seem to be lost."""

from __future__ import annotations

from bookwarden.clusters.pulsar.compacted_now import CompactedNow
from bookwarden.clusters.pulsar.reference_nodes import (
    CursorNode,
    LogNode,
    ReferenceNode,
    cursor_node,
    managed_ledger_node,
    schema_node,
)
from bookwarden.clusters.pulsar.reference_rows import rows_of
from bookwarden.clusters.pulsar.unnamed_use import ReadsLastEntries
from bookwarden.ledgers.listing import ListedReference
from bookwarden.ledgers.references import PlaceKind
from bookwarden.metastore.interface import MetadataStore

_TOPICS = (PlaceKind.MANAGED_LEDGER.value, PlaceKind.SHADOW_TOPIC.value)
_LOGS = (PlaceKind.LOG_SEGMENT.value, PlaceKind.LOG_ALLOCATION.value)


def still_names(reference: ListedReference, store: MetadataStore, entries: ReadsLastEntries | None = None) -> bool:
    """Say whether the place names the ledger now, and not as one that BookKeeper has no more.

    A place that cannot be parsed still names it. ``store`` is the one of the reference's root, ``entries`` as for
    ReferencePieces. Raises StoreError where the store does not answer.
    """
    store.sync()
    found = store.get(reference.path)
    if found is None:
        return False
    node = _node_of(reference)
    references, info = node.read(found.value, reference.root)
    if isinstance(node, CursorNode):
        references = CompactedNow(entries).complete(node, references)
    if references.doubt is not None:
        return True
    rows = rows_of(node, references, info)
    return any(row.ledger_id == reference.ledger_id and row.place == reference.place and not row.gone for row in rows)


def _node_of(reference: ListedReference) -> ReferenceNode:
    if reference.place in _LOGS:
        return LogNode(reference.path)
    if reference.place == PlaceKind.SCHEMA.value:
        return schema_node(reference.holder.partition(":")[2])
    if reference.place in _TOPICS:
        return managed_ledger_node(reference.holder)
    return cursor_node(reference.managed_ledger or "", reference.path.rpartition("/")[2])
