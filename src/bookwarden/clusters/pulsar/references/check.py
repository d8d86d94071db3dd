"""A second look at places that named a ledger, for ledgers that seem to be lost."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from bookwarden.clusters.bookkeeper.bookies.last_entries import LastEntries
from bookwarden.clusters.pulsar.metadata.paths import SCHEMAS_ROOT
from bookwarden.clusters.pulsar.references.nodes import (
    CursorNode,
    LogNode,
    ReferenceNode,
    cursor_node,
    managed_ledger_node,
    read_managed_ledger,
    schema_node,
)
from bookwarden.clusters.pulsar.references.rows import rows_of
from bookwarden.clusters.pulsar.references.shadows import sources_of
from bookwarden.clusters.pulsar.references.unnamed_use import CompactedNow
from bookwarden.errors import FormatError
from bookwarden.ledgers.kinds import PlaceKind
from bookwarden.ledgers.list_gaps import NAMES_NOTHING, ListStatus, list_status_of
from bookwarden.ledgers.listing import ListedReference
from bookwarden.ledgers.managed_ledger import ManagedLedgerInfo
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


def outdated_in(roots: Mapping[str, MetadataStore], references: Sequence[ListedReference]) -> set[ListedReference]:
    """Return those of shadow topics whose sources, which are there and can be read, have let go of the ledger.

    A shadow topic that is loaded follows its source in memory, and its node goes on naming what the source trimmed, and
    the empty ledgers that a broker deletes when it loads the source (ShadowManagedLedgerImpl). StoreError as above.
    """
    found: set[ListedReference] = set()
    for root in dict.fromkeys(one.root for one in references if one.place == PlaceKind.SHADOW_TOPIC.value):
        of_root = [one for one in references if (one.root, one.place) == (root, PlaceKind.SHADOW_TOPIC.value)]
        shadows = _lists(roots[root], {one.holder for one in of_root})
        sources = {name: _sources(name, info) for name, info in shadows.items()}
        lists = _lists(roots[root], set().union(*sources.values()))
        found |= {
            one for one in of_root if _has_let_go([lists.get(source) for source in sources[one.holder]], shadows, one)
        }
    return found


def _has_let_go(
    sources: Sequence[ManagedLedgerInfo | None],
    shadows: Mapping[str, ManagedLedgerInfo | None],
    reference: ListedReference,
) -> bool:
    """Return whether each source that is there, and one at least, can have trimmed the ledger."""
    shadow, ledger_id = shadows[reference.holder], reference.ledger_id
    there = [source for source in sources if source is not None]
    if shadow is None or ledger_id is None or not there:
        return False
    # What the shadow's node says is of the time when the source's was copied.
    has_entries = any(one.ledger_id == ledger_id and (one.entries or one.size) for one in shadow.ledgers)
    return all(
        ledger_id not in source.ledger_ids
        and list_status_of(ledger_id, min(source.ledger_ids, default=NAMES_NOTHING), has_entries) is ListStatus.LET_GO
        for source in there
    )


def _sources(name: str, info: ManagedLedgerInfo | None) -> set[str]:
    try:
        return set() if info is None else sources_of(name, info)
    except FormatError:
        return set()


def _lists(store: MetadataStore, names: Collection[str]) -> dict[str, ManagedLedgerInfo | None]:
    """Read the lists of managed ledgers; None where there is no node, or one that cannot be read."""
    paths = [managed_ledger_node(name).path for name in names]
    found: dict[str, ManagedLedgerInfo | None] = {}
    for name, value in zip(names, store.get_many(paths), strict=True):
        try:
            found[name] = None if value is None else read_managed_ledger(name, value)
        except FormatError:
            found[name] = None
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
