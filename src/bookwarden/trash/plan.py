"""The writes of a restore, decided from what the trash has and the topic's nodes as they are now; no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from bookwarden.clusters.pulsar.metadata.paths import cursor_path, managed_ledger_path, schema_path
from bookwarden.errors import FormatError, NotFoundError, RefusedError
from bookwarden.ledgers.custom_metadata import HolderChange, custom_metadata_mismatch
from bookwarden.ledgers.kinds import KINDS_OF_CURSORS, CompactedHolder, ManagedLedgerHolder, SchemaHolder
from bookwarden.ledgers.managed_ledger import (
    COMPACTION_CURSOR,
    SHADOW_SOURCE_PROPERTY,
    CursorInfo,
    LedgerInfo,
    Position,
    SchemaLocator,
)
from bookwarden.ledgers.metadata import AbsentLedger, LedgerReading, StoredLedger, UnreadableLedger
from bookwarden.ledgers.names import TopicName, decode_local_name
from bookwarden.ledgers.trash import TrashRecord
from bookwarden.metastore.interface import Versioned, Write
from bookwarden.trash.generations import TrashedGeneration
from bookwarden.wire.cursor import (
    at_position,
    decode_cursor,
    decode_position_info,
    position_entry,
    with_acknowledged,
    without_buckets,
)
from bookwarden.wire.managed_ledger import (
    closed_ledger_entry,
    decode_ledger_entry,
    decode_managed_ledger,
    ledger_entries,
    ledger_entry_of_copy,
    ledger_entry_without_copy,
    with_ledger_entries,
)
from bookwarden.wire.schema_locator import decode_schema_locator

#: The cursor of deduplication has the last sequence id of each producer: those of the live topic are the newer ones.
_DEDUPLICATION: Final = "pulsar.dedup"
_KEPT_AS_THEY_ARE: Final = frozenset({COMPACTION_CURSOR, _DEDUPLICATION})


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """The part of a generation that is to come back, and under which conditions."""

    subscription: str | None = None  #: This one alone, by encoded name; None: all that were deleted with the topic.
    under_live: bool = False  #: Put ledgers and subscriptions under a topic of that name that lives.


class NotRestored(NamedTuple):
    """Something that does not come back as it was."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class NodesNow:
    """The nodes of the topic as they were read just now, and what BookKeeper has of the ledgers."""

    ledgers: Mapping[int, LedgerReading]  #: Of each ledger that a former node names.
    #: Which offloaded copy of a ledger that BookKeeper does not have is not whole, and why; None: it is.
    copies: Mapping[int, str | None] = field(default_factory=dict)
    topic: Versioned | None = None  #: Its list.
    cursors: Mapping[str, Versioned] = field(default_factory=dict)  #: By encoded name.
    schema: Versioned | None = None  #: Of the name by which the trash has it.
    #: The last entries of the cursors' ledgers, former and live; None of one that has none.
    last_entries: Mapping[int, bytes | None] = field(default_factory=dict)
    has_transactions: bool = False  #: Brokers keep snapshots of the transactions of the namespace's topics.


class CursorPlan(NamedTuple):
    """A subscription that comes back."""

    cursor: str  #: Encoded.
    position: Position | None  #: Where it goes on; None where that is not known.
    joined: bool  #: With the live one of the same name.

    @property
    def subscription(self) -> str:
        """Its name."""
        return decode_local_name(self.cursor)


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """The writes of a restore, in the order in which a store without transactions has to make them, and their sense."""

    writes: tuple[Write, ...]  #: The list's is the last.
    is_live: bool  #: The topic was there.
    ledgers: tuple[int, ...]  #: Put on its list.
    entries: int  #: Of these ledgers, as far as the list knows them: 0 of the one that was written.
    size: int  #: In bytes, likewise.
    cursors: tuple[CursorPlan, ...]  #: The subscriptions that come back.
    schema_versions: int | None  #: Of the schema that comes back; None where none does.
    lost: tuple[NotRestored, ...]  #: Everything that does not come back as it was.
    to_close: tuple[int, ...]  #: Ledgers whose end has to be known before: they go into the middle of the list.
    named: frozenset[int]  #: All ledgers that what is written names, and the trash has.


def former_ledgers(trashed: TrashedGeneration) -> frozenset[int]:
    """Return all ledgers that the former nodes name; FormatError where one cannot be read."""
    found = set(former_entries(trashed))
    for record in (*trashed.cursors.values(), *trashed.removed.values()):
        found |= _info(record).ledger_ids
    if trashed.schema is not None:
        found |= decode_schema_locator(former_value(trashed.schema)).ledger_ids
    return frozenset(found)


def is_cleared(cursor: str) -> bool:
    """Return whether brokers move a cursor of this encoded name to the end of a topic that they delete.

    They delete those of subscriptions before that.
    """
    return cursor.startswith("pulsar.repl") or cursor == _DEDUPLICATION


def is_moved(trashed: TrashedGeneration, cursor: str, record: TrashRecord) -> bool:
    """Return whether the delete moved this cursor to the end of the topic, or has to be taken to have done so."""
    return record.cleared is not None or (trashed.topic is not None and is_cleared(cursor))


def cursor_value(record: TrashRecord) -> bytes:
    """Return the value of a cursor's node; of one that its delete moved the value before, if that had its position.

    Before the ledger that is made to move a cursor has an entry, the broker forgets what was acknowledged out of order.
    """
    before = None if record.cleared is None else record.cleared.node
    if before is not None and decode_cursor(before).cursors_ledger_id is None:
        return before
    return former_value(record)


def former_position(trashed: TrashedGeneration, record: TrashRecord, newest: Sequence[bytes]) -> bytes | None:
    """Return which of a moved cursor's last entries, the newest first, has its position before; None: none of them."""
    positions = [decode_position_info(entry).mark_delete for entry in newest]
    if record.cleared is not None:
        reached = record.cleared.position
        return next((entry for entry, found in zip(newest, positions, strict=True) if found <= reached), None)
    # One that is not at the end was not moved: the topic was not loaded. The last ledger may be empty.
    if not positions or positions[0].ledger_id not in sorted(former_entries(trashed))[-2:]:
        return next(iter(newest), None)
    return next((entry for entry, found in zip(newest, positions, strict=True) if found != positions[0]), None)


def cursor_ledgers(trashed: TrashedGeneration, request: RestoreRequest, live: Mapping[str, Versioned]) -> set[int]:
    """Return the ledgers whose last entries say where the cursors are; FormatError where a node cannot be read."""
    infos = [_info(record) for record in wanted_cursors(trashed, request).values()]
    infos += [decode_cursor(node.value) for node in live.values()]
    return {info.cursors_ledger_id for info in infos if info.cursors_ledger_id is not None}


def wanted_cursors(trashed: TrashedGeneration, request: RestoreRequest) -> Mapping[str, TrashRecord]:
    """Return the cursors that are to come back, by encoded name; NotFoundError where the trash has none such."""
    if request.subscription is None:
        return trashed.cursors
    found = trashed.cursors.get(request.subscription) or trashed.removed.get(request.subscription)
    if found is None:
        known = sorted({decode_local_name(cursor) for cursor in (*trashed.cursors, *trashed.removed)})
        raise NotFoundError(
            f"the trash has no subscription {decode_local_name(request.subscription)!r} of that generation; it has "
            + (", ".join(known) or "none")
        )
    return {request.subscription: found}


def holder_changes(
    trashed: TrashedGeneration, request: RestoreRequest, last_entries: Mapping[int, bytes | None]
) -> dict[int, HolderChange]:
    """Return the holders that ledgers get which come back under another name than their own; FormatError as above.

    ``last_entries`` of cursors' ledgers tell of the compacted ledger that is in use.
    """
    if trashed.origin is None:
        return {}
    former, name = trashed.origin.managed_ledger, trashed.managed_ledger
    changes = dict.fromkeys(
        former_entries(trashed), HolderChange(ManagedLedgerHolder(former), ManagedLedgerHolder(name))
    )
    for cursor, record in wanted_cursors(trashed, request).items():
        info = _info(record)
        for kind in KINDS_OF_CURSORS:
            change = HolderChange(kind.of_cursor(former, cursor), kind.of_cursor(name, cursor))
            changes |= dict.fromkeys(kind.ledgers_in(info), change)
        entry = None if info.cursors_ledger_id is None else last_entries.get(info.cursors_ledger_id)
        compacted = None if entry is None else decode_position_info(entry).compacted_ledger_id
        if compacted is not None:
            changes[compacted] = HolderChange(CompactedHolder(former), CompactedHolder(name))
    schema, its_own = trashed.schema, trashed.origin.schema
    if schema is not None and its_own is not None and schema.schema_id is not None and its_own.schema_id is not None:
        change = HolderChange(SchemaHolder(its_own.schema_id), SchemaHolder(schema.schema_id))
        changes |= dict.fromkeys(decode_schema_locator(former_value(schema)).ledger_ids, change)
    return changes


def why_name_is_taken(trashed: TrashedGeneration, now: NodesNow) -> str | None:
    """Return why nothing can come back under this name, which is not its own; None if it can."""
    name = TopicName.of_managed_ledger(trashed.managed_ledger)
    if now.topic is not None:
        return f"{name} is there: --as takes the name of a topic that is not"
    if now.schema is not None and trashed.schema is not None and now.schema.value != former_value(trashed.schema):
        return (
            f"{name.base} has a schema of its own, whose versions are others: "
            f"`pulsar-admin schemas delete {name.base}`, or --as with another name"
        )
    return None


def former_entries(trashed: TrashedGeneration) -> dict[int, bytes]:
    """Return each ledger's part of the topic's former list; FormatError where it cannot be read."""
    entries = {decode_ledger_entry(entry).ledger_id: entry for trim in trashed.trims for entry in trim.entries}
    return entries if trashed.topic is None else entries | ledger_entries(former_value(trashed.topic))


def plan_restore(trashed: TrashedGeneration, request: RestoreRequest, now: NodesNow) -> RestorePlan:
    """Plan the writes.

    Raises RefusedError where something forbids it, NotFoundError for a subscription that the trash does not have, and
    FormatError for a node that cannot be read.
    """
    return _Planning(trashed, request, now).plan()


class _Planning:
    def __init__(self, trashed: TrashedGeneration, request: RestoreRequest, now: NodesNow) -> None:
        self._trashed = trashed
        self._request = request
        self._now = now
        self._topic = str(TopicName.of_managed_ledger(trashed.managed_ledger))
        self._lost: list[NotRestored] = []
        self._named: set[int] = set()
        self._to_close: list[int] = []

    def plan(self) -> RestorePlan:
        with_ledgers = self._require_possible()
        live = self._now.topic
        base = self._base()
        listed = ledger_entries(base)
        if self._now.has_transactions and self._trashed.topic is not None and with_ledgers:
            why = "brokers forget with the delete which were aborted or open, and give their messages to all"
            self._lost.append(NotRestored("transactions, if it had any", why))
        source = decode_managed_ledger(base).properties.get(SHADOW_SOURCE_PROPERTY)
        if source is not None and self._trashed.origin is not None:
            why = f"it names its shadow topics: `pulsar-admin topics set-shadow-topics {source}`, with all of them"
            self._lost.append(NotRestored(f"what {source} is sent from now on", why))
        restored = self._restored_entries() if with_ledgers else {}
        if live is None:
            put_back = wanted = restored
        else:
            # What the live topic says of its ledgers is newer.
            put_back = {ledger_id: entry for ledger_id, entry in restored.items() if ledger_id not in listed}
            wanted = listed | put_back
        value = with_ledger_entries(base, wanted)
        cursors = list(self._cursors(base))
        schema = self._schema() if with_ledgers else None
        writes = [write for write, _ in cursors if write is not None]
        writes += [] if schema is None else [schema]
        # Also where the list stays as it is: a broker that loaded the topic meanwhile has written it.
        path = managed_ledger_path(self._trashed.managed_ledger)
        writes.append(Write(path, value, None if live is None else live.version))
        infos = [decode_ledger_entry(entry) for entry in put_back.values()]
        return RestorePlan(
            tuple(writes),
            is_live=live is not None,
            ledgers=tuple(sorted(put_back)),
            entries=sum(info.entries for info in infos),
            size=sum(info.size for info in infos),
            cursors=tuple(cursor for _, cursor in cursors),
            schema_versions=None if schema is None else len(decode_schema_locator(schema.value).entries) - 1,
            lost=tuple(self._lost),
            to_close=tuple(self._to_close),
            named=frozenset(self._named) | frozenset(put_back),
        )

    def _require_possible(self) -> bool:
        """Refuse what cannot be; return whether ledgers come back, and not a subscription alone."""
        trashed, live = self._trashed, self._now.topic
        if trashed.origin is not None:
            self._require_other_name(trashed.origin)
        elif live is None and trashed.topic is None:
            raise RefusedError(
                f"{self._topic} is not there, and the trash has no node of it of that life, only ledgers that left its "
                "list: nothing says what else it had"
            )
        if trashed.broken:
            raise RefusedError(
                f"{self._topic}: parts of {len(trashed.broken)} nodes are missing in the trash: look at "
                "/bookwarden/trash/records, or restore another generation"
            )
        if live is not None and self._request.under_live and decode_managed_ledger(live.value).terminated is not None:
            # Brokers load it without a write of its list, so that nothing tells whether one has.
            raise RefusedError(
                f"the live topic {self._topic} is terminated: delete it first, then restore; or {self._as_another()}"
            )
        if live is None or self._request.under_live:
            return True
        if self._request.subscription is None:
            raise RefusedError(
                f"a topic {self._topic} is there: --under-live puts what the trash has under it; or delete it first; "
                f"or {self._as_another()}"
            )
        if live.created_ms != trashed.generation.created_ms:
            raise RefusedError(
                f"subscription {decode_local_name(self._request.subscription)!r} is of an earlier life of "
                f"{self._topic}, whose ledgers the live topic does not have: --under-live puts these under it too"
            )
        return False

    def _as_another(self) -> str:
        return f"`bookwarden trash restore {self._topic} --as NAME` restores it under another name"

    def _require_other_name(self, origin: TrashedGeneration) -> None:
        taken = why_name_is_taken(self._trashed, self._now)
        if taken is not None:
            raise RefusedError(taken)
        if origin.topic is None:
            raise RefusedError(
                f"the trash has no end of {TopicName.of_managed_ledger(origin.managed_ledger)} of that life, only what "
                "left it before: --as restores a topic that was deleted"
            )
        for ledger_id, change in holder_changes(self._trashed, self._request, {}).items():
            reading = self._now.ledgers[ledger_id]
            if not isinstance(reading, StoredLedger) or reading.metadata.format_version == 3:
                continue
            if custom_metadata_mismatch(change.former, reading.metadata.custom) is None:
                raise RefusedError(
                    f"ledger {ledger_id} has metadata of version {reading.metadata.format_version}, in which nothing "
                    "can be changed here: restore it under its own name"
                )

    def _base(self) -> bytes:
        if self._now.topic is not None:
            return self._now.topic.value
        assert self._trashed.topic is not None
        return former_value(self._trashed.topic)

    def _restored_entries(self) -> dict[int, bytes]:
        former = former_entries(self._trashed)
        there: dict[int, bytes] = {}
        for ledger_id, entry in sorted(former.items()):
            found = self._entry_to_restore(ledger_id, entry)
            if found is not None:
                there[ledger_id] = found
        # The last one of a deleted topic is left as it is: a broker that loads it finds its end.
        last = max(there, default=None) if self._now.topic is None else None
        return {
            ledger_id: settled
            for ledger_id, entry in there.items()
            if (settled := entry if ledger_id == last else self._settled(ledger_id, entry)) is not None
        }

    def _entry_to_restore(self, ledger_id: int, entry: bytes) -> bytes | None:
        """Return the ledger's part of the list, if its entries are there."""
        info = decode_ledger_entry(entry)
        reading = self._now.ledgers[ledger_id]
        if isinstance(reading, UnreadableLedger):
            raise RefusedError(f"{self._topic}: the metadata of ledger {ledger_id} cannot be read: {reading.reason}")
        if isinstance(reading, AbsentLedger):
            problem = self._now.copies.get(ledger_id, "")
            if problem is None:
                return ledger_entry_of_copy(entry)
            was_empty = info.entries == 0 and info.timestamp_ms > 0
            if not was_empty:
                self._lost.append(NotRestored(f"ledger {ledger_id}", _why_gone(info, problem)))
            return None
        return entry if info.offload is None else ledger_entry_without_copy(entry)

    def _settled(self, ledger_id: int, entry: bytes) -> bytes | None:
        """Return the part of the list of a ledger that is not the last: with its end; None if it is empty."""
        info = decode_ledger_entry(entry)
        if info.timestamp_ms > 0 and info.entries > 0:
            return entry
        reading = self._now.ledgers[ledger_id]
        assert isinstance(reading, StoredLedger)
        last = reading.metadata.last_entry_id
        if last is None:
            self._to_close.append(ledger_id)
            return entry
        if last < 0:
            return None
        return closed_ledger_entry(entry, last + 1, reading.metadata.length, reading.modified_ms)

    def _cursors(self, base: bytes) -> Iterator[tuple[Write | None, CursorPlan]]:
        for cursor, record in sorted(wanted_cursors(self._trashed, self._request).items()):
            value = self._usable(cursor, record)
            if value is None:
                continue
            live = self._now.cursors.get(cursor)
            joined = live is not None and self._now.topic is not None and live.value != value
            if joined:
                assert live is not None
                if cursor in _KEPT_AS_THEY_ARE:
                    continue
                value = self._joined(cursor, value, live.value, base)
                if value is None:
                    continue
            path = cursor_path(self._trashed.managed_ledger, cursor)
            write = Write(path, value, None if live is None else live.version)
            is_there = live is not None and live.value == value
            self._named |= decode_cursor(value).ledger_ids
            yield None if is_there else write, CursorPlan(cursor, self._position(value), joined)

    def _usable(self, cursor: str, record: TrashRecord) -> bytes | None:
        """Return the node's value without what is gone; None if nothing is left of it."""
        value, name = cursor_value(record), f"subscription {decode_local_name(cursor)!r}"
        info = decode_cursor(value)
        gone = {ledger_id for ledger_id in info.ledger_ids if self._is_gone(ledger_id)}
        if info.compacted_ledger_id in gone:
            why = f"its compacted view, ledger {info.compacted_ledger_id}, is gone: compact the topic again"
            self._lost.append(NotRestored(name, why))
            return None
        if buckets := gone & info.delayed_bucket_ids:
            value = without_buckets(value, buckets)
            why = f"its delayed messages' index in {len(buckets)} ledgers is gone: the broker makes it again"
            self._lost.append(NotRestored(name, why))
        cleared = record.cleared
        if info.cursors_ledger_id not in gone:
            # One without a ledger has its position, which is that of the end where a broker has closed the topic since.
            is_end = cleared is not None and info.mark_delete is not None and info.mark_delete > cleared.position
            moved = is_end if info.cursors_ledger_id is None else is_moved(self._trashed, cursor, record)
            return self._moved_back(value, name, record) if moved else value
        why = f"ledger {info.cursors_ledger_id}, which has its position, is gone"
        position = info.mark_delete if cleared is None else cleared.position
        if position is None:
            self._lost.append(NotRestored(name, why))
            return None
        self._lost.append(
            NotRestored(name, f"{why}: it goes on after {_text(position)}, where it was at an earlier moment")
        )
        return at_position(value, None if cleared is None else position_entry(position))

    def _moved_back(self, value: bytes, name: str, record: TrashRecord) -> bytes:
        """Return the node of a cursor that its delete moved at its position before."""
        entry, cleared = self._last_entry(value), record.cleared
        if cleared is None:
            return at_position(value, entry)
        if cleared.node is not None:
            # Its ledger was replaced, and the broker forgot what was in it, as where it was killed within the delete.
            why = "what it had acknowledged out of order is not known since the delete: it is given that again"
            self._lost.append(NotRestored(name, why))
        return at_position(value, entry or position_entry(cleared.position))

    def _is_gone(self, ledger_id: int) -> bool:
        reading = self._now.ledgers[ledger_id]
        if isinstance(reading, UnreadableLedger):
            raise RefusedError(f"{self._topic}: the metadata of ledger {ledger_id} cannot be read: {reading.reason}")
        return isinstance(reading, AbsentLedger)

    def _joined(self, cursor: str, former: bytes, live: bytes, base: bytes) -> bytes | None:
        """Return the node of a cursor at its former position that has acknowledged what the live one has."""
        try:
            settled, newer = (at_position(value, self._last_entry(value)) for value in (former, live))
        except FormatError as error:
            why = f"a live one of that name stays where it is, since the two cannot be joined: {error}"
            self._lost.append(NotRestored(f"subscription {decode_local_name(cursor)!r}", why))
            return None
        reached = decode_cursor(newer).mark_delete
        assert reached is not None
        through = {
            ledger.ledger_id: reached.entry_id if ledger.ledger_id == reached.ledger_id else ledger.entries - 1
            for ledger in decode_managed_ledger(base).ledgers
            # Where the former one is in the same list, what is before it is acknowledged anyway.
            if ledger.ledger_id <= reached.ledger_id
        }
        return with_acknowledged(settled, newer, through)

    def _last_entry(self, value: bytes) -> bytes | None:
        own = decode_cursor(value).cursors_ledger_id
        return None if own is None else self._now.last_entries.get(own)

    def _position(self, value: bytes) -> Position | None:
        entry = self._last_entry(value)
        return decode_cursor(value).mark_delete if entry is None else decode_position_info(entry).mark_delete

    def _schema(self) -> Write | None:
        record, live = self._trashed.schema, self._now.schema
        if record is None:
            return None
        value = former_value(record)
        former = decode_schema_locator(value)
        there = [ledger_id for ledger_id in former.ledger_ids if not self._is_gone(ledger_id)]
        gone = sorted(former.ledger_ids.difference(there))
        if gone:
            self._lost.append(
                NotRestored("schema", f"the ledgers {', '.join(map(str, gone))} of its versions are gone")
            )
        if not there:
            return None
        assert record.schema_id is not None
        path = schema_path(record.schema_id)
        self._named |= set(there)
        if live is None:
            return Write(path, value, None)
        newer = decode_schema_locator(live.value)
        if _is_prefix(former, newer):
            return None
        if not _is_prefix(newer, former):
            if self._now.topic is not None:
                raise RefusedError(
                    f"{self._topic}: the live topic numbers its schemas otherwise than the deleted one, so that "
                    f"messages of one would be read with the schemas of the other: {self._as_another()}; "
                    "or, if you can do without the live one, delete it first"
                )
            why = "what a client registered after the topic was deleted is replaced by the topic's own"
            self._lost.append(NotRestored("schema", why))
        return Write(path, value, live.version)


def _why_gone(info: LedgerInfo, problem: str) -> str:
    if problem:
        return f"only its offloaded copy had it, which brokers delete at once: {problem}"
    return f"BookKeeper does not have it any more; it had {info.entries:,} entries by its list"


def _info(record: TrashRecord) -> CursorInfo:
    return decode_cursor(cursor_value(record))


def former_value(record: TrashRecord) -> bytes:
    """Return the value of the node that a record is of."""
    assert record.node is not None
    return record.node.value


def _is_prefix(shorter: SchemaLocator, longer: SchemaLocator) -> bool:
    """Return whether each version of the one is the same schema in the other."""
    # The first is the current version once more.
    first, second = ([(one.version, one.hash) for one in locator.entries[1:]] for locator in (shorter, longer))
    return second[: len(first)] == first


def _text(position: Position) -> str:
    return f"{position.ledger_id}:{position.entry_id}"
