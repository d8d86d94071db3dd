"""Brokers that mark what leaves their metadata, by the metadata store: what each says, their outbox, where they send.

Formats: docs/broker-marks.md, decoded by `wire.broker_marks`. Every call may raise StoreError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

from bookwarden.clusters.pulsar.rest.deletion_topics import DeletionTopics, Provision
from bookwarden.clusters.pulsar.rest.topics import Topics
from bookwarden.errors import FormatError, LostRaceError, NotFoundError
from bookwarden.ledgers.metadata import DeleteResult
from bookwarden.metastore.interface import MetadataStore, Versioned
from bookwarden.wire.broker_marks import (
    DELETION_TOPIC_NODE,
    ENABLED_NODE,
    MARKING_BROKERS,
    OUTBOX_ROOT,
    MarkingBroker,
    MarksEnabled,
    decode_marking_broker,
    decode_marks_enabled,
    encode_deletion_topic,
    encode_marks_enabled,
)

_LIVE_BROKERS: Final = "/loadbalance/brokers"
# A node has at most 64 KiB, a block a thousand nodes.
_NODES_AT_ONCE: Final = 200
_BLOCKS_AT_ONCE: Final = 10


@dataclass(frozen=True, slots=True)
class LiveBroker:
    """A live broker. ``marking`` is None where it does not mark; ``problem`` says so of a node that is no good."""

    name: str  #: HOST:PORT.
    marking: MarkingBroker | None = None
    problem: str = ""
    written_ms: int = 0  #: When its node was last written, by the clock of the store.

    @property
    def marks(self) -> bool:
        """Whether what it drops is in the outbox first."""
        return self.marking is not None and self.marking.enabled


class MarkingBrokers:
    """The live brokers of one metadata store, and whether they are to mark."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def read(self) -> list[LiveBroker]:
        """Return all live brokers, by name, each with what it says; one that only starts, or ends, is among them."""
        self._store.sync()
        found: dict[str, LiveBroker] = {name: LiveBroker(name) for name in self._store.children_of(_LIVE_BROKERS)}
        for folder, node in self._nodes():
            try:
                marking = decode_marking_broker(node.value)
            except FormatError as error:
                name = folder.rpartition("-")[0]
                found[name] = LiveBroker(name, problem=str(error))
                continue
            before = found.get(marking.broker)
            # The node of a former start goes with its session.
            if before is None or before.marking is None or before.marking.started_ms < marking.started_ms:
                found[marking.broker] = LiveBroker(marking.broker, marking, written_ms=node.modified_ms)
        return [found[name] for name in sorted(found)]

    def folders(self) -> list[str]:
        """Return the folder of the outbox of each live broker that has the jar's line, whether or not it marks now."""
        self._store.sync()
        return self._store.children_of(MARKING_BROKERS)

    def has_deletion_topic(self) -> bool:
        """Return whether brokers know the deletion topic; without it they keep all in the outbox."""
        return self._store.get(DELETION_TOPIC_NODE) is not None

    def enabled(self) -> MarksEnabled:
        """Return whether brokers are to mark; FormatError where the node is no good."""
        node = self._store.get(ENABLED_NODE)
        return MarksEnabled(enabled=True) if node is None else decode_marks_enabled(node.value)

    def set_enabled(self, state: MarksEnabled) -> None:
        """Have all brokers mark, or not; they look every few seconds."""
        value = encode_marks_enabled(state)
        node = self._store.get(ENABLED_NODE)
        if node is not None:
            self._store.put(ENABLED_NODE, value, node.version)
            return
        try:
            self._store.create(ENABLED_NODE, value, make_parents=True)
        except LostRaceError as error:
            raise LostRaceError(f"{ENABLED_NODE} was written by another command just now: try again") from error

    def _nodes(self) -> Iterator[tuple[str, Versioned]]:
        names = self._store.children_of(MARKING_BROKERS)
        nodes = self._store.get_many([f"{MARKING_BROKERS}/{name}" for name in names])
        yield from ((name, node) for name, node in zip(names, nodes, strict=True) if node is not None)


@dataclass(frozen=True, slots=True)
class OutboxSize:
    """The size of what waits in an outbox."""

    nodes: int = 0
    size: int = 0  #: In bytes.
    oldest_ms: int | None = None  #: When its oldest node was made, by the store's clock; None where there is none.

    def oldest_s(self, now_s: float) -> float:
        """Return the age of the oldest node, in seconds; 0 where there is none."""
        return 0.0 if self.oldest_ms is None else max(0.0, now_s - self.oldest_ms / 1000)


class OutboxNode(NamedTuple):
    """A node of the outbox as it was read."""

    path: str
    node: Versioned


class Outbox:
    """The outbox of all brokers of one metadata store, or another place with its folders and blocks."""

    def __init__(self, store: MetadataStore, root: str = OUTBOX_ROOT) -> None:
        self._store = store
        self._root = root
        #: By path: bytes, and when it was made.
        self._known: dict[str, tuple[int, int]] = {}

    def size(self) -> OutboxSize:
        """Return the size of all folders; a node is read the first time that it is met, not again."""
        self._store.sync()
        known: dict[str, tuple[int, int]] = {}
        for folder in self.folders():
            for paths in self.paths(folder):
                known |= {path: self._known[path] for path in paths if path in self._known}
                for found in self.nodes([path for path in paths if path not in self._known]):
                    known[found.path] = (len(found.node.value), found.node.created_ms)
        self._known = known
        oldest_ms = min((created for _, created in known.values()), default=None)
        return OutboxSize(len(known), sum(size for size, _ in known.values()), oldest_ms)

    def folders(self) -> list[str]:
        """Return the names of the folders: one for each start of a broker."""
        return self._store.children_of(self._root)

    def read(self, folder: str) -> Iterator[list[OutboxNode]]:
        """Yield the nodes of a folder, some at a time, never older than this call."""
        self._store.sync()
        for paths in self.paths(folder):
            yield self.nodes(paths)

    def copy_below(self, root: str, found: OutboxNode) -> None:
        """Put a node below another root, in a folder of its own: that of its broker is the broker's to write."""
        folder, block, name = found.path[len(self._root) + 1 :].split("/")
        # One that is there is the copy of an earlier call: its value never changes before the node here is deleted.
        with suppress(LostRaceError):
            self._store.create(f"{root}/{folder}-drained/{block}/{name}", found.node.value, make_parents=True)

    def delete(self, nodes: Sequence[OutboxNode]) -> list[str]:
        """Delete nodes as they were read; return the paths of those that may still be there."""
        results = self._store.delete_many([(found.path, found.node.version) for found in nodes])
        gone = (DeleteResult.DELETED, DeleteResult.ABSENT)
        return [found.path for found, result in zip(nodes, results, strict=True) if result not in gone]

    def delete_if_empty(self, folder: str) -> bool:
        """Delete a folder in which no node is left; return whether it is gone. No broker may be using it."""
        root = f"{self._root}/{folder}"
        for path in (*self._blocks(folder), root):
            node = self._store.get(path)
            if node is not None and self.delete([OutboxNode(path, node)]):
                return False
        return True

    def _blocks(self, folder: str) -> list[str]:
        root = f"{self._root}/{folder}"
        return [f"{root}/{block}" for block in sorted(self._store.children_of(root), key=_by_number)]

    def paths(self, folder: str) -> Iterator[list[str]]:
        """Yield the paths of the nodes of a folder, some at a time, by their numbers."""
        blocks = self._blocks(folder)
        for at in range(0, len(blocks), _BLOCKS_AT_ONCE):
            some = blocks[at : at + _BLOCKS_AT_ONCE]
            for block, names in zip(some, self._store.list_many(some), strict=True):
                paths = [f"{block}/{name}" for name in sorted(names, key=_by_number)]
                for start in range(0, len(paths), _NODES_AT_ONCE):
                    yield paths[start : start + _NODES_AT_ONCE]

    def nodes(self, paths: Sequence[str]) -> list[OutboxNode]:
        """Return the nodes of these paths; those that are not there are left out."""
        nodes = self._store.get_many(paths) if paths else []
        return [OutboxNode(path, node) for path, node in zip(paths, nodes, strict=True) if node is not None]


def _by_number(name: str) -> tuple[int, str]:
    """Order names that are numbers: the oldest first."""
    return len(name), name


def publish_deletion_topic(
    store_of: Callable[[], MetadataStore], topics: Topics, wanted: DeletionTopics, *, dry_run: bool = False
) -> Provision:
    """Write the node if it is missing or has another value; ``store_of`` returns Pulsar's own metadata store.

    Raises StoreError, also where another init comes first. Brokers read the node at each send: what is in their
    outboxes goes where it then names.
    """
    try:
        partitions = topics.partition_count(wanted.topic)
    except NotFoundError:
        partitions = wanted.partitions
    value = encode_deletion_topic(
        wanted.topic,
        partitions,
        wanted.schema,
        wanted.subscription,
        retry_topic=wanted.retry_topic,
        dlq_topic=wanted.dlq_topic,
    )
    return Provision("node", DELETION_TOPIC_NODE, provide_deletion_topic_node(store_of(), value, dry_run=dry_run))


def provide_deletion_topic_node(store: MetadataStore, value: bytes, *, dry_run: bool = False) -> str:
    """Write this value, unless the node has it; return the state of the node, as a Provision has it."""
    found = store.get(DELETION_TOPIC_NODE)
    if found is not None and found.value == value:
        return "exists"
    if dry_run:
        return "would create" if found is None else "would replace"
    if found is None:
        store.create(DELETION_TOPIC_NODE, value, make_parents=True)
        return "created"
    store.put(DELETION_TOPIC_NODE, value, found.version)
    return "replaced"
