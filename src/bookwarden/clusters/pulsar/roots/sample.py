"""A sample of the ledgers that a metadata root names, at a cost that does not grow with the root.

A Pulsar has one BookKeeper, so looking up any of its ledgers identifies it. Few are taken of each topic and namespace,
so that the losses of one are only a part of the sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple, TypeVar

from bookwarden.clusters.pulsar.metadata.managed_ledgers import walk_topic_folders
from bookwarden.clusters.pulsar.metadata.paths import SCHEMAS_ROOT
from bookwarden.clusters.pulsar.references.nodes import (
    CursorNode,
    ManagedLedgerNode,
    ReferenceNode,
    SchemaNode,
    cursor_node,
    managed_ledger_node,
    schema_node,
)
from bookwarden.clusters.pulsar.references.shadows import sources_of
from bookwarden.errors import FormatError, StoreAccessError
from bookwarden.ledgers.kinds import Holder, ManagedLedgerHolder, PlaceKind, SchemaHolder, holders_of_cursor
from bookwarden.ledgers.managed_ledger import CursorInfo, ManagedLedgerInfo, SchemaLocator
from bookwarden.metastore.interface import MetadataStore

# Some hundred ledgers prove as much as a million.
_ENOUGH: Final = 300
_ENOUGH_OF_SCHEMAS: Final = 100
_TOPICS_OF_FOLDER: Final = 50
_LEDGERS_OF_TOPIC: Final = 4
_CURSORS_OF_FOLDER: Final = 20
# Namespaces may be empty, thousands of them.
_MOST_FOLDERS: Final = 2_000

T = TypeVar("T")


class NamedLedger(NamedTuple):
    """A ledger that a node names."""

    ledger_id: int  #: As the node names it.
    holder: Holder  #: The holder of the node; for a shadow topic, its source.
    node: ReferenceNode  #: The node that names it.
    written_ms: int  #: When the node was written, by the store's clock; 0 where that is not known.
    entries: int | None = None  #: Of a closed data ledger; None of others.
    size: int | None = None  #: Bytes of a closed data ledger; None of others.
    is_newest_closed: bool = False  #: The newest closed ledger of its topic, of those that are not offloaded.


class RootSample(NamedTuple):
    """The ledgers of a sample; ``whole`` says that everything was read and understood."""

    ledgers: tuple[NamedLedger, ...]
    whole: bool


def sample_root(store: MetadataStore) -> RootSample:
    """Take some of the ledgers that BookKeeper should have for this root; never older than this call.

    Nodes that may not be read are omitted. Raises StoreError where the store does not answer, or is no Pulsar's.
    """
    store.sync()
    walk = _Walk(store)
    found = list(islice(walk.topics_and_cursors(), _ENOUGH))
    found += islice(walk.schemas(), _ENOUGH_OF_SCHEMAS)
    return RootSample(tuple(found), walk.whole)


class _Walk:
    """A walk through the trees of a root, as far as the caller iterates."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.whole = True

    def topics_and_cursors(self) -> Iterator[NamedLedger]:
        for number, (folder, names) in enumerate(walk_topic_folders(self._store, self._refused)):
            if number >= _MOST_FOLDERS:
                self.whole = False
                return
            topics = [managed_ledger_node(f"{folder}/{name}") for name in _spread(names, _TOPICS_OF_FOLDER)]
            yield from self._named(topics)
            yield from self._named(list(islice(self._cursors(topics), _CURSORS_OF_FOLDER)))

    def schemas(self) -> Iterator[NamedLedger]:
        for number, namespace in enumerate(self._namespaces_of_schemas()):
            if number >= _MOST_FOLDERS:
                self.whole = False
                return
            names = _spread(self._children(f"{SCHEMAS_ROOT}/{namespace}"), _TOPICS_OF_FOLDER)
            yield from self._named([schema_node(f"{namespace}/{name}") for name in names])

    def _namespaces_of_schemas(self) -> Iterator[str]:
        for tenant in self._children(SCHEMAS_ROOT):
            for namespace in self._children(f"{SCHEMAS_ROOT}/{tenant}"):
                yield f"{tenant}/{namespace}"

    def _children(self, path: str) -> list[str]:
        try:
            return self._store.children_of(path)
        except StoreAccessError:
            self.whole = False
            return []

    def _refused(self, _: str, __: StoreAccessError) -> None:
        self.whole = False

    def _cursors(self, topics: Sequence[ManagedLedgerNode]) -> Iterator[CursorNode]:
        for topic in topics:
            for name in self._children(topic.path):
                yield cursor_node(topic.name, name)

    def _named(self, nodes: Sequence[ReferenceNode]) -> Iterator[NamedLedger]:
        try:
            values = self._store.get_many([node.path for node in nodes])
        except StoreAccessError:
            # A refused node hides those that were requested with it; other namespaces prove as much.
            self.whole = False
            return
        for node, value in zip(nodes, values, strict=True):
            if value is None:
                continue
            references = node.read(value, "")
            if references.doubt is not None:
                self.whole = False
            try:
                found = list(_ledgers_of(node, references.info))
            except FormatError:
                self.whole = False
                continue
            for named in found:
                yield named._replace(written_ms=value.modified_ms)


def _ledgers_of(node: ReferenceNode, info: object) -> Iterator[NamedLedger]:
    if isinstance(node, ManagedLedgerNode) and isinstance(info, ManagedLedgerInfo):
        # A shadow topic lists ledgers whose metadata names its source.
        for name in sources_of(node.name, info) or {node.name}:
            yield from _data_ledgers(node, ManagedLedgerHolder(name), info)
    elif isinstance(node, CursorNode) and isinstance(info, CursorInfo):
        for holder in holders_of_cursor(node.managed_ledger, node.cursor):
            # The compacted ledger in the node is mostly a former one, and gone.
            if PlaceKind.COMPACTED not in holder.places:
                yield from (NamedLedger(ledger_id, holder, node, 0) for ledger_id in holder.ledgers_in(info))
    elif isinstance(node, SchemaNode) and isinstance(info, SchemaLocator):
        for ledger_id in sorted(info.ledger_ids)[-_LEDGERS_OF_TOPIC:]:
            yield NamedLedger(ledger_id, SchemaHolder(node.schema_id), node, 0)


def _data_ledgers(
    node: ManagedLedgerNode, holder: ManagedLedgerHolder, info: ManagedLedgerInfo
) -> Iterator[NamedLedger]:
    there = [ledger for ledger in info.ledgers if ledger.offload is None or not ledger.offload.bookkeeper_deleted]
    newest = max((ledger.ledger_id for ledger in there if ledger.entries and ledger.offload is None), default=None)
    chosen = {ledger.ledger_id for ledger in _spread(there, _LEDGERS_OF_TOPIC)} | {newest}
    for ledger in there:
        if ledger.ledger_id in chosen:
            named = NamedLedger(ledger.ledger_id, holder, node, 0, is_newest_closed=ledger.ledger_id == newest)
            yield named._replace(entries=ledger.entries, size=ledger.size) if ledger.entries else named


def _spread(items: Sequence[T], most: int) -> list[T]:
    """Choose at most `most`, evenly, including the last: of ledgers that is the newest."""
    if len(items) <= most:
        return list(items)
    return [items[(number + 1) * len(items) // most - 1] for number in range(most)]
