"""Index of all references to ledgers in the metadata roots.

It does no I/O: the reader of the nodes adds the references, and notes the places that could not be read or parsed.
Such a doubt about a place that could name a ledger makes the answer "unknown", never "not referenced".
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from bookwarden.ledgers.kinds import (
    KINDS,
    KINDS_OF_CURSORS,
    Holder,
    ManagedLedgerHolder,
    PlaceKind,
    SchemaHolder,
    holders_of_cursor,
)
from bookwarden.ledgers.managed_ledger import (
    SHADOW_SOURCE_PROPERTY,
    CursorInfo,
    ManagedLedgerInfo,
    NodeInfo,
    SchemaLocator,
)

_T = TypeVar("_T")

# The number sorted at a time, since Python's sort needs some 140 bytes for each; every such part costs a lookup.
_PART = 1 << 19
# The number of nodes whose references an index packs at a time.
_UNFILED = 1000
# Looked up once, since this is asked of every cursor.
_IN_CURSORS = tuple((kind.places[0], kind.ledgers_in, kind.of_cursor) for kind in KINDS_OF_CURSORS)
_OF_TOPICS = tuple(kind for kind in KINDS if kind is not SchemaHolder)


class LedgerNamers(Generic[_T]):
    """Namers of ledgers, by ledger id.

    Adding and the first lookup after it change the index: before threads share it, call `sort`.
    """

    def __init__(self, part: int = _PART) -> None:
        self._part = part
        self._ids = array("q")
        self._namers_of = array("i")
        self._namers: list[_T] = []
        self._sorted = 0

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, namer: _T, ledger_ids: Collection[int]) -> None:
        """Note that the namer names these ledgers."""
        if not ledger_ids:
            return
        self._ids.extend(ledger_ids)
        self._namers_of.extend([len(self._namers)] * len(ledger_ids))
        self._namers.append(namer)

    def of(self, ledger_id: int) -> list[_T]:
        """Return the namers of the ledger."""
        self.sort()
        found = []
        for begin in range(0, self._sorted, self._part):
            end = min(begin + self._part, self._sorted)
            index = bisect_left(self._ids, ledger_id, begin, end)
            while index < end and self._ids[index] == ledger_id:
                found.append(self._namers[self._namers_of[index]])
                index += 1
        return found

    def sort(self) -> None:
        """Sort what was added since the last time, part by part in place."""
        count = len(self._ids)
        if self._sorted == count:
            return
        # The last part may have been sorted before it was full.
        for begin in range(self._sorted - self._sorted % self._part, count, self._part):
            ids, namers = self._ids[begin : begin + self._part], self._namers_of[begin : begin + self._part]
            order = sorted(range(len(ids)), key=ids.__getitem__)
            self._ids[begin : begin + self._part] = array("q", map(ids.__getitem__, order))
            self._namers_of[begin : begin + self._part] = array("i", map(namers.__getitem__, order))
        self._sorted = count


class ReferencePlace(NamedTuple):
    """A place that names ledgers: its kind, its holder, its node, and the URL of its metadata root."""

    kind: PlaceKind
    holder: str
    path: str
    root: str


# A place, and the ledgers that it names.
Named = tuple[ReferencePlace, frozenset[int]]


class Reference(NamedTuple):
    """A ledger, and a place that names it."""

    ledger_id: int
    place: ReferencePlace


@dataclass(frozen=True, slots=True)
class HoldersBelow:
    """All holders of these kinds whose names begin with ``prefix``: a tenant, or the path of a namespace."""

    prefix: str
    kinds: tuple[type[Holder], ...]

    def has(self, holder: Holder) -> bool:
        """Return whether the holder is one of them."""
        return isinstance(holder, self.kinds) and f"{holder.topic}/".startswith(f"{self.prefix}/")


class Doubt(NamedTuple):
    """A place that could not be read or parsed."""

    path: str  #: Of the node, or of the node above it.
    root: str  #: URL of the metadata root.
    reason: str  #: For people.
    #: The holders whose ledgers it could name, kinds of holders, or all those of a tenant or namespace; empty: any
    #: ledger.
    about: tuple[Holder | type[Holder] | HoldersBelow, ...] = ()

    def concerns(self, holder: Holder | None) -> bool:
        """Return whether the place could name a ledger of this holder; None stands for an unknown holder."""
        if not self.about or holder is None or holder in self.about or type(holder) in self.about:
            return True
        return any(isinstance(some, HoldersBelow) and some.has(holder) for some in self.about)


class NodeReferences(NamedTuple):
    """The references of one node, the doubt about it, or both."""

    path: str  #: Of the node.
    root: str  #: URL of its metadata root.
    named: tuple[Named, ...] = ()  #: The places in the node, each with its ledgers.
    info: NodeInfo | None = None  #: Its whole value; None where that cannot be parsed, and for nodes of logs.
    doubt: Doubt | None = None  #: None where the node was read and understood.

    @property
    def managed_ledger(self) -> ManagedLedgerInfo | None:
        """The value of a managed ledger's node; None for any other."""
        return self.info if isinstance(self.info, ManagedLedgerInfo) else None

    @property
    def cursor(self) -> CursorInfo | None:
        """The value of a cursor's node; None for any other."""
        return self.info if isinstance(self.info, CursorInfo) else None

    @property
    def ledger_ids(self) -> frozenset[int]:
        """The ledgers that the node names, wherever in it."""
        # Mostly there is one place.
        if len(self.named) == 1:
            return self.named[0][1]
        return frozenset[int]().union(*(ids for _, ids in self.named))


class ReferenceIndex:
    """All references of some metadata roots, or those to some ledgers only, or those of some nodes.

    With ``wanted`` only references to these ledgers are kept. A reference takes 12 bytes, and a place its strings
    once, however many ledgers it names. With ``keep_nodes`` the index can also be asked what a node of it says.
    """

    def __init__(self, wanted: Collection[int] | None = None, *, keep_nodes: bool = False) -> None:
        self._wanted = None if wanted is None else frozenset(wanted)
        self._places: LedgerNamers[ReferencePlace] = LedgerNamers()
        self._doubts: list[Doubt] = []
        self._keeps_nodes = keep_nodes
        self._nodes: defaultdict[str, dict[str, NodeReferences | None]] = defaultdict(dict)
        self._unfiled: list[NodeReferences] = []

    def __len__(self) -> int:
        self._file()
        return len(self._places)

    def add(self, place: ReferencePlace, ledger_ids: Iterable[int]) -> None:
        """Note that the place names these ledgers."""
        self._places.add(
            place, [ledger_id for ledger_id in ledger_ids if self._wanted is None or ledger_id in self._wanted]
        )

    def note(self, doubt: Doubt) -> None:
        """Note a place that could not be read."""
        self._doubts.append(doubt)

    def add_node(self, node: NodeReferences) -> None:
        """Note all that a node says."""
        self._unfiled.append(node)
        if self._keeps_nodes:
            # Kept in any case: a user that asks for nodes seldom asks for ledgers.
            self._nodes[node.root][node.path] = node
        elif len(self._unfiled) >= _UNFILED:
            self._file()

    def note_absent(self, path: str, root: str) -> None:
        """Note that a root has no such node."""
        if self._keeps_nodes:
            self._nodes[root][path] = None

    def at(self, path: str) -> list[NodeReferences | None]:
        """Return what the roots say of the node, in the order of reading; None where one has no such node.

        Raises KeyError if a root was not asked for the node, which is not the same as absent.
        """
        return [nodes[path] for nodes in self._nodes.values()]

    def who_names(self, ledger_id: int) -> tuple[Reference, ...]:
        """Return the references to the ledger."""
        self._file()
        return tuple([Reference(ledger_id, place) for place in self._places.of(ledger_id)])

    @property
    def doubts(self) -> tuple[Doubt, ...]:
        """The places that could not be read."""
        self._file()
        return tuple(self._doubts)

    def doubts_about(self, holder: Holder | None) -> tuple[Doubt, ...]:
        """Return the doubts that concern a ledger of this holder."""
        return tuple(doubt for doubt in self.doubts if doubt.concerns(holder))

    def _file(self) -> None:
        """Move the references of the nodes added since into the compact arrays."""
        unfiled, self._unfiled = self._unfiled, []
        for node in unfiled:
            for place, ledger_ids in node.named:
                self.add(place, ledger_ids)
            if node.doubt is not None:
                self.note(node.doubt)


def named_by_managed_ledger(name: str, info: ManagedLedgerInfo, path: str, root: str) -> tuple[Named, ...]:
    """List what the node of a managed ledger names; a shadow topic's are its source's ledgers."""
    kind = PlaceKind.SHADOW_TOPIC if SHADOW_SOURCE_PROPERTY in info.properties else PlaceKind.MANAGED_LEDGER
    return ((ReferencePlace(kind, name, path, root), info.ledger_ids),)


def named_by_cursor(managed_ledger: str, cursor: str, info: CursorInfo, path: str, root: str) -> tuple[Named, ...]:
    """List what the node of a cursor names: its ledger, its buckets, and the compacted ledger, perhaps of before."""
    named = []
    for kind, ledgers_in, holder_of in _IN_CURSORS:
        ledger_ids = ledgers_in(info)
        if ledger_ids:
            named.append((ReferencePlace(kind, str(holder_of(managed_ledger, cursor)), path, root), ledger_ids))
    return tuple(named)


def named_by_schema(schema_id: str, locator: SchemaLocator, path: str, root: str) -> tuple[Named, ...]:
    """List what the node of a schema names: the ledgers of all its versions."""
    return ((ReferencePlace(PlaceKind.SCHEMA, str(SchemaHolder(schema_id)), path, root), locator.ledger_ids),)


def doubt_about_managed_ledger(path: str, root: str, reason: str) -> Doubt:
    """Make the doubt of a managed ledger's node: it may be a shadow topic, which names the ledgers of another."""
    return Doubt(path, root, reason, (ManagedLedgerHolder,))


def doubt_about_cursor(managed_ledger: str, cursor: str, path: str, root: str, reason: str) -> Doubt:
    """Make the doubt of a cursor's node."""
    return Doubt(path, root, reason, tuple(holders_of_cursor(managed_ledger, cursor)))


def doubt_about_schema(schema_id: str, path: str, root: str, reason: str) -> Doubt:
    """Make the doubt of a schema's node."""
    return Doubt(path, root, reason, (SchemaHolder(schema_id),))


def doubt_about_topics(namespace: str, path: str, root: str, reason: str) -> Doubt:
    """Make the doubt of a namespace, or tenant, whose managed ledgers cannot be read: it concerns its own topics."""
    return Doubt(path, root, reason, (HoldersBelow(namespace, _OF_TOPICS),))


def doubt_about_schemas(namespace: str, path: str, root: str, reason: str) -> Doubt:
    """Make the doubt of a namespace, or tenant, whose schemas cannot be read."""
    return Doubt(path, root, reason, (HoldersBelow(namespace, (SchemaHolder,)),))
