"""Records of the trash by the life of the topic that they are of; pure.

A topic that was deleted and made again has two generations: its node was made at two moments. Ledgers that left a list
say whose. A cursor's node has a time of its own: it is of the newest life that began before it, or of one that a
restore began after it. A schema belongs to the topic's first end after it was dropped.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from bookwarden.errors import FormatError
from bookwarden.ledgers.names import TopicName, decode_local_name
from bookwarden.ledgers.trash import ClearedCursor, Generation, TrashRecord, joined

#: A broker that deletes a topic deletes its cursors before it, one after the other, with shorter pauses than this.
PAUSE_MS: Final = 60_000
#: From when a delete moved a cursor to when its node is deleted: by another broker, where that one was killed.
REPEATED_MS: Final = 600_000
#: Each subscription that acknowledges in transactions has a log, a managed ledger with its topic's name and its own.
_LOG: Final = "__transaction_pending_ack"
#: Of the generation of records that no topic's life is known for.
UNKNOWN_LIFE: Final = 0
#: Of a life that the trash does not have, put together from its ledgers.
FROM_LEDGERS: Final = -1


class FoundRecord(NamedTuple):
    """A record, and the node that it is in."""

    record: TrashRecord
    path: str

    @property
    def broker(self) -> str:
        """The broker that dropped it, HOST:PORT."""
        return self.path.split("/")[-3].rpartition("-")[0]


@dataclass(frozen=True, slots=True)
class TrashedGeneration:
    """Everything that the trash has of one life of a topic."""

    generation: Generation  #: The life: the name of the topic, and when its node was made.
    found: tuple[FoundRecord, ...]  #: All of it as it lies there: in parts, and the same perhaps twice.
    topic: TrashRecord | None = None  #: The topic's own node; None while that life goes on.
    trims: tuple[TrashRecord, ...] = ()  #: Ledgers that left its list, the oldest first.
    #: The cursors that were deleted with the topic, by encoded name.
    cursors: Mapping[str, TrashRecord] = field(default_factory=dict)
    #: Those that were deleted before, or of a topic that lives: the newest of each name.
    removed: Mapping[str, TrashRecord] = field(default_factory=dict)
    schema: TrashRecord | None = None  #: Of the topic; of a partition that of all partitions.
    broken: tuple[TrashRecord, ...] = ()  #: Nodes of which a part is missing.
    #: The same by its own name, where it is to come back under another one.
    origin: TrashedGeneration | None = None

    @property
    def managed_ledger(self) -> str:
        """The topic's name below /managed-ledgers."""
        return self.generation.managed_ledger

    @property
    def records(self) -> tuple[TrashRecord, ...]:
        """All of it but what is broken, each record once."""
        single = [record for record in (self.topic, self.schema) if record is not None]
        return (*single, *self.trims, *self.cursors.values(), *self.removed.values())

    @property
    def dropped_ms(self) -> int:
        """When the topic was deleted, or else the newest of it was dropped, by the broker's clock."""
        if self.topic is not None:
            return self.topic.time_ms
        return max(found.record.time_ms for found in self.found)

    @property
    def brokers(self) -> tuple[str, ...]:
        """The brokers that dropped it."""
        return tuple(sorted({found.broker for found in self.found}))

    @property
    def ledger_ids(self) -> frozenset[int]:
        """All ledgers of it."""
        return frozenset().union(*(found.record.ledger_ids for found in self.found))


def generations(found: Iterable[FoundRecord], live: Mapping[str, int]) -> list[TrashedGeneration]:
    """Return what the trash has by topic and life, the newest life of a topic first.

    ``live`` has when the nodes of topics that there are now were made.
    """
    everything = list(found)
    whole, broken = joined(one.record for one in everything)
    lives = _lives(whole, live)
    of_life: dict[Generation, list[TrashRecord]] = defaultdict(list)
    damaged: dict[Generation, list[TrashRecord]] = defaultdict(list)
    ends = _ends(whole)
    for records, into in ((whole, of_life), (broken, damaged)):
        for record in records:
            for life in _lives_of(record, lives, ends):
                into[life].append(record)
    stored: dict[tuple[object, ...], list[FoundRecord]] = defaultdict(list)
    for one in everything:
        stored[one.record.drop].append(one)
    return [
        _generation(life, of_life[life], damaged[life], stored)
        for life in sorted({*of_life, *damaged}, key=lambda life: (life.managed_ledger, -life.created_ms))
        # Nothing is dropped by a delete that came no further.
        if any(record.position is None for record in (*of_life[life], *damaged[life]))
    ]


def partitioned_node(partitions: Iterable[TrashedGeneration]) -> bytes | None:
    """Return the node of the partitioned topic that these were of, as it was before its delete; None of none.

    Where the trash does not have it, it has as many partitions as these show.
    """
    ended = [one for one in partitions if one.topic is not None]
    numbers = [TopicName.of_managed_ledger(one.managed_ledger).partition for one in ended]
    count = max((number + 1 for number in numbers if number is not None), default=0)
    if not count:
        return None
    kept = [(one.dropped_ms, one.topic.partitioned) for one in ended if one.topic is not None]
    newest = max(((at_ms, value) for at_ms, value in kept if value is not None), default=None)
    try:
        node = {} if newest is None else json.loads(newest[1])
        # Brokers say so before they delete it.
        node = {**node, "deleted": False} if "deleted" in node else dict(node)
        node["partitions"] = max(count, int(node.get("partitions", 0)))
    except (ValueError, TypeError) as error:
        raise FormatError(f"the node of the partitioned topic is not as Pulsar writes it: {error!r}") from error
    return json.dumps(node, separators=(",", ":")).encode()


def is_log(managed_ledger: str) -> bool:
    """Return whether it is a subscription's log of acknowledgements in transactions, which is no topic to clients."""
    return managed_ledger.endswith(_LOG)


def logs_of(topics: Iterable[TrashedGeneration], found: Iterable[TrashedGeneration]) -> list[TrashedGeneration]:
    """Return the logs of these topics' subscriptions that were deleted with them: each is to come back before these."""
    logs = {
        one.managed_ledger: one for one in reversed([*found]) if one.topic is not None and is_log(one.managed_ledger)
    }
    with_topics: list[TrashedGeneration] = []
    for one in topics:
        if one.topic is None:
            continue
        name = TopicName.of_managed_ledger(one.managed_ledger)
        for cursor in one.cursors:
            own = replace(name, local_name=f"{name.local_name}-{decode_local_name(cursor)}{_LOG}")
            log = logs.get(own.managed_ledger)
            if log is not None and abs(log.dropped_ms - one.dropped_ms) <= PAUSE_MS:
                with_topics.append(log)
    return with_topics


def _lives(records: Iterable[TrashRecord], live: Mapping[str, int]) -> dict[str, list[int]]:
    """Return when the lives of each topic began, as far as they are known, the oldest first."""
    begun: dict[str, set[int]] = defaultdict(set)
    for record in records:
        if record.generation is not None:
            begun[record.managed_ledger].add(record.created_ms)
    for managed_ledger, created_ms in live.items():
        begun[managed_ledger].add(created_ms)
    return {managed_ledger: sorted(times) for managed_ledger, times in begun.items()}


def _lives_of(
    record: TrashRecord, lives: Mapping[str, Sequence[int]], ends: Mapping[str, Sequence[tuple[int, Generation]]]
) -> list[Generation]:
    """Return the life that a record is of; that of a schema is of each partition that ended then."""
    if record.generation is not None:
        return [record.generation]
    if record.schema_id is None:
        return [Generation(record.managed_ledger, _life_of_cursor(record, lives, ends))]
    first: dict[str, tuple[int, Generation]] = {}
    for end, life in ends.get(record.managed_ledger, ()):
        # The clocks of brokers differ.
        if end + PAUSE_MS >= record.time_ms:
            first[life.managed_ledger] = min(first.get(life.managed_ledger, (end, life)), (end, life))
    return [life for _, life in first.values()] or [Generation(record.managed_ledger, UNKNOWN_LIFE)]


def _life_of_cursor(
    record: TrashRecord, lives: Mapping[str, Sequence[int]], ends: Mapping[str, Sequence[tuple[int, Generation]]]
) -> int:
    begun = lives.get(record.managed_ledger, ())
    life = max((created for created in begun if created <= record.created_ms), default=UNKNOWN_LIFE)
    found = Generation(record.managed_ledger, life)
    is_over = (found == of and end < record.created_ms for end, of in ends.get(_base(record.managed_ledger), ()))
    if life == UNKNOWN_LIFE or any(is_over):
        # In a store without transactions a restore makes the cursor first, and then its topic.
        return next((created for created in begun if record.created_ms < created <= record.time_ms), life)
    return life


def _ends(records: Iterable[TrashRecord]) -> dict[str, list[tuple[int, Generation]]]:
    """Return when which lives of each topic ended, those of its partitions too."""
    ends: dict[str, list[tuple[int, Generation]]] = defaultdict(list)
    for record in records:
        if record.deletes_topic and record.generation is not None:
            ends[_base(record.managed_ledger)].append((record.time_ms, record.generation))
    return ends


def _base(managed_ledger: str) -> str:
    try:
        return TopicName.of_managed_ledger(managed_ledger).base.managed_ledger
    except FormatError:
        return managed_ledger


def _generation(
    life: Generation,
    records: Sequence[TrashRecord],
    broken: Sequence[TrashRecord],
    stored: Mapping[tuple[object, ...], list[FoundRecord]],
) -> TrashedGeneration:
    topic = max((record for record in records if record.deletes_topic), key=_time, default=None)
    cursors = sorted(_cursors(records), key=_time, reverse=True)
    schemas = [record for record in records if record.schema_id is not None and record.node is not None]
    together = _deleted_with(topic, cursors)
    drops = dict.fromkeys(record.drop for record in (*records, *broken))
    return TrashedGeneration(
        life,
        found=tuple(one for drop in drops for one in stored[drop]),
        topic=topic,
        trims=tuple(sorted((record for record in records if record.entries), key=_time)),
        cursors=_by_name(cursors[:together]),
        removed=_by_name(cursors[together:], cursors[:together]),
        schema=max(schemas, key=_time, default=None),
        broken=tuple(broken),
    )


def _cursors(records: Sequence[TrashRecord]) -> Iterator[TrashRecord]:
    """Yield the deleted cursors; with where they were, those that a delete of their topic moved before."""
    moved = sorted((record for record in records if record.position is not None), key=_time)
    for record in records:
        if record.cursor is None or record.position is not None:
            continue
        # A delete that is repeated finds it at the end.
        before = next((one for one in moved if _moves(one, record)), None)
        if before is None or before.position is None or before.node is None or record.node is None:
            yield record
        else:
            replaced = None if before.node.value == record.node.value else before.node.value
            yield replace(record, cleared=ClearedCursor(before.position, replaced))


def _moves(moved: TrashRecord, deleted: TrashRecord) -> bool:
    is_same = (moved.cursor, moved.created_ms) == (deleted.cursor, deleted.created_ms)
    # The clocks of brokers differ.
    return is_same and -PAUSE_MS <= deleted.time_ms - moved.time_ms <= REPEATED_MS


def _deleted_with(topic: TrashRecord | None, cursors: Sequence[TrashRecord]) -> int:
    """Return how many of the cursors, the latest deleted first, went with the topic."""
    if topic is None:
        return 0
    before = topic.time_ms
    for at, cursor in enumerate(cursors):
        if before - cursor.time_ms > PAUSE_MS:
            return at
        before = min(before, cursor.time_ms)
    return len(cursors)


def _by_name(cursors: Sequence[TrashRecord], besides: Sequence[TrashRecord] = ()) -> dict[str, TrashRecord]:
    """Return the newest of each name, of which there is none among the others."""
    taken = {record.cursor for record in besides}
    named = [(record.cursor, record) for record in reversed(cursors) if record.node is not None]
    return {name: record for name, record in named if name is not None and name not in taken}


def _time(record: TrashRecord) -> int:
    return record.time_ms
