"""The bytes of the nodes of brokers and bookies, as the model has them, and how a bad write damages them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.ledgers.custom_metadata import expected_custom_metadata
from bookwarden.ledgers.kinds import Holder
from bookwarden.ledgers.managed_ledger import signed_halves
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState, Segment
from bookwarden.wire.ledger_metadata import encode_ledger_metadata
from bookwarden.wire.pb import managed_ledger_pb2, schema_locator_pb2
from bookwarden.wire.protobuf import encode_varint

LEDGERS_ROOT = "/ledgers"
COUNTER = f"{LEDGERS_ROOT}/idgen"
_FIELD_20 = b"\xa2\x01"
# A message of another kind, a field that no version has, and one of the wrong type.
STRANGE = (b"\x08\x05", b"\xa2\x01\x02\x08\x01", b"\x0a\x00\x98\x06\x01")


@dataclass
class Offload:
    """The offloaded copy of a ledger: begun, complete, and the only one once the bookies' is said to be deleted."""

    uuid: UUID
    complete: bool = False
    bookkeeper_deleted: bool = False
    since_ms: int = 0


@dataclass
class DataLedger:
    """A ledger on a topic's list."""

    ledger_id: int
    entries: int = 0
    closed_ms: int = 0
    offload: Offload | None = None


@dataclass
class Cursor:
    """A subscription: its ledger of now, and what its node says since that was switched."""

    name: str
    ledger_id: int | None = None
    buckets: dict[str, int] = field(default_factory=dict)
    recorded: int | None = None


def managed_ledger(ledgers: Iterable[DataLedger], properties: Mapping[str, str]) -> bytes:
    """Render a topic's list."""
    node = managed_ledger_pb2.ManagedLedgerInfo()
    for ledger in ledgers:
        info = node.ledgerInfo.add(ledgerId=ledger.ledger_id)
        if ledger.closed_ms:
            info.entries, info.size, info.timestamp = ledger.entries, ledger.entries * 100, ledger.closed_ms
        if ledger.offload is not None:
            context = info.offloadContext
            context.uidMsb, context.uidLsb = signed_halves(ledger.offload.uuid)
            context.complete, context.bookkeeperDeleted = (
                ledger.offload.complete,
                int(ledger.offload.bookkeeper_deleted),
            )
            context.timestamp = ledger.offload.since_ms
            context.driverMetadata.name = "S3"
            context.driverMetadata.properties.add(key="bucket", value="b")
    for name, value in properties.items():
        node.properties.add(key=name, value=value)
    return node.SerializeToString()


def cursor_node(cursor: Cursor) -> bytes:
    """Render a cursor."""
    node = managed_ledger_pb2.ManagedCursorInfo(
        cursorsLedgerId=-1 if cursor.ledger_id is None else cursor.ledger_id, markDeleteLedgerId=1, markDeleteEntryId=1
    )
    if cursor.recorded is not None:
        node.properties.add(name="CompactedTopicLedger", value=cursor.recorded)
    for name, ledger_id in cursor.buckets.items():
        node.cursorProperties.add(name=f"#pulsar.internal.delayed.bucket_{name}", value=str(ledger_id))
    return node.SerializeToString()


def cursor_entry(compacted: int | None) -> bytes:
    """Render the last entry of a cursor's ledger."""
    entry = managed_ledger_pb2.PositionInfo(ledgerId=1, entryId=1)
    if compacted is not None:
        entry.properties.add(name="CompactedTopicLedger", value=compacted)
    return entry.SerializeToString()


def schema_locator(ledger_ids: Sequence[int]) -> bytes:
    """Render a schema's versions."""
    locator = schema_locator_pb2.SchemaLocator()
    for version, ledger_id in enumerate(ledger_ids):
        entry = locator.index.add(version=version, hash=b"")
        entry.position.ledgerId, entry.position.entryId = ledger_id, 0
        locator.info.CopyFrom(entry)
    return locator.SerializeToString()


def ledger_metadata(holder: Holder, *, ctime_ms: int, entries: int | None) -> bytes:
    """Render the metadata of a ledger; ``entries`` None while it is open."""
    metadata = LedgerMetadata(
        format_version=3,
        state=LedgerState.OPEN if entries is None else LedgerState.CLOSED,
        ensemble_size=1,
        write_quorum=1,
        ack_quorum=1,
        segments=(Segment(0, ("b:3181",)),),
        length=(entries or 0) * 100,
        last_entry_id=None if entries is None else entries - 1,
        digest_type="CRC32C",
        ctime_ms=ctime_ms,
        custom={name: text.encode() for name, text in expected_custom_metadata(holder).items()},
    )
    return encode_ledger_metadata(metadata)


def path_of_ledger(ledger_id: int) -> str:
    """Name the node of a ledger."""
    return ledger_path(LEDGERS_ROOT, ledger_id)


def damaged(kind: str, value: bytes, foreign: bytes, rng: Random) -> bytes:
    """Give what a bad write of this kind makes of a node."""
    if kind == "random":
        return rng.randbytes(rng.randrange(1, 60))
    if kind == "strange":
        return rng.choice(STRANGE)
    if kind == "foreign":
        return foreign
    if kind == "empty":
        return b""
    if kind == "flip":
        return _flipped(value, rng)
    if kind == "newer":
        return _newer(value, rng)
    if kind == "cut":
        return value[: rng.randrange(1, len(value))] if len(value) > 1 else b"\x01"
    parsed = managed_ledger_pb2.ManagedLedgerInfo.FromString(value)
    if len(parsed.ledgerInfo) > 2:
        # From somewhere behind the first to somewhere before the last, which is open.
        first = rng.randrange(1, len(parsed.ledgerInfo) - 1)
        del parsed.ledgerInfo[first : rng.randrange(first + 1, len(parsed.ledgerInfo))]
    return parsed.SerializeToString()


def _newer(value: bytes, rng: Random) -> bytes:
    """Move the first ledgers of a list to a field of their own, as a later version of Pulsar may do."""
    node = managed_ledger_pb2.ManagedLedgerInfo.FromString(value)
    moved = managed_ledger_pb2.ManagedLedgerInfo()
    count = rng.randrange(1, len(node.ledgerInfo) + 1)
    moved.ledgerInfo.extend(node.ledgerInfo[:count])
    del node.ledgerInfo[:count]
    data = moved.SerializeToString()
    return node.SerializeToString() + _FIELD_20 + encode_varint(len(data)) + data


def _flipped(value: bytes, rng: Random) -> bytes:
    if not value:
        return b"\x01"
    at = rng.randrange(len(value))
    return value[:at] + bytes([value[at] ^ (1 << rng.randrange(8))]) + value[at + 1 :]
