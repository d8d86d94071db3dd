"""The world as it is: clusters, their topics, and what of BookKeeper's ledgers they need; nothing of the product.

Brokers act from memory, so that what they need does not depend on what a bad write left in a node. A topic whose node
was damaged does nothing until its node is repaired: its broker loses the race for each update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

from bookwarden.ledgers.kinds import (
    BucketHolder,
    CompactedHolder,
    CursorHolder,
    Holder,
    ManagedLedgerHolder,
    SchemaHolder,
)
from bookwarden.ledgers.names import TopicName

from . import nodes
from .faults import Clock, Nodes
from .nodes import Cursor, DataLedger

# A broker lists what it made within this time, or never; the settings' grace is longer.
LISTED_WITHIN_S = 20.0


@dataclass
class Ledger:
    """A ledger that BookKeeper has, or had: whose it is by its custom metadata, and its node's value."""

    ledger_id: int
    holder: Holder
    path: str
    raw: bytes
    born_s: float
    has_data: bool = False
    damaged: bool = False


@dataclass
class Copy:
    """An offloaded copy in the object store."""

    managed_ledger: str
    ledger_id: int
    length: int
    data: bool = True
    index: bool = True


@dataclass
class Topic:
    """A topic as its broker has it in memory."""

    name: TopicName
    root: str
    ledgers: list[DataLedger] = field(default_factory=list)
    cursors: dict[str, Cursor] = field(default_factory=dict)
    properties: dict[str, str] = field(default_factory=dict)
    creating: set[int] = field(default_factory=set)
    compacted: int | None = None
    compacting: int | None = None
    in_memory: set[int] = field(default_factory=set)
    damaged: bool = False
    gone: bool = False

    @property
    def managed_ledger(self) -> str:
        """Its managed ledger's name."""
        return self.name.managed_ledger

    @property
    def is_own(self) -> bool:
        """Whether its ledgers are its own; those of a shadow topic are its source's."""
        return "PULSAR.SHADOW_SOURCE" not in self.properties

    @property
    def path(self) -> str:
        """Its node in the ensemble."""
        return f"{self.root}/managed-ledgers/{self.managed_ledger}"

    @property
    def holder(self) -> ManagedLedgerHolder:
        """What its data ledgers belong to."""
        return ManagedLedgerHolder(self.managed_ledger)

    def cursor_path(self, cursor: Cursor) -> str:
        """Name a cursor's node."""
        return f"{self.path}/{cursor.name}"


@dataclass
class Cluster:
    """A Pulsar: its chroot in the ensemble, its topics and schemas by name; ``configured`` if the product knows it."""

    root: str
    configured: bool
    topics: dict[str, Topic] = field(default_factory=dict)
    schemas: dict[str, list[int]] = field(default_factory=dict)
    damaged_schemas: set[str] = field(default_factory=set)

    def schema_path(self, schema_id: str) -> str:
        """Name a schema's node."""
        return f"{self.root}/schemas/{schema_id}"


@dataclass(order=True)
class _Later:
    due: float
    number: int
    action: Callable[[], None] = field(compare=False)


class World:
    """All that is true; ``features`` are what may befall it beyond a cluster's ordinary life.

    ``kept`` are ledgers that an operator put back and has not marked since, ``undone`` all that ever were put back,
    ``again`` the ids that were given more than once.
    """

    def __init__(self, features: frozenset[str] = frozenset()) -> None:
        self.features = features
        self.clock = Clock()
        self.nodes = Nodes(self.clock)
        self.clusters: list[Cluster] = []
        self.ledgers: dict[int, Ledger] = {}
        self.bookies: set[int] = set()
        self.entries: dict[int, bytes] = {}
        self.half_lost: set[int] = set()
        self.copies: dict[UUID, Copy] = {}
        self.kept: set[int] = set()
        self.undone: set[int] = set()
        self.deleted: dict[int, Ledger] = {}
        self.again: set[int] = set()
        self.broker_skew_ms = 0
        self.next_id = 1
        self.largest_id = 0
        self._later: list[_Later] = []
        self._numbers = 0
        self.nodes.write(f"{nodes.LEDGERS_ROOT}/INSTANCEID", b"an-instance")
        self.nodes.write(nodes.COUNTER, b"")
        self.write_counter()

    def add_cluster(self, root: str, *, configured: bool) -> Cluster:
        """Found a Pulsar at this chroot."""
        cluster = Cluster(root, configured)
        for path in ("managed-ledgers", "schemas", "admin/policies/t/ns", "loadbalance/brokers"):
            self.nodes.write(f"{root}/{path}", b"{}")
        self.clusters.append(cluster)
        return cluster

    def topics(self) -> list[Topic]:
        """All topics of all clusters, in the order of their making."""
        return [topic for cluster in self.clusters for topic in cluster.topics.values()]

    # Time.

    def later(self, delay: float, action: Callable[[], None]) -> None:
        """Do something after so many seconds of true time."""
        self._numbers += 1
        self._later.append(_Later(self.clock.now + delay, self._numbers, action))

    def advance(self, seconds: float) -> None:
        """Let true time pass, and do what falls due meanwhile; while the metadata moves, brokers wait."""
        end = self.clock.now + seconds
        while self.nodes.served_by is None:
            due = [later for later in self._later if later.due <= end]
            if not due:
                break
            first = min(due)
            self._later.remove(first)
            self.clock.now = max(self.clock.now, first.due)
            first.action()
        self.clock.now = end

    # Ledgers.

    def make_ledger(self, holder: Holder, entries: int | None) -> int:
        """Create a ledger as a broker does; ``entries`` None leaves it open."""
        while self.nodes.has(nodes.path_of_ledger(self.next_id)):
            self.next_id += 1
        ledger_id = self.next_id
        self.next_id += 1
        if ledger_id <= self.largest_id:
            self.again.add(ledger_id)
        self.largest_id = max(self.largest_id, ledger_id)
        self.write_counter()
        raw = nodes.ledger_metadata(holder, ctime_ms=self.clock.ms + self.broker_skew_ms, entries=entries)
        path = nodes.path_of_ledger(ledger_id)
        self.nodes.create(path, raw, make_parents=True)
        self.ledgers[ledger_id] = Ledger(ledger_id, holder, path, raw, self.clock.now, bool(entries))
        self.bookies.add(ledger_id)
        self.kept.discard(ledger_id)
        self.undone.discard(ledger_id)
        return ledger_id

    def close_ledger(self, ledger_id: int, entries: int) -> None:
        """Close a data ledger, as the broker does when it rolls over."""
        ledger = self.ledgers[ledger_id]
        born_ms = int(ledger.born_s * 1000)
        ledger.raw = nodes.ledger_metadata(ledger.holder, ctime_ms=born_ms, entries=entries)
        ledger.has_data = entries > 0
        if not ledger.damaged:
            self.nodes.write(ledger.path, ledger.raw)

    def drop_ledger(self, ledger_id: int) -> None:
        """Delete a ledger, as the broker does; one that is gone already is as well."""
        ledger = self.ledgers.pop(ledger_id, None)
        if ledger is not None:
            self.nodes.remove(ledger.path)
            self._tell_shadows(ledger_id)
            # The sweep may have it in its journal, which is written before a delete, so an undo can put it back.
            self.undone.discard(ledger_id)
            self.deleted[ledger_id] = ledger
        self.kept.discard(ledger_id)

    def _tell_shadows(self, ledger_id: int) -> None:
        """Let the shadows of a topic forget a ledger that its broker deleted: they are not asked before."""
        for topic in self.topics():
            listed = any(ledger.ledger_id == ledger_id for ledger in topic.ledgers)
            if listed and not topic.is_own:
                topic.ledgers = [ledger for ledger in topic.ledgers if ledger.ledger_id != ledger_id]
                if not topic.damaged:
                    self.write_topic(topic)

    def drop_or_leak(self, ledger_id: int, rng: Random, share: float = 0.5) -> None:
        """Delete a ledger that left the metadata, or crash right before."""
        if rng.random() >= share:
            self.drop_ledger(ledger_id)

    def write_counter(self) -> None:
        """Tell the ensemble which id is next, as BookKeeper's id generator keeps it."""
        self.nodes.number(nodes.COUNTER, self.next_id)

    @property
    def counter_is_behind(self) -> bool:
        """Whether ids come again: a ledger is there with an id that is still to be given."""
        return any(ledger_id >= self.next_id for ledger_id in self.ledgers)

    def note_deletions(self) -> None:
        """Note what the product deleted, none of which was needed."""
        for ledger_id, ledger in list(self.ledgers.items()):
            if not self.nodes.has(ledger.path):
                self.deleted[ledger_id] = self.ledgers.pop(ledger_id)

    def note_restored(self, ledger_ids: Iterable[int]) -> None:
        """Note what the product put back."""
        for ledger_id in sorted(ledger_ids):
            ledger = self.deleted.get(ledger_id)
            if ledger is not None and ledger_id not in self.ledgers and self.nodes.has(ledger.path):
                self.ledgers[ledger_id] = self.deleted.pop(ledger_id)
                # Of an id that was given more than once it may be the former ledger.
                found = self.nodes.get(ledger.path)
                ledger.raw = ledger.raw if found is None else found.value
                self.undone.add(ledger_id)

    def keep(self, ledger_id: int) -> None:
        """Note that an operator was told that a ledger is back."""
        self.note_restored((ledger_id,))
        if ledger_id in self.undone and "undone" in self.features:
            self.kept.add(ledger_id)

    # What must stay.

    def needed(self) -> Iterator[tuple[int, str]]:
        """Name each ledger that BookKeeper must have, and who needs it."""
        yield from self.needed_by_clusters()
        for ledger_id in self.kept:
            yield ledger_id, "an operator put it back"

    def needed_by_clusters(self) -> Iterator[tuple[int, str]]:
        """Name each ledger that a cluster uses, and for what."""
        for cluster in self.clusters:
            for topic in cluster.topics.values():
                yield from self._needed_by(topic)
            for schema_id, versions in cluster.schemas.items():
                for ledger_id in versions:
                    yield ledger_id, f"a version of schema {schema_id} in {cluster.root or '/'}"

    def _needed_by(self, topic: Topic) -> Iterator[tuple[int, str]]:
        name = topic.managed_ledger
        for ledger in topic.ledgers:
            if ledger.offload is None or not ledger.offload.bookkeeper_deleted:
                yield ledger.ledger_id, f"{name} in {topic.root or '/'} reads it"
            elif ledger.ledger_id in self.ledgers and not self._is_whole(ledger.offload.uuid):
                yield ledger.ledger_id, f"{name} has no other whole copy of it"
        for ledger_id in topic.creating:
            yield ledger_id, f"{name} made it and is about to list it"
        for cursor in topic.cursors.values():
            if cursor.ledger_id is not None:
                yield cursor.ledger_id, f"subscription {cursor.name} of {name} is in it"
            for ledger_id in cursor.buckets.values():
                yield ledger_id, f"it is a bucket of {name}/{cursor.name}"
        for ledger_id in topic.in_memory:
            yield ledger_id, f"it is a bucket that the broker of {name} has in memory"
        for ledger_id in (topic.compacted, topic.compacting):
            if ledger_id is not None:
                yield ledger_id, f"it is the compacted view of {name}"

    def _is_whole(self, uuid: UUID) -> bool:
        copy = self.copies.get(uuid)
        return copy is not None and copy.data and copy.index

    def needed_copies(self) -> Iterator[tuple[UUID, str]]:
        """Name each offloaded copy that a topic lists."""
        for topic in self.topics():
            for ledger in topic.ledgers:
                if ledger.offload is not None:
                    yield ledger.offload.uuid, f"{topic.managed_ledger} lists it for ledger {ledger.ledger_id}"

    # Nodes.

    def write_topic(self, topic: Topic) -> None:
        """Write a topic's list as it is in memory."""
        self.nodes.write(topic.path, nodes.managed_ledger(topic.ledgers, topic.properties))

    def write_cursor(self, topic: Topic, cursor: Cursor) -> None:
        """Write a cursor as it is in memory."""
        self.nodes.write(topic.cursor_path(cursor), nodes.cursor_node(cursor))

    def write_schema(self, cluster: Cluster, schema_id: str) -> None:
        """Write a schema's versions."""
        self.nodes.write(cluster.schema_path(schema_id), nodes.schema_locator(cluster.schemas[schema_id]))

    def repair(self) -> None:
        """Write all damaged nodes again as they should be, as an operator does from a backup, and show hidden ones."""
        self.nodes.hidden.clear()
        for topic in self.topics():
            if topic.damaged:
                topic.damaged = False
                if topic.ledgers or not topic.is_own:
                    # One that was just made is as the broker left it: only a cursor of it is damaged. A shadow's list
                    # may have become empty meanwhile.
                    self.write_topic(topic)
                for cursor in topic.cursors.values():
                    self.write_cursor(topic, cursor)
        for cluster in self.clusters:
            for schema_id in sorted(cluster.damaged_schemas & cluster.schemas.keys()):
                self.write_schema(cluster, schema_id)
            cluster.damaged_schemas.clear()
        for ledger in self.ledgers.values():
            if ledger.damaged:
                ledger.damaged = False
                self.nodes.write(ledger.path, ledger.raw)


def holder_of_cursor(topic: Topic, cursor: Cursor) -> CursorHolder:
    """Say what a cursor's ledger belongs to."""
    return CursorHolder(topic.managed_ledger, cursor.name)


def holder_of_bucket(topic: Topic, cursor: Cursor) -> BucketHolder:
    """Say what a bucket belongs to."""
    return BucketHolder(topic.managed_ledger, cursor.name)


def holder_of_compacted(topic: Topic) -> CompactedHolder:
    """Say what a compacted ledger belongs to."""
    return CompactedHolder(topic.managed_ledger)


def holder_of_schema(schema_id: str) -> SchemaHolder:
    """Say what a schema's ledger belongs to."""
    return SchemaHolder(schema_id)
