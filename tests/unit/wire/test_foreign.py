"""Bytes of other messages, and fields that a message cannot have, are refused: they never say "names no ledger"."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookwarden.clusters.pulsar.references.nodes import managed_ledger_node
from bookwarden.errors import FormatError
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState, Segment
from bookwarden.pipelines.columns.topics import TopicRows
from bookwarden.wire.cursor import decode_cursor, decode_position_info
from bookwarden.wire.envelope import Compression, wrap
from bookwarden.wire.ledger_metadata import encode_ledger_metadata
from bookwarden.wire.managed_ledger import decode_managed_ledger, remove_ledgers
from bookwarden.wire.pb import managed_ledger_pb2 as pb
from bookwarden.wire.pb import schema_locator_pb2 as schema_pb
from bookwarden.wire.protobuf import encode_varint
from bookwarden.wire.schema_locator import decode_schema_locator

SAMPLES = json.loads((Path(__file__).parents[2] / "data/pulsar_4_0_8_nodes.json").read_text())["samples"]
RECORDED = {path: base64.b64decode(value) for sample in SAMPLES for path, value in sample["nodes"].items()}
METADATA = LedgerMetadata(
    3, LedgerState.CLOSED, 1, 1, 1, (Segment(0, ("a:1",)),), 9, 3, "CRC32C", 5, {"application": b"p"}
)

ids = st.integers(1, 2**63 - 1)
texts = st.text("ab/", max_size=4)
properties = st.lists(st.builds(pb.KeyValue, key=texts, value=texts), max_size=2)
longs = st.lists(st.builds(pb.LongProperty, name=texts, value=ids), max_size=2)
nested = st.builds(pb.NestedPositionInfo, ledgerId=ids, entryId=ids)
ranges = st.lists(nested.map(lambda at: b"\x0a" + encode_varint(at.ByteSize()) + at.SerializeToString()), max_size=2)

topics = st.builds(
    pb.ManagedLedgerInfo,
    ledgerInfo=st.lists(st.builds(pb.ManagedLedgerInfo.LedgerInfo, ledgerId=ids, entries=ids), min_size=1, max_size=3),
    terminatedPosition=st.none() | nested,
    properties=properties,
)
cursors = st.builds(
    pb.ManagedCursorInfo,
    cursorsLedgerId=ids,
    markDeleteLedgerId=ids,
    markDeleteEntryId=ids,
    individualDeletedMessages=ranges,
    properties=longs,
    lastActive=st.none() | ids,
    batchedEntryDeletionIndexInfo=ranges,
    cursorProperties=st.lists(st.builds(pb.StringProperty, name=texts, value=texts), max_size=2),
)
positions = st.builds(
    pb.PositionInfo, ledgerId=ids, entryId=ids, individualDeletedMessages=ranges, properties=longs,
    batchedEntryDeletionIndexInfo=ranges, individualDeletedMessageRanges=ranges,
)  # fmt: skip
versions = st.builds(
    schema_pb.IndexEntry,
    version=ids,
    position=st.builds(schema_pb.PositionInfo, ledgerId=ids, entryId=ids),
    hash=st.binary(max_size=3),
)
schemas = st.builds(schema_pb.SchemaLocator, info=versions, index=st.lists(versions, max_size=2))
MESSAGES = {"topic": topics, "cursor": cursors, "position": positions, "schema": schemas}
DECODERS: dict[str, Callable[[bytes], object]] = {
    "topic": decode_managed_ledger,
    "cursor": decode_cursor,
    "position": decode_position_info,
    "schema": decode_schema_locator,
}


@pytest.mark.parametrize("kind", MESSAGES)
@given(data=st.data())
def test_what_brokers_write_is_read_by_its_own_decoder_alone(kind: str, data: st.DataObject) -> None:
    raw = data.draw(MESSAGES[kind]).SerializeToString()
    for other, decode in DECODERS.items():
        if other == kind:
            decode(raw)
        else:
            with pytest.raises(FormatError):
                decode(raw)


@pytest.mark.parametrize("path", sorted(RECORDED))
def test_recorded_nodes_are_no_managed_ledgers_but_those_of_managed_ledgers(path: str) -> None:
    if path.startswith("/managed-ledgers/") and path.count("/") == 5:
        assert decode_managed_ledger(RECORDED[path]).puzzling == frozenset()
        return
    with pytest.raises(FormatError):
        decode_managed_ledger(RECORDED[path])
    if path.startswith("/managed-ledgers/"):
        decode_cursor(RECORDED[path])


def test_the_metadata_of_a_ledger_is_no_managed_ledger_and_no_cursor() -> None:
    raw = encode_ledger_metadata(METADATA, password=b"p")
    body = raw.removeprefix(b"BookieMetadataFormatVersion\t3\n")
    for value in (raw, body, body[1:], wrap(body[1:], Compression.ZSTD)):
        for decode in (decode_managed_ledger, decode_cursor):
            with pytest.raises(FormatError):
                decode(value)


# A field that is no managed ledger's: of an unknown number, or of a known one with another type.
fields = st.one_of(
    st.builds(lambda number, value: encode_varint(number << 3) + encode_varint(value), st.integers(1, 99), ids),
    st.builds(
        lambda number, value: encode_varint(number << 3 | 2) + encode_varint(len(value)) + value,
        st.integers(4, 99),
        st.binary(max_size=5),
    ),
    st.builds(lambda number: encode_varint(number << 3 | 1) + bytes(8), st.integers(1, 99)),
    st.builds(lambda number: encode_varint(number << 3 | 5) + bytes(4), st.integers(1, 99)),
)


def taken_together(value: bytes) -> bool:
    """Whether the scan takes the topic's rows without the careful decoder."""
    (taken,) = TopicRows("zk:a")([managed_ledger_node("t/n/persistent/topic")], [value])
    return taken


@given(st.lists(fields, min_size=1, max_size=3).map(b"".join), topics, st.booleans())
def test_a_field_that_a_managed_ledger_cannot_have_is_refused_wherever_it_stands(
    foreign: bytes, topic: pb.ManagedLedgerInfo, before: bool
) -> None:
    whole = topic.SerializeToString()
    for value in (foreign, foreign + whole if before else whole + foreign):
        assert not taken_together(value)
        with pytest.raises(FormatError):
            decode_managed_ledger(value)
        with pytest.raises(FormatError):
            remove_ledgers(value, [])


def listing(ledger: bytes) -> bytes:
    return b"\x0a" + encode_varint(len(ledger)) + ledger


NEW_FIELD = b"\x7a\x03new"  # field 15, three bytes
COPY = pb.OffloadContext(uidMsb=1, uidLsb=2, complete=True).SerializeToString()


@pytest.mark.parametrize("more", [NEW_FIELD, b"\x2a" + encode_varint(len(COPY + NEW_FIELD)) + COPY + NEW_FIELD])
def test_a_ledger_of_which_something_unknown_is_said_is_listed_and_named_as_such(more: bytes) -> None:
    value = listing(b"\x08\x07" + more) + listing(b"\x08\x09")
    info = decode_managed_ledger(value)
    assert (info.ledger_ids, info.puzzling) == ({7, 9}, {7})
    assert [ledger.ledger_id for ledger in info.understood] == [9]
    assert remove_ledgers(value, [9]) == listing(b"\x08\x07" + more)
    assert not taken_together(value)


@pytest.mark.parametrize(
    "ledger",
    [
        b"\x08\x07\x12\x01a",
        b"\x08\x07\x28\x01",
        b"\x08\x07\x2a\x02\x0a\x00",
        b"\x08\x07\x2a\x04\x32\x02\x08\x01",
        b"\x08\x07\x2a\x04\x3a\x02\x0a\x00",
    ],
    ids=["entries", "offload context", "UUID", "driver", "segment"],
)
def test_a_field_of_a_ledger_that_is_of_another_type_is_refused(ledger: bytes) -> None:
    assert not taken_together(listing(ledger))
    with pytest.raises(FormatError, match="ledger 7"):
        decode_managed_ledger(listing(ledger))


@pytest.mark.parametrize("entry", [b"\x0a\x01k\x10\x01", b"\x0a\x01k", b"\x12\x01v"])
def test_a_property_that_is_not_whole_is_refused(entry: bytes) -> None:
    with pytest.raises(FormatError, match="property"):
        decode_managed_ledger(listing(b"\x08\x07") + b"\x1a" + bytes([len(entry)]) + entry)
    cursor = pb.ManagedCursorInfo(cursorsLedgerId=1).SerializeToString()
    with pytest.raises(FormatError, match="property"):
        decode_cursor(cursor + b"\x42" + bytes([len(entry)]) + entry)
