"""Nodes of Pulsar's metadata by a reader of their own: whatever the product takes a damaged one for, this is the truth.

Field numbers: MLDataFormats.proto and SchemaStorageFormat.proto of Pulsar 4.0.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from bookwarden.ledgers.kinds import (
    BucketHolder,
    CompactedHolder,
    CursorHolder,
    Holder,
    ManagedLedgerHolder,
    SchemaHolder,
)
from bookwarden.ledgers.pending_deletion import LedgerType, OffloadContext, PendingDeletion, mark_of_holder

MANAGED_LEDGERS: Final = "/managed-ledgers"
SCHEMAS: Final = "/schemas"
_BUCKET: Final = b"#pulsar.internal.delayed.bucket"
_COMPACTION: Final = "__compaction"


class NodeKind(enum.Enum):
    """The kind of a node that names ledgers; the values are for people."""

    MANAGED_LEDGER = "managed ledger"
    CURSOR = "cursor"
    SCHEMA = "schema"


@dataclass(frozen=True, slots=True)
class Node:
    """A healthy node, and the values that it had before, oldest first."""

    path: str
    kind: NodeKind
    value: bytes
    older: tuple[bytes, ...] = ()


class Field(NamedTuple):
    """A field of a protobuf message; ``start`` and ``end`` are its bytes, with its key."""

    number: int
    wire: int
    value: int | bytes
    start: int
    end: int


class NamedCopy(NamedTuple):
    """An offloaded copy that a managed ledger lists."""

    ledger_id: int
    context: OffloadContext

    @property
    def keys(self) -> frozenset[str]:
        """The names of its objects."""
        return copy_keys(UUID(int=(self.context.msb % 2**64) << 64 | self.context.lsb % 2**64), self.ledger_id)


class ListedLedger(NamedTuple):
    """What a managed ledger says of one ledger; 0 where it says nothing."""

    ledger_id: int
    entries: int
    size: int


def fields(message: bytes) -> list[Field]:
    """Read the fields of a message; ValueError where it is none."""
    found, at = [], 0
    while at < len(message):
        start = at
        key, at = _varint(message, at)
        number, wire = key >> 3, key & 7
        if number == 0:
            raise ValueError(f"field 0 at {start}")
        value: int | bytes
        if wire == 0:
            value, at = _varint(message, at)
        elif wire in (1, 2, 5):
            length, at = _varint(message, at) if wire == 2 else ({1: 8, 5: 4}[wire], at)
            if at + length > len(message):
                raise ValueError(f"field {number} at {start} ends behind its message")
            value, at = message[at : at + length], at + length
        else:
            raise ValueError(f"field {number} at {start} has the wire type {wire}")
        found.append(Field(number, wire, value, start, at))
    return found


def kind_of(path: str) -> NodeKind | None:
    """Return the kind of the node at a path; None where none names ledgers."""
    parts = path.split("/")
    if path.startswith(f"{SCHEMAS}/"):
        return NodeKind.SCHEMA if len(parts) == 5 else None
    if "persistent" not in parts[4:6]:
        return None
    below = len(parts) - 1 - parts.index("persistent", 4)
    return {1: NodeKind.MANAGED_LEDGER, 2: NodeKind.CURSOR}.get(below)


def ledgers_named(path: str, kind: NodeKind, value: bytes) -> dict[int, Holder]:
    """Return the ledgers that a healthy node names, and whose they are."""
    if kind is NodeKind.SCHEMA:
        schema = SchemaHolder(path.removeprefix(f"{SCHEMAS}/"))
        return {
            _number(position, 1): schema
            for entry in _messages(value, 1, 2)
            for position in _messages(entry, 2)
            if _number(position, 1) >= 0
        }
    name = path.removeprefix(f"{MANAGED_LEDGERS}/")
    if kind is NodeKind.MANAGED_LEDGER:
        return {listed.ledger_id: ManagedLedgerHolder(name) for listed in ledgers_listed(value)}
    managed_ledger, _, cursor = name.rpartition("/")
    found: dict[int, Holder] = {}
    if _number(value, 1) >= 0:
        found[_number(value, 1)] = CursorHolder(managed_ledger, cursor)
    for of_compaction in _messages(value, 5):
        if _text(of_compaction, 1) == b"CompactedTopicLedger" and cursor == _COMPACTION:
            found[_number(of_compaction, 2)] = CompactedHolder(managed_ledger)
    for of_bucket in _messages(value, 8):
        if _text(of_bucket, 1).startswith(_BUCKET):
            found[int(_text(of_bucket, 2))] = BucketHolder(managed_ledger, cursor)
    return found


def ledgers_listed(value: bytes) -> list[ListedLedger]:
    """Return the entries of a managed ledger's list, in its order; ValueError for what is none."""
    return [ListedLedger(_number(one, 1), _number(one, 2, 0), _number(one, 3, 0)) for one in _messages(value, 1)]


def copies_named(value: bytes) -> list[NamedCopy]:
    """Return the finished offloaded copies that a healthy managed ledger's node names."""
    found = []
    for listed in _messages(value, 1):
        for offload in _messages(listed, 5):
            msb, lsb = _number(offload, 1, 0), _number(offload, 2, 0)
            if (msb, lsb) == (0, 0) or not _number(offload, 3, 0):
                continue
            driver = ""
            places: dict[str, str] = {}
            for metadata in _messages(offload, 6):
                driver = _text(metadata, 1).decode()
                places |= {_text(pair, 1).decode(): _text(pair, 2).decode() for pair in _messages(metadata, 2)}
            found.append(NamedCopy(_number(listed, 1), OffloadContext(msb, lsb, driver, places)))
    return found


def copy_keys(uuid: UUID, ledger_id: int) -> frozenset[str]:
    """Return the names of the objects of an offloaded copy: its data and its index."""
    data = f"{uuid}-ledger-{ledger_id}"
    return frozenset((data, f"{data}-index"))


def mark_of_copy(managed_ledger: str, copy: NamedCopy) -> PendingDeletion:
    """Make the mark of an offloaded copy."""
    made = mark_of_holder(copy.ledger_id, ManagedLedgerHolder(managed_ledger), "damage")
    return PendingDeletion(
        made.topic_name, made.component, LedgerType.OFFLOAD_LEDGER, copy.ledger_id, offload_context=copy.context
    )


def _messages(value: bytes, *numbers: int) -> Iterator[bytes]:
    for field in fields(value):
        if field.number in numbers:
            if not isinstance(field.value, bytes):
                raise ValueError(f"field {field.number} is no message")
            yield field.value


def _text(value: bytes, number: int) -> bytes:
    return next(_messages(value, number), b"")


def _number(value: bytes, number: int, default: int = -1) -> int:
    """Read an int64; the last one counts, as in every protobuf."""
    found = [field.value for field in fields(value) if field.number == number and isinstance(field.value, int)]
    last = found[-1] if found else default
    return last - 2**64 if last >= 2**63 else last


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for count in range(10):
        if at + count >= len(message):
            raise ValueError("a number is cut off")
        value |= (message[at + count] & 127) << 7 * count
        if message[at + count] < 128:
            return value % 2**64, at + count + 1
    raise ValueError(f"the number at {at} has more than ten bytes")
