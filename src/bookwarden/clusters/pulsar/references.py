"""Which ledgers Pulsar's metadata refers to, read from all metadata roots at once.

A failed, partial or unparsable read never means "not referenced": it is UnknownReferences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from bookwarden.clusters.pulsar.metadata_paths import (
    MANAGED_LEDGERS_ROOT,
    cursor_path,
    managed_ledger_path,
    schema_path,
)
from bookwarden.errors import ConfigError, FormatError, StoreError
from bookwarden.ledgers.holders import (
    CursorHolder,
    Holder,
    LiveReferences,
    ManagedLedgerHolder,
    References,
    UnknownReferences,
)
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


class MetadataReferences:
    """Reads what holders name; a ledger counts as referenced if any of the metadata roots says so."""

    def __init__(self, stores: Sequence[MetadataStore]) -> None:
        if not stores:
            raise ConfigError("no metadata store is configured: without one no reference can be read")
        self._stores = tuple(stores)

    def read(self, holders: Sequence[Holder]) -> Mapping[Holder, References]:
        """Read what each holder names, never older than this call; a doubt about one is UnknownReferences.

        Raises StoreError when a metadata root does not answer, or is no Pulsar's: then nothing is known of anybody.
        """
        references: dict[Holder, References] = {}
        nodes: dict[Holder, tuple[_Node, ...]] = {}
        for holder in dict.fromkeys(holders):
            try:
                nodes[holder] = _nodes_of(holder)
            except FormatError as error:
                references[holder] = UnknownReferences(str(error))
        if not nodes:
            return references
        values = [self._values(store, nodes) for store in self._stores]
        findings = [_decode_all(nodes, found) for found in values]
        references.update((holder, _union(needed, findings)) for holder, needed in nodes.items())
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


# What a node says: the ledgers it names, None if there is no such node, or why it cannot be read.
_Finding = frozenset[int] | None | UnknownReferences


def _nodes_of(holder: Holder) -> tuple[_Node, ...]:
    """Name the nodes that may refer to the holder's ledgers, its own first."""
    nodes: tuple[_Node, ...]
    if isinstance(holder, ManagedLedgerHolder):
        nodes = (_Node(managed_ledger_path(holder.name), decode_managed_ledger),)
    elif isinstance(holder, CursorHolder):
        nodes = (
            _Node(cursor_path(holder.managed_ledger, holder.cursor), decode_cursor),
            _Node(managed_ledger_path(holder.managed_ledger), decode_managed_ledger),
        )
    else:
        nodes = (_Node(schema_path(holder.schema_id), decode_schema_locator),)
    for node in nodes:
        validate_path(node.path)
    return nodes


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
        return node.decode(found.value).ledger_ids
    except FormatError as error:
        return UnknownReferences(f"{node.path}: {error}")


def _union(needed: Sequence[_Node], roots: Sequence[Mapping[str, _Finding]]) -> References:
    ledger_ids: set[int] = set()
    for root in roots:
        for node in needed:
            finding = root[node.path]
            if isinstance(finding, UnknownReferences):
                return finding
            ledger_ids.update(finding or ())
    return LiveReferences(frozenset(ledger_ids), any(root[needed[0].path] is not None for root in roots))
