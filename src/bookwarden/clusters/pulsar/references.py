"""Which ledgers Pulsar's metadata refers to, read from all metadata roots at once.

A failed, partial or unparsable read never means "not referenced": it is UnknownReferences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from bookwarden.clusters.pulsar.metadata_paths import (
    MANAGED_LEDGERS_ROOT,
    cursor_path,
    managed_ledger_path,
    schema_path,
)
from bookwarden.clusters.pulsar.shadows import Shadows, ShadowTopics
from bookwarden.clusters.pulsar.unnamed_use import AsksBrokers, ReadsLastEntries, UnnamedUses
from bookwarden.errors import ConfigError, FormatError, StoreError
from bookwarden.ledgers.holders import (
    BucketHolder,
    CompactedHolder,
    CursorHolder,
    Holder,
    LiveReferences,
    ManagedLedgerHolder,
    References,
    ShadowList,
    UnknownReferences,
)
from bookwarden.ledgers.managed_ledger import COMPACTION_CURSOR, CursorInfo, ManagedLedgerInfo
from bookwarden.metastore.interface import MetadataStore, Versioned
from bookwarden.metastore.paths import validate_path
from bookwarden.wire.cursor import decode_cursor
from bookwarden.wire.managed_ledger import decode_managed_ledger
from bookwarden.wire.schema_locator import decode_schema_locator


class _NamesLedgers(Protocol):
    @property
    def ledger_ids(self) -> frozenset[int]: ...


@dataclass(frozen=True, slots=True)
class _Node:
    """A node that may name a holder's ledgers, and how its value is read."""

    path: str
    decode: Callable[[bytes], _NamesLedgers]


@dataclass(frozen=True, slots=True)
class _Found:
    """What counts of a node's value: the ledgers and offloaded copies that it names, and a cursor's as a whole."""

    ledger_ids: frozenset[int]
    offloaded: frozenset[UUID] = frozenset()
    cursor: CursorInfo | None = None


# What a root says of a node: its value, None if there is no such node, or why it cannot be read.
_Finding = _Found | None | UnknownReferences
# By the paths of nodes, one for each root.
_Findings = Sequence[Mapping[str, _Finding]]


class MetadataReferences:
    """Reads what holders name; a ledger counts as referenced if any of the metadata roots says so.

    ``brokers`` are those of the first root: without them no ledger of a compacted view counts as unreferenced while
    its topic exists. ``entries`` reads the ledgers of open cursors; without it the brokers' word is taken.
    ``shadow_refresh``: look for shadow topics again after so many seconds; 0 looks at none.
    """

    def __init__(
        self,
        stores: Sequence[MetadataStore],
        brokers: AsksBrokers | None = None,
        entries: ReadsLastEntries | None = None,
        *,
        shadow_refresh: float = 0.0,
    ) -> None:
        if not stores:
            raise ConfigError("no metadata store is configured: without one no reference can be read")
        self._stores = tuple(stores)
        self._shadows = [ShadowTopics(store, shadow_refresh) for store in stores] if shadow_refresh > 0 else []
        self._unnamed_uses = UnnamedUses(self._stores, brokers, entries)

    def read(self, holders: Sequence[Holder]) -> Mapping[Holder, References]:
        """Read what each holder names, never older than this call; a doubt about one is UnknownReferences.

        Raises StoreError when a metadata root does not answer, or is no Pulsar's: then nothing is known of anybody.
        """
        references: dict[Holder, References] = {}
        nodes: dict[Holder, tuple[_Node, ...]] = {}
        distinct = list(dict.fromkeys(holders))
        shadows = [root.known() for root in self._shadows] if _any_topic(distinct) else []
        for holder in distinct:
            try:
                nodes[holder] = (*_nodes_of(holder), *_nodes_of_shadows(holder, shadows))
            except FormatError as error:
                references[holder] = UnknownReferences(str(error))
        if not nodes:
            return references
        values = [self._values(store, nodes) for store in self._stores]
        findings = [_decode_all(nodes, found) for found in values]
        references.update((holder, self._references(holder, needed, findings)) for holder, needed in nodes.items())
        return references

    @staticmethod
    def _values(store: MetadataStore, nodes: Mapping[Holder, Sequence[_Node]]) -> dict[str, Versioned | None]:
        paths = list(dict.fromkeys(node.path for needed in nodes.values() for node in needed))
        store.sync()
        # Where there are no managed ledgers at all the URL is wrong, and every ledger would look unreferenced.
        *values, root = store.get_many([*paths, MANAGED_LEDGERS_ROOT])
        if root is None:
            raise StoreError(
                f"a metadata store has no node {MANAGED_LEDGERS_ROOT}, so it is no Pulsar's: "
                "check the metadata store URLs and the path behind their hosts"
            )
        return dict(zip(paths, values, strict=True))

    def _references(self, holder: Holder, needed: Sequence[_Node], findings: _Findings) -> References:
        for root in findings:
            for node in needed:
                finding = root[node.path]
                if isinstance(finding, UnknownReferences):
                    return finding
        if isinstance(holder, ManagedLedgerHolder):
            named = _named(needed[:1], findings)
            return LiveReferences(
                named,
                _exists(needed[0], findings),
                shadows=_shadow_lists(needed[1:], findings),
                offloaded=_offloaded(needed, findings),
            )
        named = _named(needed, findings)
        if isinstance(holder, CompactedHolder):
            return self._unnamed_uses.of_compacted(holder, named, _cursors(needed, findings))
        if isinstance(holder, BucketHolder):
            return self._unnamed_uses.of_buckets(holder, named, _cursors(needed, findings))
        return LiveReferences(named, _exists(needed[0], findings))


def _any_topic(holders: Sequence[Holder]) -> bool:
    return any(isinstance(holder, ManagedLedgerHolder) for holder in holders)


def _nodes_of(holder: Holder) -> tuple[_Node, ...]:
    """Name the nodes that may refer to the holder's ledgers, its own first."""
    nodes: tuple[_Node, ...]
    if isinstance(holder, ManagedLedgerHolder):
        nodes = (_managed_ledger(holder.name),)
    elif isinstance(holder, CursorHolder | BucketHolder):
        nodes = _cursor(holder.managed_ledger, holder.cursor), _managed_ledger(holder.managed_ledger)
    elif isinstance(holder, CompactedHolder):
        nodes = _cursor(holder.managed_ledger, COMPACTION_CURSOR), _managed_ledger(holder.managed_ledger)
    else:
        nodes = (_Node(schema_path(holder.schema_id), decode_schema_locator),)
    for node in nodes:
        validate_path(node.path)
    return nodes


def _nodes_of_shadows(holder: Holder, shadows: Sequence[Shadows]) -> tuple[_Node, ...]:
    """Name the nodes of the shadows of a topic; FormatError where it cannot be told which they are."""
    if not isinstance(holder, ManagedLedgerHolder):
        return ()
    for root in shadows:
        if root.doubts:
            raise FormatError(f"{root.doubts[0]}: it may be a shadow topic, of this topic too")
    names = dict.fromkeys(name for root in shadows for name in root.by_source.get(holder.name, ()))
    return tuple(_managed_ledger(name) for name in names)


def _managed_ledger(name: str) -> _Node:
    return _Node(managed_ledger_path(name), decode_managed_ledger)


def _cursor(managed_ledger: str, cursor: str) -> _Node:
    return _Node(cursor_path(managed_ledger, cursor), decode_cursor)


def _decode_all(nodes: Mapping[Holder, Sequence[_Node]], values: Mapping[str, Versioned | None]) -> dict[str, _Finding]:
    findings: dict[str, _Finding] = {}
    for needed in nodes.values():
        for node in needed:
            if node.path not in findings:
                findings[node.path] = _decode(node, values[node.path])
    return findings


def _decode(node: _Node, found: Versioned | None) -> _Finding:
    if found is None:
        return None
    try:
        info = node.decode(found.value)
    except FormatError as error:
        return UnknownReferences(f"{node.path}: {error}")
    if isinstance(info, ManagedLedgerInfo):
        return _Found(info.ledger_ids, info.offloaded)
    return _Found(info.ledger_ids, cursor=info if isinstance(info, CursorInfo) else None)


def _found(needed: Sequence[_Node], findings: _Findings) -> list[_Found]:
    return [found for root in findings for node in needed if isinstance(found := root[node.path], _Found)]


def _named(needed: Sequence[_Node], findings: _Findings) -> frozenset[int]:
    found = _found(needed, findings)
    # Mostly there is one node, in one root.
    return found[0].ledger_ids if len(found) == 1 else frozenset[int]().union(*(one.ledger_ids for one in found))


def _offloaded(needed: Sequence[_Node], findings: _Findings) -> frozenset[UUID]:
    return frozenset[UUID]().union(*(found.offloaded for found in _found(needed, findings) if found.offloaded))


def _exists(node: _Node, findings: _Findings) -> bool:
    return any(root[node.path] is not None for root in findings)


def _shadow_lists(needed: Sequence[_Node], findings: _Findings) -> tuple[ShadowList, ...]:
    name = len(MANAGED_LEDGERS_ROOT) + 1
    return tuple(ShadowList(node.path[name:], _named([node], findings)) for node in needed)


def _cursors(needed: Sequence[_Node], findings: _Findings) -> dict[int, CursorInfo | None]:
    """The cursor in each root, by its number, that has the topic; None where the topic has no such cursor."""
    cursor, managed_ledger = needed
    found = {}
    for number, root in enumerate(findings):
        if root[managed_ledger.path] is not None:
            finding = root[cursor.path]
            found[number] = finding.cursor if isinstance(finding, _Found) else None
    return found
