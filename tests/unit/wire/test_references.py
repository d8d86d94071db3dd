"""Nodes that refer to ledgers: managed ledgers, cursors, schemas."""

from __future__ import annotations

from uuid import UUID

import pytest

from bookwarden.errors import FormatError
from bookwarden.ledgers.managed_ledger import (
    COMPACTED_LEDGER_PROPERTY,
    DELAYED_BUCKET_PREFIX,
    LedgerInfo,
    ManagedLedgerInfo,
    OffloadInfo,
    OffloadSegment,
    Position,
    SchemaIndexEntry,
)
from bookwarden.wire.cursor import decode_cursor, decode_position_info
from bookwarden.wire.envelope import Compression, unwrap, wrap
from bookwarden.wire.managed_ledger import decode_managed_ledger, remove_ledgers
from bookwarden.wire.pb import managed_ledger_pb2 as pb
from bookwarden.wire.pb import schema_locator_pb2 as schema_pb
from bookwarden.wire.schema_locator import decode_schema_locator

UNKNOWN = b"\xfa\x01\x03new"  # field 31, three bytes
OFFLOADED = pb.OffloadContext(
    uidMsb=-2,
    uidLsb=3,
    complete=True,
    bookkeeperDeleted=1,
    timestamp=99,
    driverMetadata=pb.OffloadDriverMetadata(name="S3", properties=[pb.KeyValue(key="bucket", value="b")]),
    offloadSegment=[pb.OffloadSegment(uidMsb=4, uidLsb=5, complete=True)],
)


def _managed_ledger(*ids: int) -> bytes:
    """Write a node whose ledgers have a field that we do not know."""
    ledgers = [pb.ManagedLedgerInfo.LedgerInfo(ledgerId=one, entries=10).SerializeToString() + UNKNOWN for one in ids]
    listed = b"".join(b"\x0a" + bytes([len(ledger)]) + ledger for ledger in ledgers)
    properties = pb.ManagedLedgerInfo(properties=[pb.KeyValue(key="k", value="v")]).SerializeToString()
    return listed + properties


def test_a_managed_ledger_says_all_of_its_ledgers() -> None:
    message = pb.ManagedLedgerInfo(
        ledgerInfo=[
            pb.ManagedLedgerInfo.LedgerInfo(ledgerId=1, entries=2, size=3, timestamp=4, offloadContext=OFFLOADED),
            pb.ManagedLedgerInfo.LedgerInfo(ledgerId=5),
        ],
        terminatedPosition=pb.NestedPositionInfo(ledgerId=5, entryId=6),
        properties=[pb.KeyValue(key="k", value="v")],
    )
    offload = OffloadInfo(-2, 3, True, True, 99, "S3", {"bucket": "b"}, (OffloadSegment(4, 5, True, ""),))
    assert decode_managed_ledger(message.SerializeToString()) == ManagedLedgerInfo(
        (LedgerInfo(1, 2, 3, 4, offload), LedgerInfo(5)), {"k": "v"}, terminated=Position(5, 6)
    )
    assert offload.uuid == UUID("ffffffff-ffff-fffe-0000-000000000003")
    assert offload.segments[0].uuid == UUID("00000000-0000-0004-0000-000000000005")


def test_the_ledgers_are_by_growing_id_however_the_node_has_them() -> None:
    assert [ledger.ledger_id for ledger in decode_managed_ledger(_managed_ledger(24, 22, 23)).ledgers] == [22, 23, 24]


def test_an_empty_node_is_a_managed_ledger_without_ledgers() -> None:
    assert decode_managed_ledger(b"").ledger_ids == frozenset()


@pytest.mark.parametrize(
    "raw",
    [
        b"\x0a\x00",
        b"\x0a\x02\x10\x05",
        pb.ManagedLedgerInfo(ledgerInfo=[pb.ManagedLedgerInfo.LedgerInfo(ledgerId=-1)]).SerializeToString(),
        pb.ManagedLedgerInfo(terminatedPosition=pb.NestedPositionInfo(ledgerId=1)).SerializeToString(),
        b"\x1a\x03\x0a\x01\xff",
        b"\x0a\x05\x08",
        b"no protobuf",
    ],
)
def test_a_managed_ledger_that_cannot_be_understood_is_refused(raw: bytes) -> None:
    with pytest.raises(FormatError):
        decode_managed_ledger(raw)


@pytest.mark.parametrize("codec", [None, *Compression])
def test_removing_ledgers_leaves_all_else_as_it_was(codec: Compression | None) -> None:
    raw = _managed_ledger(3, 1, 4, 2)
    rewritten = remove_ledgers(raw if codec is None else wrap(raw, codec), [4, 3])
    assert unwrap(rewritten) == (_managed_ledger(1, 2), codec)


def test_removing_a_ledger_that_is_not_listed_is_refused() -> None:
    with pytest.raises(FormatError, match="ledger 9"):
        remove_ledgers(_managed_ledger(1), {1, 9})


def test_removing_nothing_changes_nothing() -> None:
    assert remove_ledgers(_managed_ledger(1, 2), ()) == _managed_ledger(1, 2)


def test_a_cursor_says_its_ledger_and_those_in_its_properties() -> None:
    message = pb.ManagedCursorInfo(
        cursorsLedgerId=7,
        markDeleteLedgerId=5,
        markDeleteEntryId=-1,
        properties=[pb.LongProperty(name=COMPACTED_LEDGER_PROPERTY, value=8)],
        cursorProperties=[pb.StringProperty(name=f"{DELAYED_BUCKET_PREFIX}1_2", value="9")],
    )
    cursor = decode_cursor(wrap(message.SerializeToString(), Compression.ZSTD))
    assert cursor.mark_delete == Position(5, -1)
    assert (cursor.cursors_ledger_id, cursor.compacted_ledger_id, cursor.delayed_bucket_ids) == (7, 8, {9})
    assert cursor.ledger_ids == {7, 8, 9}


def test_a_cursor_without_ledger_refers_to_none() -> None:
    cursor = decode_cursor(pb.ManagedCursorInfo(cursorsLedgerId=-1).SerializeToString())
    assert (cursor.cursors_ledger_id, cursor.mark_delete, cursor.ledger_ids) == (None, None, frozenset())


def _bucket(value: str) -> bytes:
    property_ = pb.StringProperty(name=f"{DELAYED_BUCKET_PREFIX}1_2", value=value)
    return pb.ManagedCursorInfo(cursorsLedgerId=1, cursorProperties=[property_]).SerializeToString()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        pb.ManagedCursorInfo(markDeleteLedgerId=1).SerializeToString(),
        pb.ManagedCursorInfo(cursorsLedgerId=-2).SerializeToString(),
        pb.ManagedCursorInfo(cursorsLedgerId=1, markDeleteLedgerId=1).SerializeToString(),
        _bucket("x"),
        _bucket("-1"),
        _bucket("9223372036854775808"),
        _bucket("²"),
        b"\x08\x01\x42\x03\x0a\x01\xff",
    ],
)
def test_a_cursor_that_cannot_be_understood_is_refused(raw: bytes) -> None:
    with pytest.raises(FormatError):
        decode_cursor(raw)


def test_the_last_entry_of_a_cursor_says_where_it_is() -> None:
    properties = [pb.LongProperty(name=COMPACTED_LEDGER_PROPERTY, value=8)]
    entry = decode_position_info(pb.PositionInfo(ledgerId=5, entryId=6, properties=properties).SerializeToString())
    assert (entry.mark_delete, entry.compacted_ledger_id) == (Position(5, 6), 8)


@pytest.mark.parametrize("raw", [b"", b"\x08\x01", b"\x10\x01", b"\x08\x01\x10\x01\x22\x03\x0a\x01\xff"])
def test_an_entry_that_is_no_position_is_refused(raw: bytes) -> None:
    with pytest.raises(FormatError):
        decode_position_info(raw)


def _version(version: int, ledger_id: int) -> schema_pb.IndexEntry:
    position = schema_pb.PositionInfo(ledgerId=ledger_id, entryId=0)
    return schema_pb.IndexEntry(version=version, position=position, hash=b"h")


def test_a_schema_refers_to_all_of_its_versions_but_not_to_placeholders() -> None:
    message = schema_pb.SchemaLocator(info=_version(1, 5), index=[_version(0, -1), _version(1, 4)])
    locator = decode_schema_locator(message.SerializeToString())
    assert locator.entries[0] == SchemaIndexEntry(1, Position(5, 0), b"h")
    assert locator.ledger_ids == {4, 5}


@pytest.mark.parametrize(
    ("message", "missing"),
    [
        (schema_pb.SchemaLocator(), "info"),
        (schema_pb.SchemaLocator(index=[_version(0, 1)]), "info"),
        (schema_pb.SchemaLocator(info=schema_pb.IndexEntry()), "version"),
        (schema_pb.SchemaLocator(info=schema_pb.IndexEntry(version=0)), "position"),
        (schema_pb.SchemaLocator(info=schema_pb.IndexEntry(version=0, position={"entryId": 0})), "ledgerId"),
        (schema_pb.SchemaLocator(info=schema_pb.IndexEntry(version=0, position={"ledgerId": 0})), "entryId"),
    ],
)
def test_a_schema_without_positions_is_refused(message: schema_pb.SchemaLocator, missing: str) -> None:
    with pytest.raises(FormatError, match=f"{missing} is missing"):
        decode_schema_locator(message.SerializeToString())
