"""A topic whose nodes are gone and that no trash has, put together from the ledgers whose custom metadata names it.

What comes of it is restored as a generation of the trash is. It is less than that: nothing but a node has properties,
policies and the position of a subscription that was at rest. Of a topic that is there ledgers are older than its node,
of an earlier life, or left its list: brokers list a ledger before they write to it, and trim a list from its beginning.
What a restore has put on the list is found again if that was killed.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from bookwarden.clusters.bookkeeper.bookies.last_entries import DecodedEntries
from bookwarden.clusters.bookkeeper.catalog import ReadsLedgers
from bookwarden.clusters.bookkeeper.listing import read_every_ledger
from bookwarden.clusters.pulsar.metadata.paths import cursor_path, managed_ledger_path, schema_path
from bookwarden.errors import FormatError, NotFoundError, RefusedError
from bookwarden.ledgers.custom_metadata import OWNER_KEY, identify_holder, is_unfinished
from bookwarden.ledgers.kinds import BucketHolder, CursorHolder, Holder, ManagedLedgerHolder, SchemaHolder
from bookwarden.ledgers.metadata import StoredLedger, UnreadableLedger
from bookwarden.ledgers.names import TopicName, decode_local_name
from bookwarden.ledgers.trash import FormerNode, Generation, TrashRecord
from bookwarden.metastore.interface import MetadataStore, Versioned
from bookwarden.trash.generations import FROM_LEDGERS, TrashedGeneration
from bookwarden.trash.plan import NotRestored
from bookwarden.wire.cursor import cursor_of_entry
from bookwarden.wire.managed_ledger import ledger_entries, new_ledger_entry, with_ledger_entries
from bookwarden.wire.schema_locator import locator_of_entry

_AT_ONCE: Final = 5_000
_SAY_EVERY: Final = 250_000
_ALWAYS_LOST: Final = (
    NotRestored("properties", "those of the topic and of its subscriptions are in no ledger"),
    NotRestored(
        "other subscriptions",
        "one that had acknowledged nothing since its topic was loaded has its position in its node alone, and its name "
        "in no ledger",
    ),
    NotRestored(
        "what was removed before",
        "a subscription that was removed, or messages that were trimmed, come back if their ledgers are still there",
    ),
)


@dataclass(frozen=True, slots=True)
class RebuiltTopic:
    """A topic, or a partition, as its ledgers tell."""

    trashed: TrashedGeneration  #: As if the trash had it, with no record of it.
    lost: tuple[NotRestored, ...]  #: Everything that ledgers do not tell, or cannot.


@dataclass
class _Ledgers:
    """The ledgers of one topic."""

    data: dict[int, StoredLedger] = field(default_factory=dict)
    cursors: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    delayed: int = 0
    doubts: list[NotRestored] = field(default_factory=list)


class FromLedgers:
    """Finds topics by their ledgers.

    ``places`` returns store and ledgers root of each bookie cluster, and ``owner`` the owner mark of this Pulsar
    cluster's ledgers, None where they have none.
    """

    def __init__(
        self,
        store: MetadataStore,
        places: Callable[[], Iterable[tuple[MetadataStore, str]]],
        owner: Callable[[], str | None],
        catalog: ReadsLedgers,
        last_entries: DecodedEntries,
        say: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._store = store
        self._places = places
        self._owner = owner
        self._catalog = catalog
        self._last_entries = last_entries
        self._say = say

    def find(self, name: TopicName, *, under_live: bool, under_way: Collection[str]) -> list[RebuiltTopic]:
        """Put together the topic, or each of its partitions, by name; all ledgers' metadata is read for it.

        A topic that is there is left out unless it is ``under_live``, or a restore of it is ``under_way``. Raises
        NotFoundError where no ledger names it, RefusedError where something may not be put together, FormatError and
        BookieError where a ledger's entry cannot be read.
        """
        ids = self._ids_of(name)
        readings = list(self._readings(sorted(ids)))
        topics: dict[str, list[tuple[Holder, StoredLedger]]] = defaultdict(list)
        schemas: list[int] = []
        for reading in readings:
            holder = ids[reading.ledger_id]
            if isinstance(holder, SchemaHolder):
                schemas.append(reading.ledger_id)
            else:
                topics[holder.topic].append((holder, reading))
        nodes = dict(zip(topics, self._store.get_many([managed_ledger_path(topic) for topic in topics]), strict=True))
        wanted = [topic for topic in topics if nodes[topic] is None or under_live or topic in under_way]
        if topics and not wanted:
            raise RefusedError(
                f"{name} is there: --under-live puts the ledgers of an earlier life under it, and those that left its "
                "list"
            )
        schema = self._schema(name, schemas) if wanted else (None, ())
        found: list[RebuiltTopic] = []
        doubts: list[NotRestored] = []
        for topic in sorted(wanted, key=_partition):
            node = nodes[topic]
            former = _former(topics[topic], node, under_live=under_live, is_under_way=topic in under_way)
            doubts += former.doubts
            if node is not None and topic not in under_way:
                named = former.data.keys() & ledger_entries(node.value).keys()
                if named:
                    raise RefusedError(
                        f"{TopicName.of_managed_ledger(topic)} has ledger {min(named)}, which is older than the topic: "
                        "its node is a copy, and does not tell which ledgers are of an earlier life"
                    )
            if former.data:
                found.append(self._rebuilt(topic, former, *schema))
        if not found and doubts:
            raise RefusedError("; ".join(f"{one.what}: {one.why}" for one in doubts))
        if not found:
            raise NotFoundError(f"BookKeeper has no ledger of an earlier life of {name}, and none that left its list")
        return found

    def _ids_of(self, name: TopicName) -> dict[int, Holder]:
        """Return the ledgers that name the topic, one of its partitions, or its schema."""
        own, prefix, base = name.managed_ledger, f"{name.managed_ledger}-partition-", name.base.managed_ledger
        owner = self._owner()
        found: dict[int, Holder] = {}
        number = 0
        for store, root in self._places():
            for ledger_id, metadata in read_every_ledger(store, root):
                number += 1
                if number % _SAY_EVERY == 0:
                    self._say(f"{number:,} ledgers read")
                holder = None if metadata is None else identify_holder(metadata.custom)
                if metadata is None or holder is None or is_unfinished(metadata):
                    continue
                if isinstance(holder, SchemaHolder):
                    is_own = holder.topic == base
                else:
                    is_own = holder.topic == own or (
                        holder.topic.startswith(prefix) and holder.topic[len(prefix) :].isdecimal()
                    )
                mark = metadata.custom.get(OWNER_KEY)
                if is_own and (mark is None or owner is None or mark == owner.encode()):
                    found[ledger_id] = holder
        return found

    def _readings(self, ids: list[int]) -> Iterator[StoredLedger]:
        for at in range(0, len(ids), _AT_ONCE):
            for reading in self._catalog.read_many(ids[at : at + _AT_ONCE]):
                if isinstance(reading, UnreadableLedger):
                    raise RefusedError(f"the metadata of ledger {reading.ledger_id} cannot be read: {reading.reason}")
                # One that was deleted meanwhile is none of it.
                if isinstance(reading, StoredLedger):
                    yield reading

    def _rebuilt(
        self, topic: str, ledgers: _Ledgers, schema: TrashRecord | None, lost: tuple[NotRestored, ...]
    ) -> RebuiltTopic:
        entries = {
            ledger_id: entry
            for ledger_id, reading in sorted(ledgers.data.items())
            if (entry := _entry(reading)) is not None
        }
        cursors, lost_cursors = self._cursors(topic, ledgers.cursors)
        delayed = [NotRestored("the index of delayed messages", "brokers make it again")] if ledgers.delayed else []
        value = with_ledger_entries(b"", entries)
        record = _record(topic, value, data=tuple(sorted(ledgers.data)))
        trashed = TrashedGeneration(
            Generation(topic, FROM_LEDGERS), found=(), topic=record, cursors=cursors, schema=schema
        )
        return RebuiltTopic(trashed, (*ledgers.doubts, *lost_cursors, *delayed, *lost, *_ALWAYS_LOST))

    def _cursors(
        self, topic: str, ledgers: Mapping[str, Collection[int]]
    ) -> tuple[dict[str, TrashRecord], list[NotRestored]]:
        """Return the nodes of cursors whose ledgers have a position, and those that have none."""
        path = managed_ledger_path(topic)
        topic_node, *nodes = self._store.get_many([path, *(cursor_path(topic, cursor) for cursor in sorted(ledgers))])
        found: dict[str, TrashRecord] = {}
        lost: list[NotRestored] = []
        for (cursor, ids), node in zip(sorted(ledgers.items()), nodes, strict=True):
            value = self._newest(ids, cursor_of_entry)
            # Where the topic's node alone was lost, what is in those of its cursors is newer.
            if topic_node is None and node is not None and node.value != value:
                continue
            if value is None:
                lost.append(
                    NotRestored(f"subscription {decode_local_name(cursor)!r}", "no ledger of it has its position")
                )
            else:
                found[cursor] = _record(topic, value, cursor=cursor)
        return found, lost

    def _schema(self, name: TopicName, ids: Collection[int]) -> tuple[TrashRecord | None, tuple[NotRestored, ...]]:
        """Return the schema's node; None where it has none, or another one is there."""
        base = name.base
        node, value = self._store.get(schema_path(base.schema_id)), self._newest(ids, locator_of_entry)
        if not ids or (node is not None and node.value != value):
            return None, ()
        if value is None:
            return None, (NotRestored("schema", "its ledgers have no entry"),)
        return _record(base.managed_ledger, value, schema_id=base.schema_id), ()

    def _newest(self, ids: Collection[int], make: Callable[[bytes, int], bytes]) -> bytes | None:
        """Return what is made of the last entry of the newest of these ledgers that has any."""
        for ledger_id in sorted(ids, reverse=True):
            try:
                entry = self._last_entries.last_entry(ledger_id)
            except NotFoundError:
                continue
            if entry is not None:
                return make(entry, ledger_id)
        return None


def _former(
    ledgers: Iterable[tuple[Holder, StoredLedger]], node: Versioned | None, *, under_live: bool, is_under_way: bool
) -> _Ledgers:
    """Return those that were there before the topic's node was made, and under a live topic those that left its list.

    All where there is no node.
    """
    found = _Ledgers()
    listed = [] if node is None else sorted(ledger_entries(node.value))
    for holder, reading in ledgers:
        # What was copied to another bookie cluster was made before it was there.
        created_ms = min(place.created_ms for place in reading.places)
        is_younger = node is not None and created_ms >= node.created_ms
        # Empty ledgers leave a list anywhere.
        if is_younger and not (under_live and reading.metadata.last_entry_id != -1):
            continue
        if isinstance(holder, ManagedLedgerHolder):
            if is_younger and reading.ledger_id in listed:
                # A restore that was killed has perhaps put it there.
                is_former = is_under_way and reading.metadata.last_entry_id is not None
            else:
                doubt = _doubt(reading, listed) if is_younger else ""
                found.doubts += [NotRestored(f"ledger {reading.ledger_id}", doubt)] if doubt else []
                is_former = not doubt
            if is_former:
                found.data[reading.ledger_id] = reading
        elif is_younger:
            continue
        elif isinstance(holder, CursorHolder):
            found.cursors[holder.cursor].append(reading.ledger_id)
        elif isinstance(holder, BucketHolder):
            found.delayed += 1
    return found


def _doubt(reading: StoredLedger, listed: Sequence[int]) -> str:
    """Return why a ledger of a topic that is there, and not on its list, may not have left it; empty if it has."""
    if reading.metadata.last_entry_id is None:
        return (
            "it is open, and not on the list of the topic that is there: a broker may be about to write it. Have the "
            "topic loaded (`pulsar-admin topics stats`) and run this again"
        )
    if listed and reading.ledger_id > listed[0]:
        return (
            "it is not on the list of the topic that is there, and comes after its first: lists lose ledgers at their "
            f"beginning. `bookwarden ledger explain {reading.ledger_id}`"
        )
    return ""


def _entry(reading: StoredLedger) -> bytes | None:
    """Return the ledger's part of the list; None for a closed one without entries."""
    last = reading.metadata.last_entry_id
    if last is None:
        return new_ledger_entry(reading.ledger_id)
    if last < 0:
        return None
    closed_ms = max(reading.modified_ms, reading.created_ms, 1)
    return new_ledger_entry(reading.ledger_id, last + 1, reading.metadata.length, closed_ms)


def _record(
    topic: str,
    value: bytes,
    *,
    cursor: str | None = None,
    schema_id: str | None = None,
    data: tuple[int, ...] = (),
) -> TrashRecord:
    node = FormerNode(value, version=0, created_ms=FROM_LEDGERS, modified_ms=0)
    now_ms = int(time.time() * 1000)
    return TrashRecord(topic, now_ms, FROM_LEDGERS, cursor, schema_id, data=data, node=node)


def _partition(managed_ledger: str) -> int:
    try:
        return TopicName.of_managed_ledger(managed_ledger).partition or 0
    except FormatError:
        return 0
