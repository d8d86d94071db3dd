"""Values of Pulsar's metadata nodes: managed ledgers, cursors and schemas, and the ledgers they refer to.

Formats: MLDataFormats.proto and SchemaStorageFormat.proto of Pulsar 4.0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from bookwarden.errors import FormatError

COMPACTION_CURSOR = "__compaction"
COMPACTED_LEDGER_PROPERTY = "CompactedTopicLedger"
SHADOW_SOURCE_PROPERTY = "PULSAR.SHADOW_SOURCE"
DELAYED_BUCKET_PREFIX = "#pulsar.internal.delayed.bucket_"

_64_BITS = 2**64 - 1
_BUCKET_KEY = re.compile(re.escape(DELAYED_BUCKET_PREFIX) + r"([0-9]{1,19})_([0-9]{1,19})", re.ASCII)


class Position(NamedTuple):
    """An entry of a ledger; entry -1 stands before the first one."""

    ledger_id: int
    entry_id: int

    @classmethod
    def parse(cls, text: str) -> Position:
        """Read ``ledger:entry``; raise FormatError for anything else."""
        ledger, separator, entry = text.partition(":")
        try:
            position = cls(int(ledger), int(entry))
        except ValueError as error:
            raise FormatError(f"position {text!r} is not ledger:entry") from error
        if not separator or position.entry_id < -1:
            raise FormatError(f"position {text!r} is not ledger:entry")
        return position

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"


def as_uuid(msb: int, lsb: int) -> UUID:
    """Make the UUID of two signed 64-bit halves, as in Java."""
    return UUID(int=((msb & _64_BITS) << 64) | (lsb & _64_BITS))


def signed_halves(uuid: UUID) -> tuple[int, int]:
    """Split a UUID into its two signed 64-bit halves; `as_uuid` puts them together."""
    msb, lsb = (int.from_bytes(half, "big", signed=True) for half in (uuid.bytes[:8], uuid.bytes[8:]))
    return msb, lsb


@dataclass(frozen=True, slots=True)
class OffloadSegment:
    """A part of an offloaded ledger, as the former streaming offload wrote it."""

    uid_msb: int
    uid_lsb: int
    complete: bool
    driver_name: str
    driver_metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def uuid(self) -> UUID:
        """The id that names the segment's objects."""
        return as_uuid(self.uid_msb, self.uid_lsb)


@dataclass(frozen=True, slots=True)
class OffloadInfo:
    """The offloaded copy of a ledger, as its topic's list records it."""

    uid_msb: int  #: Upper half of its UUID, signed as in Java.
    uid_lsb: int  #: Lower half.
    complete: bool  #: False while an attempt runs or after it failed.
    bookkeeper_deleted: bool  #: This copy is the only one.
    timestamp_ms: int  #: In ms since the epoch; 0 where the broker wrote none.
    driver_name: str  #: As the broker wrote it.
    driver_metadata: Mapping[str, str] = field(default_factory=dict)  #: Where it lies; `store_location` reads it.
    segments: tuple[OffloadSegment, ...] = ()  #: Of the former streaming offload.
    #: False where the node says more of the copy than is known here: no reason then to delete anything.
    understood: bool = True

    @property
    def uuid(self) -> UUID:
        """The id that names the offloaded objects."""
        return as_uuid(self.uid_msb, self.uid_lsb)

    @property
    def uuids(self) -> frozenset[UUID]:
        """The ids of the copy and of its segments; none where no attempt was begun."""
        found = (self.uuid, *(segment.uuid for segment in self.segments))
        return frozenset(uuid for uuid in found if uuid.int != 0)


class LedgerInfo(NamedTuple):
    """One ledger of a managed ledger; entries, size in bytes and the time of closing are 0 while it is open."""

    ledger_id: int
    entries: int = 0
    size: int = 0
    timestamp_ms: int = 0
    offload: OffloadInfo | None = None


@dataclass(frozen=True, slots=True)
class ManagedLedgerInfo:
    """The value of a managed ledger's node."""

    ledgers: tuple[LedgerInfo, ...] = ()  #: By growing id: the last is, or was, the one written to.
    properties: Mapping[str, str] = field(default_factory=dict)  #: Of the topic.
    #: Ledgers whose entry in the list, or its offloaded copy, has fields unknown to us: on the word of such an entry
    #: nothing is deleted, nor taken from the list.
    puzzling: frozenset[int] = frozenset()
    #: The last entry of a topic that takes no more; entry -1 of its last ledger if that is empty. None while it does.
    terminated: Position | None = None

    @property
    def ledger_ids(self) -> frozenset[int]:
        """The ledgers that this node refers to."""
        return frozenset(ledger.ledger_id for ledger in self.ledgers)

    @property
    def understood(self) -> tuple[LedgerInfo, ...]:
        """The ledgers whose entries have no field unknown to us."""
        return tuple(ledger for ledger in self.ledgers if ledger.ledger_id not in self.puzzling)

    @property
    def offloaded(self) -> frozenset[UUID]:
        """The offloaded copies that this node refers to, finished or not."""
        offloads = [ledger.offload for ledger in self.with_copies if ledger.offload is not None]
        return frozenset().union(*(offload.uuids for offload in offloads))

    @property
    def with_copies(self) -> tuple[LedgerInfo, ...]:
        """The ledgers with an offloaded copy, finished or not."""
        return tuple([ledger for ledger in self.ledgers if ledger.offload is not None])


class BucketRange(NamedTuple):
    """The data ledgers whose delayed messages one bucket indexes: the first and the last one."""

    first: int
    last: int


def bucket_range(key: str) -> BucketRange | None:
    """Read the range off a bucket's key, ``#pulsar.internal.delayed.bucket_<first>_<last>``; None for any other text.

    Source: Bucket.bucketKey of Pulsar 4.0, where it is the name of a cursor's property, and in the ledger's metadata.
    """
    found = _BUCKET_KEY.fullmatch(key)
    return None if found is None else BucketRange(int(found[1]), int(found[2]))


@dataclass(frozen=True, slots=True)
class CursorInfo:
    """The value of a cursor's node."""

    cursors_ledger_id: int | None  #: Holds its positions; None if it has none.
    #: Of the last switch of that ledger: while it is open, its last entry is the truth.
    mark_delete: Position | None = None
    properties: Mapping[str, int] = field(default_factory=dict)  #: As old as ``mark_delete``.
    cursor_properties: Mapping[str, str] = field(default_factory=dict)  #: Always up to date.
    #: What is acknowledged behind ``mark_delete``, as the broker wrote it; as old as that.
    acknowledged: tuple[bytes, ...] = ()

    @property
    def compacted_ledger_id(self) -> int | None:
        """The compacted ledger as this node knows it, which may be an earlier one than the live one."""
        return self.properties.get(COMPACTED_LEDGER_PROPERTY)

    @property
    def delayed_bucket_ids(self) -> frozenset[int]:
        """The ledgers with snapshots of delayed messages."""
        named = self.cursor_properties
        # Most cursors have none.
        if not named:
            return frozenset()
        return frozenset(int(value) for name, value in named.items() if name.startswith(DELAYED_BUCKET_PREFIX))

    @property
    def delayed_bucket_ranges(self) -> list[BucketRange]:
        """The data ledgers whose delayed messages the named buckets index."""
        found = (bucket_range(name) for name in self.cursor_properties)
        return [one for one in found if one is not None]

    @property
    def ledger_ids(self) -> frozenset[int]:
        """The ledgers that this node refers to."""
        single = (self.cursors_ledger_id, self.compacted_ledger_id)
        return self.delayed_bucket_ids | {found for found in single if found is not None and found >= 0}


@dataclass(frozen=True, slots=True)
class CursorPosition:
    """The last entry of a cursor's ledger: where the cursor is, and its properties of now."""

    mark_delete: Position
    properties: Mapping[str, int] = field(default_factory=dict)
    acknowledged: tuple[bytes, ...] = ()  #: As in CursorInfo.

    @property
    def compacted_ledger_id(self) -> int | None:
        """The compacted ledger that is in use."""
        return self.properties.get(COMPACTED_LEDGER_PROPERTY)


@dataclass(frozen=True, slots=True)
class SchemaIndexEntry:
    """One version of a schema and where it is stored; position (-1, -1) is a placeholder for nowhere yet."""

    version: int
    position: Position
    hash: bytes


@dataclass(frozen=True, slots=True)
class SchemaLocator:
    """The value of a schema's node: the current version first, then all versions of the index."""

    entries: tuple[SchemaIndexEntry, ...]

    @property
    def ledger_ids(self) -> frozenset[int]:
        """The ledgers that this node refers to."""
        return frozenset(entry.position.ledger_id for entry in self.entries if entry.position.ledger_id >= 0)


@dataclass(frozen=True, slots=True)
class SchemaEntryIndex:
    """The versions in the entry of a schema's ledger; its writer took them from the schema's node."""

    version: int  #: Of the schema in the entry.
    earlier: tuple[tuple[int, Position], ...]  #: The versions before it, and where they are.


NodeInfo = ManagedLedgerInfo | CursorInfo | SchemaLocator


@dataclass(frozen=True, slots=True)
class _VersionedNode:
    path: str
    version: int
    created_ms: int


@dataclass(frozen=True, slots=True)
class VersionedManagedLedger(_VersionedNode):
    """A managed ledger as it was read; ``raw`` keeps the fields that are unknown to us."""

    name: str
    info: ManagedLedgerInfo
    raw: bytes


@dataclass(frozen=True, slots=True)
class VersionedCursor(_VersionedNode):
    """A cursor as it was read; ``name`` is encoded, as in the path."""

    name: str
    info: CursorInfo


@dataclass(frozen=True, slots=True)
class VersionedSchema(_VersionedNode):
    """A schema's locator as it was read."""

    schema_id: str
    locator: SchemaLocator
