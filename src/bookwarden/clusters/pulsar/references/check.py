"""A second look at places that named a ledger, for ledgers that seem to be lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bookwarden.clusters.bookkeeper.bookies.last_entries import LastEntries
from bookwarden.clusters.pulsar.metadata.paths import SCHEMAS_ROOT
from bookwarden.clusters.pulsar.references.compacted_now import CompactedNow
from bookwarden.clusters.pulsar.references.nodes import (
    CursorNode,
    LogNode,
    ReferenceNode,
    cursor_node,
    managed_ledger_node,
    schema_node,
)
from bookwarden.clusters.pulsar.references.rows import rows_of
from bookwarden.ledgers.kinds import PlaceKind
from bookwarden.ledgers.listing import ListedReference
from bookwarden.metastore.interface import MetadataStore, Versioned

_TOPICS = (PlaceKind.MANAGED_LEDGER.value, PlaceKind.SHADOW_TOPIC.value)
_LOGS = (PlaceKind.LOG_SEGMENT.value, PlaceKind.LOG_ALLOCATION.value)


def still_named(
    references: Sequence[ListedReference], store: MetadataStore, entries: LastEntries | None = None
) -> list[ListedReference]:
    """Return the references whose places still name their ledgers, and not as ones that BookKeeper no longer has.

    Each node is read once, for any number of ledgers. A place that cannot be parsed still names them. ``store`` is the
    one of the references' root, ``entries`` as for ReferencePieces. Raises StoreError where it does not answer.
    """
    store.sync()
    nodes = {reference.path: (_node_of(reference), reference.root) for reference in references}
    compacted = CompactedNow(entries)
    named: dict[str, frozenset[tuple[int | None, str]] | None] = {}
    for (path, (node, root)), value in zip(nodes.items(), store.get_many(list(nodes)), strict=True):
        named[path] = frozenset() if value is None else _named_by(node, value, root, compacted)
    return [one for one in references if _is_among(named[one.path], one)]


def still_named_in(
    roots: Mapping[str, MetadataStore], entries: LastEntries | None, references: Sequence[ListedReference]
) -> list[ListedReference]:
    """Return those that are still named, as `still_named` does, in each of these roots."""
    found: list[ListedReference] = []
    for root in dict.fromkeys(reference.root for reference in references):
        of_root = [reference for reference in references if reference.root == root]
        found += still_named(of_root, roots[root], entries)
    return found


def _named_by(
    node: ReferenceNode, value: Versioned, root: str, compacted: CompactedNow
) -> frozenset[tuple[int | None, str]] | None:
    """Return the ledgers that the node names, by place; None where it is in doubt."""
    references = node.read(value, root)
    if isinstance(node, CursorNode):
        references = compacted.complete(node, references)
    if references.doubt is not None:
        return None
    return frozenset((row.ledger_id, row.place) for row in rows_of(node, references) if not row.gone)


def _is_among(named: frozenset[tuple[int | None, str]] | None, reference: ListedReference) -> bool:
    return named is None or (reference.ledger_id, reference.place) in named


def _node_of(reference: ListedReference) -> ReferenceNode:
    if reference.place in _LOGS:
        return LogNode(reference.path)
    if reference.path.startswith(f"{SCHEMAS_ROOT}/"):
        return schema_node(reference.path.removeprefix(f"{SCHEMAS_ROOT}/"))
    if reference.place in _TOPICS:
        return managed_ledger_node(reference.holder)
    return cursor_node(reference.managed_ledger or "", reference.path.rpartition("/")[2])
