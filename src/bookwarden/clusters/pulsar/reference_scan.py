"""Everything in the metadata roots that names ledgers, read node by node into an index.

The nodes are found by walking the trees and never by computing names: managed ledgers with names of the first
version, system topics, and those whose tenant is a broker's address are all there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from bookwarden.clusters.pulsar.managed_ledger_names import children_of, walk_managed_ledgers
from bookwarden.clusters.pulsar.metadata_paths import LOG_ROOTS, SCHEMAS_ROOT, managed_ledger_path, schema_path
from bookwarden.clusters.pulsar.unnamed_use import ReadsLastEntries
from bookwarden.errors import BookwardenError, FormatError
from bookwarden.ledgers.holders import CompactedHolder, SchemaHolder
from bookwarden.ledgers.managed_ledger import COMPACTION_CURSOR, CursorInfo
from bookwarden.ledgers.references import (
    Doubt,
    Place,
    PlaceKind,
    ReferenceIndex,
    doubt_about_cursor,
    doubt_about_managed_ledger,
    named_by_cursor,
    named_by_managed_ledger,
    named_by_schema,
)
from bookwarden.metastore.interface import MetadataStore, Versioned
from bookwarden.wire.cursor import decode_cursor, decode_position_info
from bookwarden.wire.log_nodes import decode_allocation, decode_segment, is_allocation, is_segment
from bookwarden.wire.managed_ledger import decode_managed_ledger
from bookwarden.wire.schema_locator import decode_schema_locator


class ReferenceScan:
    """Reads all references of all metadata roots, which are given by their URLs.

    ``entries`` reads the ledgers of compaction cursors, in which the compacted ledger of now stands; without it, each
    of these is a doubt about the topic's compacted ledgers.
    """

    def __init__(self, roots: Mapping[str, MetadataStore], entries: ReadsLastEntries | None = None) -> None:
        self._roots = dict(roots)
        self._entries = entries

    def read_into(self, index: ReferenceIndex) -> None:
        """Add what every node names, and note each that cannot be parsed; one request per topic and per namespace.

        Raises StoreError where a root does not answer, or is no Pulsar's: then the index is not to be used.
        """
        for url, store in self._roots.items():
            store.sync()
            _Root(url, store, index, self._entries).read()


class _Root:
    """The scan of one metadata root."""

    def __init__(self, url: str, store: MetadataStore, index: ReferenceIndex, entries: ReadsLastEntries | None) -> None:
        self._url = url
        self._store = store
        self._index = index
        self._entries = entries

    def read(self) -> None:
        for names in walk_managed_ledgers(self._store):
            self._managed_ledgers(names)
        for schema_ids in self._walk_schemas():
            self._schemas(schema_ids)
        for log_root in LOG_ROOTS:
            self._logs(log_root)

    def _managed_ledgers(self, names: Sequence[str]) -> None:
        for name, path, node in self._nodes(names, managed_ledger_path):
            try:
                for place, ledger_ids in named_by_managed_ledger(
                    name, decode_managed_ledger(node.value), path, self._url
                ):
                    self._index.add(place, ledger_ids)
            except FormatError as error:
                self._index.note(doubt_about_managed_ledger(path, self._url, str(error)))
            self._cursors(name)

    def _cursors(self, managed_ledger: str) -> None:
        parent = managed_ledger_path(managed_ledger)
        for cursor, path, node in self._nodes(children_of(self._store, parent), lambda name: f"{parent}/{name}"):
            try:
                info = decode_cursor(node.value)
            except FormatError as error:
                self._index.note(doubt_about_cursor(managed_ledger, cursor, path, self._url, str(error)))
                continue
            for place, ledger_ids in named_by_cursor(managed_ledger, cursor, info, path, self._url):
                self._index.add(place, ledger_ids)
            if cursor == COMPACTION_CURSOR:
                self._compacted_now(managed_ledger, info, path)

    def _compacted_now(self, managed_ledger: str, info: CursorInfo, path: str) -> None:
        if info.cursors_ledger_id is None:
            return
        holder = CompactedHolder(managed_ledger)
        if self._entries is None:
            reason = f"the compacted ledger in use stands in the last entry of ledger {info.cursors_ledger_id}"
            self._index.note(Doubt(path, self._url, reason, (holder,)))
            return
        try:
            entry = self._entries.last_entry(info.cursors_ledger_id)
            compacted = decode_position_info(entry).compacted_ledger_id if entry is not None else None
        except BookwardenError as error:
            reason = f"the last entry of ledger {info.cursors_ledger_id} cannot be read: {error}"
            self._index.note(Doubt(path, self._url, reason, (holder,)))
            return
        if compacted is not None:
            self._index.add(Place(PlaceKind.COMPACTED_NOW, str(holder), path, self._url), (compacted,))

    def _walk_schemas(self) -> Iterator[list[str]]:
        for tenant in children_of(self._store, SCHEMAS_ROOT):
            for namespace in children_of(self._store, f"{SCHEMAS_ROOT}/{tenant}"):
                names = children_of(self._store, f"{SCHEMAS_ROOT}/{tenant}/{namespace}")
                yield [f"{tenant}/{namespace}/{name}" for name in names]

    def _schemas(self, schema_ids: Sequence[str]) -> None:
        for schema_id, path, node in self._nodes(schema_ids, schema_path):
            try:
                for place, ledger_ids in named_by_schema(schema_id, decode_schema_locator(node.value), path, self._url):
                    self._index.add(place, ledger_ids)
            except FormatError as error:
                self._index.note(Doubt(path, self._url, str(error), (SchemaHolder(schema_id),)))

    def _logs(self, path: str) -> None:
        """Walk a namespace of DistributedLog; what a log names is referenced, whatever the ledger's metadata says."""
        names = children_of(self._store, path)
        for _, child, node in self._nodes(names, lambda name: f"{path}/{name}"):
            try:
                self._log_node(child, node.value)
            except FormatError as error:
                self._index.note(Doubt(child, self._url, str(error)))
            self._logs(child)

    def _log_node(self, path: str, value: bytes) -> None:
        log = path.rpartition("/")[0].removesuffix("/ledgers")
        if is_segment(path):
            self._index.add(Place(PlaceKind.LOG_SEGMENT, log, path, self._url), (decode_segment(value),))
        elif is_allocation(path):
            allocated = decode_allocation(value)
            if allocated is not None:
                self._index.add(Place(PlaceKind.LOG_ALLOCATION, log, path, self._url), (allocated,))

    def _nodes(self, names: Sequence[str], path_of: Callable[[str], str]) -> Iterator[tuple[str, str, Versioned]]:
        """Read the nodes of these names; one that vanished since it was listed is left out."""
        paths = [path_of(name) for name in names]
        for name, path, node in zip(names, paths, self._store.get_many(paths), strict=True):
            if node is not None:
                yield name, path, node
