"""Topics that list ledgers of others, found by reading all managed ledgers of a metadata root from time to time.

A shadow topic's node lists the ledgers of its source, and names it by the property PULSAR.SHADOW_SOURCE
(ManagedLedgerConfig of Pulsar 4.0). Nothing at the source's node names its shadows. A topic into which ledgers were
rescued does not name their former topic, so the topics that list each ledger are kept too: 12 bytes a ledger, and the
topic's name once.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from bookwarden.clusters.pulsar.metadata.managed_ledgers import walk_managed_ledgers
from bookwarden.clusters.pulsar.metadata.paths import managed_ledger_path
from bookwarden.clusters.pulsar.references.no_shadow import NodeContent, NoShadow, NoShadowRecords
from bookwarden.clusters.pulsar.references.nodes import read_each, read_managed_ledger
from bookwarden.errors import FormatError, NotFoundError, StoreAccessError
from bookwarden.ledgers.managed_ledger import SHADOW_SOURCE_PROPERTY, ManagedLedgerInfo
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.references import LedgerNamers
from bookwarden.ledgers.shared_doubts import SharedDoubt, unreadable_node
from bookwarden.metastore.interface import MetadataStore

_READ_AT_ONCE = 1000
# Far below a minute, within which the sweep goes on once a node was mended.
_DOUBTS_AGAIN_SECONDS: Final = 5.0


class ShadowDoubt(NamedTuple):
    """A node that cannot be read and may be a shadow of anything, unless a person took it as none."""

    path: str
    reason: str
    content: NodeContent | None = None  #: None where the store refuses to show the node.
    taken: NoShadow | None = None  #: The record by which it is no shadow topic.

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"

    @property
    def managed_ledger(self) -> str:
        """The name that its path is made from."""
        return self.path.removeprefix(managed_ledger_path(""))


class _Listing(NamedTuple):
    """A managed ledger: the names of its sources if it is a shadow, and what it lists."""

    name: str
    sources: Set[str]
    ledger_ids: Collection[int]


@dataclass(frozen=True, slots=True)
class Shadows:
    """The shadows of each source, by names of managed ledgers.

    ``doubts`` are all nodes that cannot be read and may be shadows of anything. ``listed`` has each ledger's topics,
    but for ``mended``: nodes that could not be read then, and were read since.
    """

    by_source: Mapping[str, tuple[str, ...]]
    doubts: tuple[ShadowDoubt, ...] = ()
    listed: LedgerNamers[str] = field(default_factory=LedgerNamers[str])
    mended: Mapping[str, frozenset[int]] = field(default_factory=dict)

    def listing(self, ledger_id: int) -> list[str]:
        """Return the managed ledgers that list the ledger."""
        return [*self.listed.of(ledger_id), *(name for name, ids in self.mended.items() if ledger_id in ids)]

    def readers_of(self, managed_ledger: str, ledger_id: int) -> frozenset[str]:
        """Return the managed ledgers that read this ledger of that one, and those that may."""
        doubtful = (doubt.managed_ledger for doubt in self.doubts)
        shadows = self.by_source.get(managed_ledger, ())
        return frozenset((managed_ledger, *shadows, *self.listing(ledger_id), *doubtful))


class ShadowTopics:
    """Finds the shadows of one metadata root, and keeps them for ``refresh`` seconds. Thread-safe.

    Nodes that cannot be read are read again after five seconds, those taken as no shadow topic each time. Without
    ``lists`` it does not keep which topics list each ledger.
    """

    def __init__(
        self,
        store: MetadataStore,
        refresh: float,
        *,
        lists: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._refresh = refresh
        self._lists = lists
        self._clock = clock
        self._lock = threading.Lock()
        self._known: Shadows | None = None
        self._read_at = 0.0
        self._doubts_read_at = 0.0

    def known(self) -> Shadows:
        """Return the shadows, read at most ``refresh`` seconds ago; StoreError when they cannot be read now."""
        with self._lock:
            begun = self._clock()
            if self._known is None or begun - self._read_at >= self._refresh:
                self._known = read_shadows(self._store, lists=self._lists)
                self._read_at = self._doubts_read_at = begun
            elif self._known.doubts:
                due = begun - self._doubts_read_at >= _DOUBTS_AGAIN_SECONDS
                taken = [doubt for doubt in self._known.doubts if doubt.taken is not None]
                others = [doubt for doubt in self._known.doubts if doubt.taken is None]
                # As long as one of these is left the others need not be known.
                again = [*taken, *others[:_READ_AT_ONCE]] if due else taken
                if again:
                    self._known = read_doubts_again(self._store, self._known, again, lists=self._lists)
                if due:
                    self._doubts_read_at = begun
            return self._known


class SharedDoubtSearch:
    """Finds the doubts that concern very many marks: in the metadata roots, and ``of_ids``."""

    def __init__(self, roots: Sequence[ShadowTopics], of_ids: Callable[[], SharedDoubt | None]) -> None:
        self._roots = roots
        self._of_ids = of_ids

    def find(self) -> list[SharedDoubt]:
        """Find them; this reads all managed ledgers, as seldom as the sweep does. StoreError if that is not known."""
        doubts = [doubt for root in self._roots for doubt in root.known().doubts if doubt.taken is None]
        found = [unreadable_node(doubt.path, doubt.reason) for doubt in doubts]
        of_ids = self._of_ids()
        return found if of_ids is None else [*found, of_ids]


def sources_of(name: str, info: ManagedLedgerInfo) -> set[str]:
    """Return the managed ledgers that this one may be a shadow of; FormatError where that is not known."""
    source = info.properties.get(SHADOW_SOURCE_PROPERTY)
    if source is None:
        return set()
    topic = TopicName.parse(source)
    sources = {topic.managed_ledger}
    partition = TopicName.of_managed_ledger(name).partition
    if partition is not None and topic.partition is None:
        sources.add(topic.partition_name(partition).managed_ledger)
    return sources


def read_shadows(store: MetadataStore, *, lists: bool = True) -> Shadows:
    """Read all managed ledgers of the root: the shadows, and with ``lists`` the topics that list each ledger."""
    store.sync()
    found: defaultdict[str, list[str]] = defaultdict(list)
    doubts = []
    listed: LedgerNamers[str] = LedgerNamers()
    for names in _portions(walk_managed_ledgers(store)):
        for one in _read(store, names):
            if isinstance(one, ShadowDoubt):
                doubts.append(one)
                continue
            for source in one.sources:
                found[source].append(one.name)
            if lists:
                listed.add(one.name, one.ledger_ids)
    # From here on threads share it.
    listed.sort()
    by_source = {source: tuple(shadows) for source, shadows in found.items()}
    return Shadows(by_source, _with_records(store, doubts), listed)


def read_doubts_again(
    store: MetadataStore, known: Shadows, again: Sequence[ShadowDoubt], *, lists: bool = True
) -> Shadows:
    """Read these nodes once more; what can be read now is no doubt any more, but a shadow if it names its source."""
    store.sync()
    unread: dict[str, ShadowDoubt] = {}
    by_source, mended = dict(known.by_source), dict(known.mended)
    for one in _read(store, [doubt.managed_ledger for doubt in again]):
        if isinstance(one, ShadowDoubt):
            unread[one.path] = one
            continue
        for source in one.sources:
            by_source[source] = (*by_source.get(source, ()), one.name)
        if lists:
            mended[one.name] = frozenset(one.ledger_ids)
    asked = {doubt.path for doubt in again}
    left = [doubt for doubt in known.doubts if doubt.path in unread or doubt.path not in asked]
    doubts = _with_records(store, [unread.get(doubt.path, doubt) for doubt in left])
    return Shadows(by_source, doubts, known.listed, mended)


def read_doubt(store: MetadataStore, path: str) -> ShadowDoubt | None:
    """Read one managed ledger's node; None where it can be read, or is not there.

    Raises NotFoundError for a path at which no managed ledger can be.
    """
    name = path.removeprefix(managed_ledger_path(""))
    parts = name.split("/")
    if managed_ledger_path(name) != path or len(parts) not in (4, 5) or parts[-2] != "persistent" or not all(parts):
        raise NotFoundError(f"{path} is no topic's node, such as {managed_ledger_path('tenant/ns/persistent/topic')}")
    store.sync()
    (doubt,) = _with_records(store, [one for one in _read(store, [name]) if isinstance(one, ShadowDoubt)]) or (None,)
    return doubt


def _read(store: MetadataStore, names: Sequence[str]) -> Iterator[_Listing | ShadowDoubt]:
    """Read these managed ledgers, but for those that are gone."""
    nodes = read_each(store, [managed_ledger_path(name) for name in names])
    for name, node in zip(names, nodes, strict=True):
        if node is None:
            continue
        path = managed_ledger_path(name)
        if isinstance(node, StoreAccessError):
            yield ShadowDoubt(path, str(node))
            continue
        try:
            info = read_managed_ledger(name, node)
            yield _Listing(name, sources_of(name, info), info.ledger_ids)
        except FormatError as error:
            yield ShadowDoubt(path, str(error), NodeContent.of(node))


def _with_records(store: MetadataStore, doubts: Sequence[ShadowDoubt]) -> tuple[ShadowDoubt, ...]:
    """Add to each doubt the record that takes its node, as it is now, as no shadow topic."""
    records = NoShadowRecords(store).read() if doubts else {}

    def taken(doubt: ShadowDoubt) -> NoShadow | None:
        record = records.get(doubt.path)
        return record if record is not None and record.content == doubt.content else None

    return tuple(doubt._replace(taken=taken(doubt)) for doubt in doubts)


def _portions(walk: Iterable[Sequence[str]]) -> Iterator[list[str]]:
    portion: list[str] = []
    for names in walk:
        portion += names
        while len(portion) >= _READ_AT_ONCE:
            yield portion[:_READ_AT_ONCE]
            portion = portion[_READ_AT_ONCE:]
    if portion:
        yield portion
