"""Everything in the metadata roots that names ledgers, in pieces that can be read side by side.

The nodes are found by walking the trees and never by computing names: managed ledgers with names of the first
version, system topics, and those whose tenant is a broker's address are all there.

They also tell the holders of ledgers whose custom metadata names none, as of ancient brokers.
"""

from __future__ import annotations

import hashlib
import logging
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Final, NamedTuple, TypeVar

from bookwarden.clusters.bookkeeper.bookies.last_entries import LastEntries
from bookwarden.clusters.pulsar.metadata.managed_ledgers import children_unless_refused, walk_topic_folders
from bookwarden.clusters.pulsar.metadata.paths import LOG_ROOTS, MANAGED_LEDGERS_ROOT, SCHEMAS_ROOT
from bookwarden.clusters.pulsar.references.nodes import (
    CursorNode,
    LogNode,
    ManagedLedgerNode,
    ReferenceNode,
    cursor_node,
    managed_ledger_node,
    read_each,
    schema_node,
    was_emptied,
)
from bookwarden.clusters.pulsar.references.rows import copies_of, rows_of
from bookwarden.clusters.pulsar.references.unnamed_use import CompactedNow
from bookwarden.errors import FormatError, StoreAccessError, StoreError, TruncatedListingError
from bookwarden.ledgers.kinds import KINDS, Holder, PlaceKind
from bookwarden.ledgers.listing import ListedCopy, ListedReference
from bookwarden.ledgers.references import (
    Doubt,
    LedgerNamers,
    NodeReferences,
    ReferenceIndex,
    doubt_about_schemas,
    doubt_about_topics,
)
from bookwarden.metastore.interface import MetadataStore, Versioned
from bookwarden.wire.log_nodes import is_allocation, is_segment

logger = logging.getLogger(__name__)
TOPICS: Final = "topics"
SCHEMAS: Final = "schemas"
LOGS: Final = "logs"

# A topic is some ten nodes and rows, each of half a kilobyte.
_TOPICS_IN_PIECE: Final = 5_000
_READ_AT_ONCE: Final = 1_000
# Names of cursors take one request for each topic: the number that is under way at once.
_LISTED_AT_ONCE: Final = 8

_TOPS: Final = {TOPICS: f"{MANAGED_LEDGERS_ROOT}/", SCHEMAS: f"{SCHEMAS_ROOT}/", LOGS: ""}

_NodeT = TypeVar("_NodeT", bound=ReferenceNode)
# Nodes, with their values if these were read already: for all of them or for none.
_Portion = Sequence[tuple[ReferenceNode, Versioned | None]]
_Refused = list[tuple[ReferenceNode, StoreAccessError]]
# Reads topics and their values together; returns for each whether it was read.
ReadsTopics = Callable[[Sequence[ManagedLedgerNode], Sequence[bytes]], Sequence[bool]]
_KINDS: Final = {place.value: kind for kind in KINDS for place in kind.places}
_SHADOW: Final = PlaceKind.SHADOW_TOPIC.value


@dataclass(frozen=True, slots=True)
class ReferencePiece:
    """A namespace's topics or schemas, or a namespace of DistributedLog; picklable."""

    root: str  #: URL of its metadata root.
    kind: str  #: One of TOPICS, SCHEMAS and LOGS.
    name: str  #: Below its kind's tree: ``tenant/namespace/persistent``, ``tenant/namespace``, or the path itself.
    part: int = 0  #: It has the topics whose names hash to this, from 0.
    parts: int = 1  #: 1 for a namespace in one piece.
    problem: str = ""  #: Why its nodes could not be listed, which makes it a mere doubt; "" if they could.

    @property
    def path(self) -> str:
        """The node below which its nodes are."""
        return _TOPS[self.kind] + self.name

    @property
    def namespace(self) -> str:
        """Its namespace; for a piece with a problem, the node that could not be listed."""
        return self.name.rpartition("/")[0] if self.kind == TOPICS and not self.problem else self.name

    def doubt(self, reason: str) -> Doubt:
        """Make the doubt for a piece that cannot be read: about the holders of its namespace."""
        if self.kind == TOPICS:
            return doubt_about_topics(self.namespace, self.path, self.root, reason)
        if self.kind == SCHEMAS:
            return doubt_about_schemas(self.namespace, self.path, self.root, reason)
        return Doubt(self.path, self.root, reason)

    def __str__(self) -> str:
        part = f", part {self.part + 1} of {self.parts}" if self.parts > 1 else ""
        return f"the {self.kind} of {self.namespace}{part} in {self.root}"


class PieceOfReferences(NamedTuple):
    """A piece as it was read.

    ``names`` is how many nodes were read, ``digest`` is digest_of of their paths. These are, without doubts, the paths
    of the rows, and with doubts those of both together.
    """

    rows: list[ListedReference]
    copies: list[ListedCopy]
    doubts: list[Doubt]
    names: int
    digest: str


class PieceOfNodes(NamedTuple):
    """A piece listed by names; ``doubts`` say why the listing is not whole."""

    paths: frozenset[str]
    digest: str
    doubts: tuple[Doubt, ...] = ()


class ReferencePieces:
    """Reads references in pieces; its calls may be made from several processes, each with its own stores.

    ``roots`` are the metadata roots by their URLs. ``entries`` reads the ledgers of compaction cursors, which name
    the compacted ledger in use; without it, each of these is a doubt about the topic's compacted ledgers. Every call
    raises StoreError where a root does not answer; a namespace that the store refuses is a doubt about it.
    """

    def __init__(self, roots: Mapping[str, MetadataStore], entries: LastEntries | None = None) -> None:
        self._roots = dict(roots)
        self._entries = entries

    def pieces(self, besides: Sequence[ReferencePiece] = ()) -> list[ReferencePiece]:
        """Divide the roots into pieces; StoreError if one is no Pulsar's.

        With ``besides``, the pieces of a former call, only namespaces that none of them covers are returned: created
        later, or missing from the former walk.
        """
        known = {(piece.root, piece.path) for piece in besides}
        closed = {(piece.root, f"{piece.path}/") for piece in besides if piece.problem}
        found = [piece for url, store in self._roots.items() for piece in _pieces_of(url, store)]
        return [
            piece
            for piece in found
            if (piece.root, piece.path) not in known
            and not any(piece.root == root and piece.path.startswith(path) for root, path in closed)
        ]

    def read(self, piece: ReferencePiece, topics: ReadsTopics | None = None) -> PieceOfReferences:
        """Read all references of the piece; never older than this call.

        Topics that `topics` reads have no rows: only their nodes are counted.
        """
        return _collected(self._guarded(piece, self._root(piece.root), None, topics), piece)

    def read_all(self) -> Iterator[PieceOfReferences]:
        """Read piece by piece; raises as `pieces` and `read`."""
        for piece in self.pieces():
            yield self.read(piece)

    def nodes(self, piece: ReferencePiece) -> Iterator[tuple[ReferenceNode | None, NodeReferences]]:
        """Read node by node, without those that are gone; a doubt about the whole piece has no node."""
        yield from self._guarded(piece, self._root(piece.root), None)

    def values(
        self, piece: ReferencePiece
    ) -> Iterator[tuple[list[tuple[ReferenceNode, Versioned]], list[tuple[ReferenceNode, StoreAccessError]]]]:
        """Yield all nodes of the piece with their values, some at a time, and those that are refused with the errors.

        A refused topic stands for its cursors as well, and may be among both: then only their names are refused.
        Never older than this call. Raises StoreAccessError and FormatError where the piece itself cannot be listed.
        """
        store, refused = self._root(piece.root), _Refused()
        for portion in _listed(store, piece, refused):
            unread = [node for node, value in portion if value is None]
            read = _values(store, unread, refused) if unread else portion
            yield [(node, value) for node, value in read if value is not None], refused[:]
            refused.clear()
        yield [], refused

    def read_into(self, index: ReferenceIndex) -> None:
        """Add what every node of all roots names, and note each that cannot be read or parsed.

        Raises StoreError where a root does not answer, or is no Pulsar's: then the index is not to be used.
        """
        for piece in self.pieces():
            for _, references in self.nodes(piece):
                index.add_node(references)

    def relist(self, piece: ReferencePiece) -> PieceOfNodes:
        """List the piece by names only; never older than this call."""
        store = self._root(piece.root)
        if piece.problem:
            return PieceOfNodes(frozenset(), digest_of(()), (piece.doubt(piece.problem),))
        try:
            paths = frozenset(node.path for portion in _listed(store, piece) for node, _ in portion)
        except (StoreAccessError, FormatError) as error:
            return PieceOfNodes(frozenset(), digest_of(()), (piece.doubt(str(error)),))
        return PieceOfNodes(paths, digest_of(paths))

    def read_new(
        self, piece: ReferencePiece, first: Collection[str], second: PieceOfNodes, begun_ms: int
    ) -> PieceOfReferences:
        """Read the nodes added to a piece between two listings; ``first``: paths of the first one's rows and doubts.

        A node that is older than ``begun_ms``, in milliseconds since the epoch by the clock of the store, must be in
        both listings: TruncatedListingError otherwise. Nothing is compared where one of them was in doubt as a whole.
        """
        if second.doubts or piece.path in first:
            return PieceOfReferences([], [], list(second.doubts), 0, digest_of(()))
        store = self._root(piece.root)
        known = frozenset(first)
        new = sorted(second.paths - known)
        _check_age(store, piece, "first", new, begun_ms)
        _check_age(store, piece, "second", sorted(known - second.paths), begun_ms)
        return _collected(self._guarded(piece, store, [_node_of(piece, path) for path in new]), piece)

    def _root(self, url: str) -> MetadataStore:
        store = self._roots.get(url)
        if store is None:
            raise StoreError(f"{url} is none of the metadata roots in the settings: use those that the scan began with")
        store.sync()
        return store

    def _guarded(
        self,
        piece: ReferencePiece,
        store: MetadataStore,
        nodes: Sequence[ReferenceNode] | None,
        topics: ReadsTopics | None = None,
    ) -> Iterator[tuple[ReferenceNode | None, NodeReferences]]:
        """Read these nodes of the piece, or all its nodes; a refusal becomes a doubt."""
        problem = piece.problem
        if not problem:
            try:
                portions = _listed(store, piece) if nodes is None else _portions(nodes)
                yield from self._read(piece, store, portions, topics)
            except (StoreAccessError, FormatError) as error:
                problem = str(error)
        if problem:
            yield None, NodeReferences(piece.path, piece.root, doubt=piece.doubt(problem))

    def _read(
        self, piece: ReferencePiece, store: MetadataStore, portions: Iterable[_Portion], topics: ReadsTopics | None
    ) -> Iterator[tuple[ReferenceNode, NodeReferences]]:
        compacted = CompactedNow(self._entries)
        for portion in portions:
            unread = [node for node, value in portion if value is None]
            read = _values(store, unread) if unread else portion
            found = [(node, value) for node, value in read if value is not None]
            taken = _read_together(found, topics) if topics is not None else frozenset[str]()
            for node, value in found:
                if node.path in taken:
                    yield node, NodeReferences(node.path, piece.root)
                    continue
                references = node.read(value, piece.root)
                if isinstance(node, CursorNode):
                    references = compacted.complete(node, references)
                yield node, references


def _read_together(nodes: Sequence[tuple[ReferenceNode, Versioned]], read: ReadsTopics) -> frozenset[str]:
    """Read the topics together; return the paths of those that were read."""
    topics = [(node, found) for node, found in nodes if isinstance(node, ManagedLedgerNode) and not was_emptied(found)]
    taken = read([node for node, _ in topics], [found.value for _, found in topics])
    return frozenset(node.path for (node, _), was_taken in zip(topics, taken, strict=True) if was_taken)


def _pieces_of(url: str, store: MetadataStore) -> Iterator[ReferencePiece]:
    store.sync()
    problems: dict[str, str] = {}
    for folder, topics in walk_topic_folders(store, lambda name, error: problems.update({name: str(error)})):
        if folder not in problems:
            parts = max(1, -(-len(topics) // _TOPICS_IN_PIECE))
            yield from (ReferencePiece(url, TOPICS, folder, part, parts) for part in range(parts))
    yield from (ReferencePiece(url, TOPICS, name, problem=problem) for name, problem in problems.items())
    yield from _pieces_of_schemas(url, store)
    yield from (ReferencePiece(url, LOGS, path) for path in LOG_ROOTS)


def _pieces_of_schemas(url: str, store: MetadataStore) -> Iterator[ReferencePiece]:
    problems: dict[str, str] = {}
    for tenant in store.children_of(SCHEMAS_ROOT):
        namespaces = children_unless_refused(
            store, SCHEMAS_ROOT, tenant, lambda name, error: problems.update({name: str(error)})
        )
        yield from (ReferencePiece(url, SCHEMAS, f"{tenant}/{namespace}") for namespace in namespaces)
    yield from (ReferencePiece(url, SCHEMAS, name, problem=problem) for name, problem in problems.items())


def _listed(store: MetadataStore, piece: ReferencePiece, refused: _Refused | None = None) -> Iterator[_Portion]:
    """Yield all nodes of a piece; without ``refused``, to which they are added, one that is refused is an error."""
    if piece.kind == LOGS:
        yield from _logs(store, piece.name)
        return
    names = _divided(tuple(store.children_of(piece.path)), piece.parts)[piece.part]
    if piece.kind == SCHEMAS:
        yield from _portions([schema_node(f"{piece.name}/{name}") for name in names])
        return
    for portion in _portions([managed_ledger_node(f"{piece.name}/{name}") for name in names]):
        topics = _values(store, [topic for topic, _ in portion], refused)
        yield topics
        # Most stores tell with the value that a topic has no cursors, which saves a request.
        yield from _portions(_cursors(store, [topic for topic, value in topics if value.children != 0], refused))


# The parts of a large namespace are read one after another, and each is listed with all of its names.
@lru_cache(maxsize=1)
def _divided(names: tuple[str, ...], parts: int) -> list[list[str]]:
    """Divide the last parts of topics' names among a number of pieces."""
    found: list[list[str]] = [[] for _ in range(parts)]
    for name in names:
        found[zlib.crc32(name.encode()) % parts].append(name)
    return found


def _cursors(store: MetadataStore, topics: Sequence[ManagedLedgerNode], refused: _Refused | None) -> list[CursorNode]:
    def names_of(topic: ManagedLedgerNode) -> Sequence[str]:
        try:
            return store.children_of(topic.path)
        except StoreAccessError as error:
            if refused is None:
                raise
            refused.append((topic, error))
            return ()

    if store.answers_at_once:
        listed = [names_of(topic) for topic in topics]
    else:
        with ThreadPoolExecutor(_LISTED_AT_ONCE, thread_name_prefix="cursors") as pool:
            listed = list(pool.map(names_of, topics))
    return [cursor_node(topic.name, name) for topic, names in zip(topics, listed, strict=True) for name in names]


def _logs(store: MetadataStore, path: str) -> Iterator[_Portion]:
    """Walk a namespace of DistributedLog."""
    children = [f"{path}/{name}" for name in store.children_of(path)]
    yield from _portions([LogNode(child) for child in children if is_segment(child) or is_allocation(child)])
    for child in children:
        yield from _logs(store, child)


def _portions(nodes: Sequence[_NodeT]) -> Iterator[list[tuple[_NodeT, None]]]:
    for at in range(0, len(nodes), _READ_AT_ONCE):
        yield [(node, None) for node in nodes[at : at + _READ_AT_ONCE]]


def _values(
    store: MetadataStore, nodes: Sequence[_NodeT], refused: _Refused | None = None
) -> list[tuple[_NodeT, Versioned]]:
    """Read the nodes, without those that vanished since they were listed; those refused as in `_listed`."""
    paths = [node.path for node in nodes]
    if refused is None:
        return [(node, value) for node, value in zip(nodes, store.get_many(paths), strict=True) if value is not None]
    read = list(zip(nodes, read_each(store, paths), strict=True))
    refused += [(node, value) for node, value in read if isinstance(value, StoreAccessError)]
    return [(node, value) for node, value in read if isinstance(value, Versioned)]


def _node_of(piece: ReferencePiece, path: str) -> ReferenceNode:
    name = path[len(_TOPS[piece.kind]) :]
    if piece.kind == LOGS:
        return LogNode(path)
    if piece.kind == SCHEMAS:
        return schema_node(name)
    topic, _, cursor = name[len(piece.name) + 1 :].partition("/")
    return cursor_node(f"{piece.name}/{topic}", cursor) if cursor else managed_ledger_node(name)


def _check_age(store: MetadataStore, piece: ReferencePiece, listing: str, paths: Sequence[str], begun_ms: int) -> None:
    found = zip(paths, store.get_many(paths), strict=True)
    old = [path for path, value in found if value is not None and value.created_ms < begun_ms]
    if old:
        raise TruncatedListingError(
            f"the {listing} listing of {piece} lacks {len(old):,} nodes that were there before the scan, such as "
            f"{old[0]}: the store gave a part of its nodes for all of them; make no plan of it, and look at its "
            "servers' logs"
        )


def _collected(
    nodes: Iterable[tuple[ReferenceNode | None, NodeReferences]], piece: ReferencePiece
) -> PieceOfReferences:
    rows: list[ListedReference] = []
    copies: list[ListedCopy] = []
    doubts: list[Doubt] = []
    paths = []
    for node, references in nodes:
        if references.doubt is not None:
            doubts.append(references.doubt)
        if node is not None:
            paths.append(node.path)
            rows += rows_of(node, references)
            copies += copies_of(node, references)
    return PieceOfReferences(rows, copies, doubts, len(paths), digest_of(paths))


def digest_of(paths: Iterable[str]) -> str:
    """Compute sha256, as hexadecimal digits, over the sorted paths, each followed by a zero byte."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(path.encode() + b"\0")
    return digest.hexdigest()


class NamedHolders:
    """One look at everything that names ledgers, taken when the first holder is asked for; for one thread.

    ``read`` reads all references again.
    """

    def __init__(self, read: Callable[[], Iterable[PieceOfReferences]]) -> None:
        self._read = read
        self._namers: LedgerNamers[Holder | None] | None = None

    def holder_of(self, ledger_id: int) -> Holder | None:
        """Return the one holder that names the ledger; None where none does, several do, or that is in doubt.

        It may no longer name the ledger. Raises StoreError where a metadata root does not answer.
        """
        if self._namers is None:
            self._namers = self._look()
        found = set(self._namers.of(ledger_id))
        return found.pop() if len(found) == 1 else None

    def _look(self) -> LedgerNamers[Holder | None]:
        namers = LedgerNamers[Holder | None]()
        doubts = 0
        for piece in self._read():
            doubts += len(piece.doubts)
            # Of a shadow topic's list the source is the holder. The rows of a node come together.
            rows = (row for row in piece.rows if row.place != _SHADOW)
            for place, of_place in groupby(rows, lambda row: (row.place, row.holder, row.gone)):
                namers.add(_holder_in(*place), [row.ledger_id for row in of_place if row.ledger_id is not None])
        if doubts:
            logger.warning("%d nodes that may name ledgers cannot be read: no holder is taken from nodes", doubts)
            return LedgerNamers()
        return namers


def _holder_in(place: str, text: str, gone: bool) -> Holder | None:
    """Return the holder that the place belongs to; None for a log of Functions, and where the ledger may be gone."""
    kind = _KINDS.get(place)
    return None if kind is None or gone else kind.of_text(text)
