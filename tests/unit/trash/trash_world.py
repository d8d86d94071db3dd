"""A metadata store in memory with topics that are deleted, kept in the trash and loaded, as brokers would."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from bookwarden.clusters.bookkeeper.bookies.last_entries import DecodedEntries
from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.bookkeeper.ledger_paths import LedgerLayout, ledger_path
from bookwarden.clusters.offload.listing import StoredObject
from bookwarden.clusters.offload.names import NameRange
from bookwarden.clusters.offload.stores import AllowedStore, OffloadStores
from bookwarden.deletion.phase_one.mark import Marker
from bookwarden.errors import LostRaceError, NotFoundError, StoreUnavailableError
from bookwarden.leases import LeaseTimes
from bookwarden.ledgers.custom_metadata import expected_custom_metadata
from bookwarden.ledgers.kinds import Holder
from bookwarden.ledgers.managed_ledger import Position
from bookwarden.ledgers.metadata import DeleteResult, LedgerMetadata, LedgerState, Segment, StoredLedger
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.offloaded_copies import AbsentCopy, CopyDeletion, CopyReading, OffloadedCopy, UnreadableCopy
from bookwarden.ledgers.pending_deletion import PendingDeletion
from bookwarden.ledgers.trash import ClearedCursor, FormerNode, FormerPolicies, TrashRecord
from bookwarden.metastore.interface import Versioned, Write
from bookwarden.metastore.memory import MemoryStore
from bookwarden.metastore.paths import ancestors, parent_of
from bookwarden.trash.generations import TrashedGeneration
from bookwarden.trash.policy_restore import PolicyRestore
from bookwarden.trash.records import TrashRecords
from bookwarden.trash.restore import Restore
from bookwarden.wire.cursor import decode_cursor
from bookwarden.wire.ledger_metadata import change_ledger_metadata, encode_ledger_metadata
from bookwarden.wire.managed_ledger import decode_managed_ledger
from bookwarden.wire.pb import managed_ledger_pb2 as pb
from bookwarden.wire.pb import schema_locator_pb2
from bookwarden.wire.schema_locator import decode_schema_locator
from bookwarden.wire.trash import TRASH_RECORDS, encode_records

TOPIC = "t/n/persistent/a"
NODE = f"/managed-ledgers/{TOPIC}"
SCHEMA = "/schemas/t/n/a"
FOLDER = f"{TRASH_RECORDS}/b1.example:8080-0123abcd/0"
#: No renewal comes between the writes that are counted.
ALONE = LeaseTimes(renew_s=1000.0, lease_s=2000.0, given_up_s=0.0)


class Killed(Exception):
    """The process is gone."""


class DyingStore(MemoryStore):
    """Stops everything right before, or right after, one of its writes; with the next `revive` it is another process.

    ``seen`` is called after each write.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self.left = 1_000_000
        self.before = False
        self.seen: Callable[[], None] = lambda: None

    def kill_at(self, write: int, *, before: bool) -> None:
        self.left, self.before = write, before

    def revive(self) -> None:
        self.left = 1_000_000

    def dies(self, write: Callable[[], Any]) -> Any:
        """Do something that may be the last."""
        if self.left < 0:
            raise StoreUnavailableError("nobody is there any more")
        self.left -= 1
        if self.left < 0 and self.before:
            raise Killed
        try:
            result = write()
        except LostRaceError as error:
            if self.left < 0:
                raise Killed from error
            raise
        self.seen()
        if self.left < 0:
            raise Killed
        return result

    def put(self, path: str, value: bytes, version: int) -> int:
        return int(self.dies(lambda: super(DyingStore, self).put(path, value, version)))

    def create(self, path: str, value: bytes, *, make_parents: bool = False) -> None:
        self.dies(lambda: super(DyingStore, self).create(path, value, make_parents=make_parents))

    def delete_many(self, expected: Sequence[tuple[str, int]], **options: Any) -> list[DeleteResult]:
        return list(self.dies(lambda: super(DyingStore, self).delete_many(expected, **options)))

    def write_together(self, writes: Sequence[Write]) -> None:
        self.dies(lambda: super(DyingStore, self).write_together(writes))


class KeysAlone(DyingStore):
    """As Oxia: no transaction, and a key needs none above it."""

    def write_together(self, writes: Sequence[Write]) -> None:
        own = {write.path for write in writes}
        for write in writes:
            for parent in ancestors(write.path):
                if write.version is None and parent not in own and self.get(parent) is None:
                    self.create(parent, b"")
            if write.version is not None:
                self.put(*write)
            else:
                self.dies(lambda write=write: self._make(write))

    def _make(self, write: Write) -> None:
        if self.get(write.path) is not None:
            raise LostRaceError(f"{write.path} exists already")
        now = self._now_ms()
        self._nodes[write.path] = Versioned(write.value, 0, now, now)
        self._children.setdefault(write.path, set())
        self._children.setdefault(parent_of(write.path), set()).add(write.path.rpartition("/")[2])


@dataclass
class PolicyEvents:
    """The events of ``__change_events``: of each key the newest, and definitions; an empty value: no policies."""

    store: DyingStore
    values: dict[str, bytes] = field(default_factory=dict)
    definitions: list[str] = field(default_factory=list)

    def current(self, namespace: str, keys: Collection[str]) -> dict[str, bytes]:
        return {key: self.values[key] for key in keys if self.values.get(key)}

    def send(self, namespace: str, events: Sequence[tuple[str, bytes, str]]) -> None:
        for key, value, definition in events:
            self.store.dies(lambda key=key, value=value: self.values.update({key: value}))
            self.definitions.append(definition)


class Entries(DecodedEntries):
    """The last entries of cursors' ledgers."""

    def __init__(self) -> None:
        self.by_ledger: dict[int, bytes] = {}
        self.before: dict[int, list[bytes]] = {}  #: The entries before the last one, the newest first.

    def last_entry(self, ledger_id: int) -> bytes | None:
        return self.by_ledger.get(ledger_id)

    def newest(self, ledger_id: int, count: int) -> list[bytes]:
        return [*super().newest(ledger_id, count), *self.before.get(ledger_id, ())][:count]


def listing(*ledgers: tuple[int, int], **properties: str) -> bytes:
    """Return the node of a topic: ledgers with their numbers of entries; 0 of the one that is written."""
    node = pb.ManagedLedgerInfo()
    for ledger_id, entries in ledgers:
        if entries:
            node.ledgerInfo.add(ledgerId=ledger_id, entries=entries, size=entries * 100, timestamp=1)
        else:
            node.ledgerInfo.add(ledgerId=ledger_id, timestamp=0)
    for key, value in properties.items():
        node.properties.add(key=key, value=value)
    return node.SerializeToString()


def cursor(ledger: int, position: tuple[int, int], *ranges: bytes) -> bytes:
    return pb.ManagedCursorInfo(
        cursorsLedgerId=ledger,
        markDeleteLedgerId=position[0],
        markDeleteEntryId=position[1],
        individualDeletedMessages=ranges,
    ).SerializeToString()


def position_entry(position: tuple[int, int], *ranges: bytes) -> bytes:
    return pb.PositionInfo(
        ledgerId=position[0], entryId=position[1], individualDeletedMessages=ranges
    ).SerializeToString()


def locator(*versions: tuple[int, bytes]) -> bytes:
    """Return the node of a schema: of each version its ledger and hash."""
    node = schema_locator_pb2.SchemaLocator()
    for number, (ledger_id, digest) in enumerate(versions):
        for entry in (node.info, node.index.add()):
            entry.version, entry.hash = number, digest
            entry.position.ledgerId, entry.position.entryId = ledger_id, 0
    return node.SerializeToString()


@dataclass
class Copies:
    """The store of offloaded copies: what it has of the copy of each ledger."""

    by_ledger: dict[int, CopyReading] = field(default_factory=dict)

    def read_many(self, copies: Sequence[OffloadedCopy]) -> list[CopyReading]:
        return [UnreadableCopy("only the data was asked for") for _ in copies]

    def examine_many(self, copies: Sequence[OffloadedCopy]) -> list[CopyReading]:
        return [self.by_ledger.get(copy.ledger_id, AbsentCopy()) for copy in copies]

    def delete_many(self, copies: Sequence[OffloadedCopy]) -> list[CopyDeletion]:
        raise AssertionError("no copy is to be deleted")

    def pages(self, names: NameRange) -> Iterator[list[StoredObject]]:
        raise AssertionError("nothing is to be listed")

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class Broker:
    """Loads the topic off its nodes. ``unloads`` are called, one at each unload, while any is left."""

    store: MemoryStore
    entries: Entries
    unloads: list[Callable[[], None]] = field(default_factory=list)
    loads: list[Callable[[], None]] = field(default_factory=list)
    unloaded: int = 0

    def unload(self, topic: str) -> None:
        self.unloaded += 1
        if self.unloads:
            self.unloads.pop(0)()

    def internal_stats(self, topic: str) -> Mapping[str, Any]:
        if self.loads:
            self.loads.pop(0)()
        return self.stats(f"/managed-ledgers/{TopicName.parse(topic).managed_ledger}")

    def stats(self, path: str = NODE) -> Mapping[str, Any]:
        """Return what it says of the topic of this node."""
        node = self.store.get(path)
        if node is None:
            raise NotFoundError("there is no such topic")
        ledgers = decode_managed_ledger(node.value).ledgers
        names = self.store.children_of(path)
        cursors = {name: {"markDeletePosition": self._position(f"{path}/{name}")} for name in names}
        last = ledgers[-1].ledger_id if ledgers else 0
        return {
            "lastConfirmedEntry": f"{last}:-1",
            "ledgers": [{"ledgerId": one.ledger_id, "entries": one.entries} for one in ledgers] or [{"ledgerId": 1}],
            "cursors": cursors,
        }

    def _position(self, path: str) -> str:
        node = self.store.get(path)
        assert node is not None
        info = decode_cursor(node.value)
        entry = None if info.cursors_ledger_id is None else self.entries.position(info.cursors_ledger_id)
        found = info.mark_delete if entry is None else entry.mark_delete
        return "{}:{}".format(*(found or Position(-1, -1)))


class DeletionTopic:
    """Takes marks, unless ``failure`` says why not."""

    def __init__(self) -> None:
        self.marked: list[int] = []
        self.failure: str | None = None

    def send_all(self, marks: Sequence[PendingDeletion]) -> list[str | None]:
        if self.failure is None:
            self.marked += [mark.ledger_id for mark in marks]
        return [self.failure] * len(marks)


class World:
    """One topic, its ledgers, and the trash."""

    def __init__(self, store: type[DyingStore] = DyingStore) -> None:
        self.now = 1_700_000_000.0
        self.store = store(self._clock)
        self.catalog = BookKeeperCatalog(self.store)
        self.entries = Entries()
        self.broker = Broker(self.store, self.entries)
        self.records = TrashRecords(self.store)
        self.events = PolicyEvents(self.store)
        self.recovered: list[int] = []
        self.copies = Copies()
        self.topic_of_marks = DeletionTopic()
        self._nodes = 0
        self._ever_kept: set[int] = set()
        self.store.create("/ledgers", b"")
        self.store.create("/managed-ledgers/t/n/persistent", b"", make_parents=True)
        self.store.create("/schemas/t/n", b"", make_parents=True)

    def _clock(self) -> float:
        self.now += 0.001
        return self.now

    def ledger(self, *ids: int, last: int | None = 9, holder: Holder | None = None) -> None:
        """Make ledgers, of ten entries unless ``last`` is another one; None: open."""
        names = {} if holder is None else expected_custom_metadata(holder)
        state = LedgerState.OPEN if last is None else LedgerState.CLOSED
        length = 0 if last is None else (last + 1) * 100
        metadata = LedgerMetadata(
            *(3, state, 1, 1, 1, (Segment(0, ("b1:3181",)),), length, last),
            digest_type="CRC32C",
            ctime_ms=1,
            custom={key: value.encode() for key, value in names.items()},
        )
        for ledger_id in ids:
            path = ledger_path("/ledgers", ledger_id, LedgerLayout.HIERARCHICAL)
            self.store.create(path, encode_ledger_metadata(metadata), make_parents=True)

    def stored(self, ledger_id: int) -> StoredLedger:
        (found,) = self.catalog.read_many([ledger_id])
        assert isinstance(found, StoredLedger)
        return found

    def topic(self, value: bytes, cursors: Mapping[str, bytes], schema: bytes | None = None) -> None:
        self.store.create(NODE, value)
        for name, node in cursors.items():
            self.store.create(f"{NODE}/{name}", node)
        if schema is not None:
            self.store.create(SCHEMA, schema)

    def delete(
        self, policies: FormerPolicies | None = None, cleared: Mapping[str, ClearedCursor] = MappingProxyType({})
    ) -> None:
        """Delete the topic as a broker does, which keeps it in the trash; the sweep's driver has seen its policies.

        ``cleared`` has where cursors were before it moved them, and their nodes where it replaced these.
        """
        for name in self.store.children_of(NODE):
            if name in cleared:
                self.keep(self.moved(name, cleared[name]))
            self.keep(self.remove(f"{NODE}/{name}", name))
        if self.store.get(SCHEMA) is not None:
            self.keep(self.remove(SCHEMA, schema="t/n/a"))
        self.keep(replace(self.remove(NODE), policies=policies))

    def moved(self, name: str, was: ClearedCursor) -> TrashRecord:
        node = self.get(f"{NODE}/{name}")
        former = FormerNode(was.node or node.value, node.version, node.created_ms, node.modified_ms)
        now_ms = int(self._clock() * 1000)
        return TrashRecord(TOPIC, now_ms, node.created_ms, name, node=former, position=was.position)

    def remove(self, path: str, cursor: str | None = None, schema: str | None = None) -> TrashRecord:
        node = self.get(path)
        former = FormerNode(node.value, node.version, node.created_ms, node.modified_ms)
        assert self.store.delete_many([(path, node.version)]) == [DeleteResult.DELETED]
        ids: dict[str, tuple[int, ...]] = {}
        if cursor is not None:
            own = decode_cursor(node.value).cursors_ledger_id
            ids["cursors"] = () if own is None else (own,)
        elif schema is not None:
            ids["schemas"] = tuple(sorted(decode_schema_locator(node.value).ledger_ids))
        else:
            ids["data"] = tuple(sorted(decode_managed_ledger(node.value).ledger_ids))
        return TrashRecord(*(TOPIC, int(self._clock() * 1000), node.created_ms, cursor, schema), node=former, **ids)

    def keep(self, *records: TrashRecord) -> None:
        self.store.create(f"{FOLDER}/{self._nodes}", encode_records(records), make_parents=True)
        self._nodes += 1
        self._ever_kept |= {one for record in records for one in record.ledger_ids}

    def get(self, path: str) -> Versioned:
        node = self.store.get(path)
        assert node is not None, path
        return node

    def value(self, path: str) -> bytes:
        return self.get(path).value

    def leaked(self) -> set[int]:
        """Return the ledgers that were in the trash, and are neither that any more, nor named, nor marked, nor gone."""
        named: set[int] = set()
        for path in (*self._below("/managed-ledgers"), *self._below("/schemas")):
            value = self.value(path)
            if value and path.startswith("/schemas"):
                named |= decode_schema_locator(value).ledger_ids
            elif value:
                decode = decode_cursor if path.count("/") > NODE.count("/") else decode_managed_ledger
                named |= decode(value).ledger_ids
        kept = {one for found in self.records.read().generations for one in found.ledger_ids}
        ids = sorted(self._ever_kept - named - kept - set(self.topic_of_marks.marked))
        found = zip(ids, self.catalog.read_many(ids), strict=True)
        return {one for one, reading in found if isinstance(reading, StoredLedger)}

    def _below(self, path: str) -> Iterator[str]:
        for name in self.store.children_of(path):
            yield f"{path}/{name}"
            yield from self._below(f"{path}/{name}")

    def listed(self, path: str = NODE) -> list[int]:
        return [ledger.ledger_id for ledger in decode_managed_ledger(self.value(path)).ledgers]

    def trashed(self) -> TrashedGeneration:
        """Return the newest generation."""
        return self.records.read().generations[0]

    def restore(self, times: LeaseTimes = ALONE, operator: str = "alice@a", **options: Any) -> Restore:
        return Restore(
            *(self.store, self.records, self.catalog, self.entries, self.broker, self._recover),
            operator=operator,
            times=times,
            load_wait_s=0.0,
            policies=PolicyRestore(self.store, self.events),
            copies=lambda: OffloadStores([AllowedStore("S3", "http://s3", (), "", lambda location: self.copies)]),
            marker=lambda: Marker(self.topic_of_marks),
            **options,
        )

    def _recover(self, ledger_id: int) -> None:
        found = self.stored(ledger_id)
        self.store.put(found.path, change_ledger_metadata(found.raw, LedgerState.CLOSED, 6, 700), found.version)
        self.recovered.append(ledger_id)
