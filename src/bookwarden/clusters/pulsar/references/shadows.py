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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bookwarden.clusters.pulsar.metadata.managed_ledger_names import walk_managed_ledgers
from bookwarden.clusters.pulsar.metadata.paths import managed_ledger_path
from bookwarden.clusters.pulsar.references.nodes import read_managed_ledger
from bookwarden.clusters.pulsar.references.refused_nodes import read_each
from bookwarden.errors import FormatError, StoreAccessError
from bookwarden.ledgers.managed_ledger import SHADOW_SOURCE_PROPERTY, ManagedLedgerInfo
from bookwarden.ledgers.namers import LedgerNamers
from bookwarden.ledgers.names import TopicName
from bookwarden.metastore.interface import MetadataStore

_READ_AT_ONCE = 1000


class ShadowDoubt(NamedTuple):
    """A node that cannot be read and may be a shadow of anything."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Shadows:
    """The shadows of each source, by names of managed ledgers.

    ``doubts`` are the nodes that cannot be read and may be shadows of anything. ``listed`` has each ledger's topics.
    """

    by_source: Mapping[str, tuple[str, ...]]
    doubts: tuple[ShadowDoubt, ...] = ()
    listed: LedgerNamers[str] = field(default_factory=LedgerNamers[str])

    def readers_of(self, managed_ledger: str, ledger_id: int) -> frozenset[str]:
        """Return the managed ledgers that read this ledger of that one, and those that may."""
        doubtful = (doubt.path.removeprefix(managed_ledger_path("")) for doubt in self.doubts)
        shadows = self.by_source.get(managed_ledger, ())
        return frozenset((managed_ledger, *shadows, *self.listed.of(ledger_id), *doubtful))


class ShadowTopics:
    """Finds the shadows of one metadata root, and keeps them for ``refresh`` seconds. Thread-safe."""

    def __init__(self, store: MetadataStore, refresh: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._refresh = refresh
        self._clock = clock
        self._lock = threading.Lock()
        self._known: Shadows | None = None
        self._read_at = 0.0

    def known(self) -> Shadows:
        """Return the shadows, read at most ``refresh`` seconds ago; StoreError when they cannot be read now."""
        with self._lock:
            if self._known is None or self._clock() - self._read_at >= self._refresh:
                begun = self._clock()
                self._known = read_shadows(self._store)
                self._read_at = begun
            return self._known


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


def read_shadows(store: MetadataStore) -> Shadows:
    """Read all managed ledgers of the root: the shadows, and the topics that list each ledger."""
    store.sync()
    found: defaultdict[str, list[str]] = defaultdict(list)
    doubts = []
    listed: LedgerNamers[str] = LedgerNamers()
    for names in _portions(walk_managed_ledgers(store)):
        nodes = read_each(store, [managed_ledger_path(name) for name in names])
        for name, node in zip(names, nodes, strict=True):
            if isinstance(node, StoreAccessError):
                doubts.append(ShadowDoubt(managed_ledger_path(name), str(node)))
                continue
            if node is None:
                continue
            try:
                info = read_managed_ledger(name, node)
                sources = sources_of(name, info)
            except FormatError as error:
                doubts.append(ShadowDoubt(managed_ledger_path(name), str(error)))
                continue
            for source in sources:
                found[source].append(name)
            listed.add(name, info.ledger_ids)
    # From here on threads share it.
    listed.sort()
    return Shadows({source: tuple(shadows) for source, shadows in found.items()}, tuple(doubts), listed)


def _portions(walk: Iterable[Sequence[str]]) -> Iterator[list[str]]:
    portion: list[str] = []
    for names in walk:
        portion += names
        while len(portion) >= _READ_AT_ONCE:
            yield portion[:_READ_AT_ONCE]
            portion = portion[_READ_AT_ONCE:]
    if portion:
        yield portion
