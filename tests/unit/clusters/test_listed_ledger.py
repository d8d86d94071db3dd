"""Both kinds of listing say what the decoder says, whatever the bytes, and that what protobuf's runtime says."""

from __future__ import annotations

import base64
import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookwarden.clusters.bookkeeper.listing import PieceOfLedgers, listed_ledger
from bookwarden.errors import FormatError
from bookwarden.ledgers.custom_metadata import describe_custom_metadata, expected_custom_metadata, identify_holder
from bookwarden.ledgers.kinds import (
    BucketHolder,
    CompactedHolder,
    CursorHolder,
    Holder,
    LedgerComponent,
    ManagedLedgerHolder,
    SchemaHolder,
)
from bookwarden.ledgers.listing import ListedLedger
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState, Segment
from bookwarden.metastore.interface import Versioned
from bookwarden.pipelines.columns import ledgers as scan_ledgers
from bookwarden.pipelines.columns.ledgers import ledger_table
from bookwarden.wire.ledger_metadata import (
    decode_ledger_metadata,
    decode_segments,
    encode_ledger_metadata,
    encode_segments,
)
from bookwarden.wire.pb import ledger_metadata_pb2 as pb
from bookwarden.wire.protobuf import encode_varint

SAMPLES = json.loads((Path(__file__).parents[2] / "data/pulsar_4_0_8_nodes.json").read_text())["samples"]
RECORDED = [
    base64.b64decode(value)
    for sample in SAMPLES
    for path, value in sample["nodes"].items()
    if path.startswith("/ledgers/")
]
HEADER = b"BookieMetadataFormatVersion\t"
ML = "t/n/persistent/x"
KINDS: list[tuple[Holder, LedgerComponent]] = [
    (ManagedLedgerHolder(ML), LedgerComponent.MANAGED_LEDGER),
    (CursorHolder(ML, "s%2F1"), LedgerComponent.MANAGED_CURSOR),
    (SchemaHolder("t/n/x"), LedgerComponent.SCHEMA_STORAGE),
    (CompactedHolder(ML), LedgerComponent.COMPACTED_LEDGER),
    (BucketHolder(ML, "s%2F1"), LedgerComponent.DELAYED_INDEX_BUCKET),
]


def body_of(value: bytes) -> bytes:
    """Cut the message out of a value of version 3."""
    delimited_body = value[len(HEADER) + 2 :]
    size = next(at for at, byte in enumerate(delimited_body) if byte < 0x80 or at == 4) + 1
    return delimited_body[size:]


def check_parts(metadata: LedgerMetadata, whole: pb.LedgerMetadataFormat) -> None:
    """Hold what is decoded by itself and shared against the message as protobuf's runtime decodes it as a whole."""
    assert metadata.segments == tuple(Segment(part.firstEntryId, tuple(part.ensembleMember)) for part in whole.segment)
    assert metadata.custom == {entry.key: entry.value for entry in whole.customMetadata}
    assert (metadata.state.value, metadata.length) == (whole.state, whole.length)


def by_the_decoder(value: bytes) -> ListedLedger:
    try:
        metadata = decode_ledger_metadata(value)
    except FormatError as error:
        return ListedLedger(7, "/p", 3, 9, problem=str(error))
    if metadata.format_version == 3:
        check_parts(metadata, pb.LedgerMetadataFormat.FromString(body_of(value)))
    holder = identify_holder(metadata.custom)
    entries = 0 if metadata.last_entry_id is None else min(2**50, metadata.last_entry_id + 1)
    return ListedLedger(
        *(7, "/p", 3, 9, metadata.ctime_ms, metadata.state.name, metadata.length),
        kind=holder and dict(KINDS_BY_TYPE)[type(holder)].name,
        holder=holder and str(holder),
        custom=None if holder else describe_custom_metadata(metadata.custom),
        entries=entries,
        disk_bytes=min(2**50, metadata.write_quorum * (metadata.length + 40 * entries)),
        segments=encode_segments(metadata.segments),
    )


def canonical(row: ListedLedger) -> ListedLedger:
    """Encode the segments of a row anew: on columns they are taken as they are."""
    return row if row.segments is None else row._replace(segments=encode_segments(decode_segments(row.segments)))


KINDS_BY_TYPE = [(type(holder), component) for holder, component in KINDS]


def table_rows(values: list[bytes]) -> list[ListedLedger]:
    """List all of them together, on whole columns, as a scan does."""
    nodes = [Versioned(value, 3, 9) for value in values]
    found = PieceOfLedgers([7] * len(values), ["/p"] * len(values), nodes, len(values), "", [])
    return [canonical(ListedLedger(**row)) for row in ledger_table(found).to_pylist()]


def listed_row(value: bytes) -> ListedLedger:
    """List it as a row by itself, and as one of a table beside others."""
    row = listed_ledger(7, "/p", value, 3, 9)
    assert table_rows([RECORDED[0], value, RECORDED[1]])[1] == row
    return row


def metadata(custom: dict[str, bytes], **fields: object) -> LedgerMetadata:
    values = {"state": LedgerState.CLOSED, "length": 10, "last_entry_id": 3, "ctime_ms": 5, **fields}
    ensemble = (Segment(0, ("a:1", "b:1")), Segment(4, ("a:1", "c:1")))
    return LedgerMetadata(3, ensemble_size=2, write_quorum=2, ack_quorum=1, segments=ensemble, custom=custom, **values)  # type: ignore[arg-type]  # free-form fields


def delimited(body: bytes) -> bytes:
    return HEADER + b"3\n" + encode_varint(len(body)) + body


def field(number: int, wire_type: int, payload: bytes) -> bytes:
    return encode_varint(number << 3 | wire_type) + payload


def varint(value: int) -> bytes:
    return encode_varint(value % 2**64)


# Values near the limits that the decoders check, and a state and a digest that nobody defined.
NUMBERS = [-(2**63), -103, -2, -1, 0, 1, 2, 3, 4, 5, 2**31, 2**32, 2**63 - 1]
numbers = st.sampled_from(NUMBERS).map(varint)
names = st.sampled_from(
    [b"application", b"component", b"pulsar", b"managed-ledger", b"pulsar/managed-ledger", b"", b"\xff"]
)


def delimited_field(number: int, payload: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return payload.map(lambda inner: field(number, 2, encode_varint(len(inner)) + inner))


numeric_fields = st.builds(lambda number, value: field(number, 0, value), st.integers(1, 12), numbers)
segments = st.builds(
    lambda members, first: b"".join(members) + first,
    st.lists(delimited_field(1, names), max_size=3),
    st.one_of(st.just(b""), numbers.map(lambda value: field(2, 0, value))),
)
customs = st.builds(
    lambda *parts: b"".join(parts),
    st.one_of(st.just(b""), delimited_field(1, names)),
    st.one_of(st.just(b""), delimited_field(2, names)),
)
garbage = st.binary(max_size=8)
bodies = st.lists(
    st.one_of(
        numeric_fields,
        delimited_field(6, segments),
        delimited_field(11, customs),
        delimited_field(6, garbage),
        delimited_field(11, garbage),
        delimited_field(8, garbage),
        garbage,
    ),
    max_size=12,
).map(b"".join)

# One that is whole, with more fields behind it: the last of each counts, and those that repeat are added.
WHOLE = pb.LedgerMetadataFormat(quorumSize=2, ackQuorumSize=1, ensembleSize=2, length=8, lastEntryId=1, state="CLOSED")
WHOLE.segment.add(ensembleMember=["a", "b"], firstEntryId=0)


# Its fields one by one, and what else each may be.
FIELDS = {1: varint(2), 2: varint(2), 3: varint(8), 4: varint(1), 5: varint(3), 9: varint(1)}
SEGMENT = pb.LedgerMetadataFormat.Segment(ensembleMember=["a", "b"], firstEntryId=5).SerializeToString()
SEGMENTS = [SEGMENT[:-1] + value for value in map(varint, NUMBERS)] + [SEGMENT[:-2], SEGMENT[3:], b"\xff", b""]


@pytest.mark.parametrize("ack", [0, 1])
@pytest.mark.parametrize("state", [1, 2, 3])
@pytest.mark.parametrize("number", FIELDS)
def test_a_field_that_is_missing_or_impossible_is_listed_as_it_is_decoded(number: int, state: int, ack: int) -> None:
    begin = field(6, 2, b"\x08\x0a\x01a\x0a\x01b\x10\x00")
    fields = {**FIELDS, 5: varint(state), 9: varint(ack)}
    for value in [b"", *map(varint, NUMBERS)]:
        changed = {**fields, number: value}
        body = begin + b"".join(field(at, 0, inner) for at, inner in changed.items() if inner)
        assert listed_row(delimited(body)) == by_the_decoder(delimited(body))


def test_segments_that_do_not_fit_are_listed_as_they_are_decoded() -> None:
    fields = b"".join(field(at, 0, inner) for at, inner in FIELDS.items())
    for first in [None, *SEGMENTS]:
        for second in [None, *SEGMENTS]:
            chosen = [part for part in (first, second) if part is not None]
            body = fields + b"".join(field(6, 2, encode_varint(len(part)) + part) for part in chosen)
            assert listed_row(delimited(body)) == by_the_decoder(delimited(body))


@pytest.mark.parametrize("value", RECORDED, ids=range(len(RECORDED)))
def test_a_recorded_node_is_listed_as_it_is_decoded(value: bytes) -> None:
    assert listed_row(value) == by_the_decoder(value)
    assert listed_row(value).problem is None


def test_what_brokers_write_today_is_read_on_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [by_the_decoder(value) for value in RECORDED]
    monkeypatch.setattr(scan_ledgers, "listed_ledger", None)
    assert table_rows(RECORDED) == expected


def test_a_table_keeps_the_order_of_usual_and_unusual_ledgers() -> None:
    former = HEADER + b"1\n1\n1\n0\n0\ta:3181\n5\tCLOSED"
    values = [former, RECORDED[0], b"", former, *RECORDED, former[:-1]]
    assert table_rows(values) == [by_the_decoder(value) for value in values]
    assert table_rows([]) == []


@pytest.mark.parametrize(("holder", "component"), KINDS, ids=lambda part: getattr(part, "name", None))
def test_a_ledger_is_listed_with_its_kind_and_holder(holder: Holder, component: LedgerComponent) -> None:
    custom = {name: text.encode() for name, text in expected_custom_metadata(holder).items()}
    value = metadata(custom)
    row = listed_row(encode_ledger_metadata(value, password=b"secret"))
    assert row[:9] == (7, "/p", 3, 9, 5, "CLOSED", 10, component.name, str(holder))
    assert (row.entries, row.disk_bytes) == (4, 2 * (10 + 40 * 4))
    assert decode_segments(row.segments or b"") == value.segments


def custom_entry(*parts: tuple[int, bytes]) -> bytes:
    inner = b"".join(field(number, 2, encode_varint(len(text)) + text) for number, text in parts)
    return field(11, 2, encode_varint(len(inner)) + inner)


def said(key: bytes, text: bytes) -> bytes:
    return custom_entry((1, key), (2, text))


SAID = [said(b"application", b"pulsar"), said(b"component", b"managed-ledger")]
NAME = b"pulsar/managed-ledger"
# The last two are longer than one byte tells, and than a value may be that is read on columns.
TOPICS = [ML.encode(), b"", b"t/n/persistent/%7E", "t/n/persistent/ü".encode(), b"\xff", b"n" * 200, b"n" * 2_000]
custom_entries = st.sampled_from(
    [
        *(3 * SAID),
        *(said(NAME, topic) for topic in TOPICS),
        said(b"application", b"pulsa"),
        SAID[0] + said(b"application", b"pulsar"),
        custom_entry((1, b"application"), (2, b"pulsar"), (2, b"another")),
        said(b"component", b"schema"),
        said(b"pulsar/cursor", b"s"),
        said(b"other", b"x"),
        custom_entry((2, ML.encode()), (1, NAME)),
        custom_entry((1, NAME)),
        custom_entry((1, NAME), (2, b"first"), (2, b"second")),
        custom_entry((1, NAME), (2, b"t/n/persistent/x"), (3, b"more")),
        # The length of the name has more bytes than it needs or may have, is below zero, too large, too small, or none.
        *(
            field(11, 2, encode_varint(2 + len(NAME) + 1 + len(rest)) + b"\x0a\x15" + NAME + b"\x12" + rest)
            for rest in (b"\x81\x00x", b"\x80" * 10 + b"\x01x", varint(-3), b"\x05x", b"\x01xy", b"")
        ),
    ]
)


@settings(max_examples=500)
@given(
    st.lists(
        st.one_of(
            custom_entries.flatmap(lambda entry: st.permutations([*SAID, entry])),
            st.tuples(st.sampled_from(SAID), custom_entries).flatmap(
                lambda two: st.permutations([*two, said(NAME, TOPICS[0])])
            ),
            st.lists(custom_entries, max_size=4),
        ),
        max_size=6,
    )
)
def test_any_custom_metadata_is_listed_as_it_is_decoded(ledgers: list[list[bytes]]) -> None:
    values = [delimited(WHOLE.SerializeToString() + b"".join(entries)) for entries in ledgers]
    assert table_rows(values) == [by_the_decoder(value) for value in values]


@pytest.mark.parametrize("topic", [ML.encode(), b"n" * 200])
def test_data_ledgers_are_understood_on_columns_in_whatever_order_their_custom_metadata_is(
    topic: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = list(itertools.permutations([*SAID, said(NAME, topic)]))
    values = [delimited(WHOLE.SerializeToString() + b"".join(entries)) for entries in orders]
    monkeypatch.setattr(scan_ledgers, "meaning_of", None)
    monkeypatch.setattr(scan_ledgers, "listed_ledger", None)
    assert table_rows(values) == [by_the_decoder(value) for value in values]
    assert {row.holder for row in table_rows(values)} == {topic.decode()}


def test_a_ledger_of_somebody_else_is_described() -> None:
    custom = {"application": b"bk-stream-storage-service", "id": b"\xff\x00"}
    row = listed_row(encode_ledger_metadata(metadata(custom)))
    assert (row.kind, row.holder, row.custom) == (None, None, "application=bk-stream-storage-service, id=<2 bytes>")
    assert listed_row(encode_ledger_metadata(metadata({}))).custom == "nothing (no custom metadata)"


def test_an_open_ledger_without_times_is_listed() -> None:
    row = listed_row(encode_ledger_metadata(metadata({}, state=LedgerState.OPEN, length=0, ctime_ms=None)))
    assert (row.state, row.length, row.ctime_ms, row.problem) == ("OPEN", 0, None, None)


@pytest.mark.parametrize("size", [0, 100, 1_800, 2_000, 20_000, 200_000])
def test_metadata_of_any_size_is_listed(size: int) -> None:
    value = encode_ledger_metadata(metadata({"k": b"v" * size}))
    assert listed_row(value) == by_the_decoder(value)
    assert listed_row(value + b"x").problem == by_the_decoder(value + b"x").problem is not None


@pytest.mark.parametrize("version", [1, 2])
def test_the_former_formats_are_listed(version: int) -> None:
    text = {
        1: b"1\n1\n1\n0\n0\ta:3181\n5\tCLOSED",
        2: b'2\nquorumSize: 1 ensembleSize: 1 length: 7 state: OPEN segment { ensembleMember: "a" firstEntryId: 0 }',
    }[version]
    row = listed_row(HEADER + text)
    assert row == by_the_decoder(HEADER + text)
    assert (row.state, row.problem) == ("CLOSED" if version == 1 else "OPEN", None)


@given(st.one_of(st.binary(max_size=60), st.binary(max_size=60).map(lambda tail: HEADER + b"3\n" + tail)))
def test_arbitrary_bytes_are_listed_as_they_are_decoded(value: bytes) -> None:
    assert listed_row(value) == by_the_decoder(value)


@settings(max_examples=1000)
@given(bodies, st.sampled_from([b"", WHOLE.SerializeToString()]))
def test_arbitrary_fields_are_listed_as_they_are_decoded(body: bytes, before: bytes) -> None:
    value = delimited(before + body)
    assert listed_row(value) == by_the_decoder(value)


@settings(max_examples=500)
@given(st.sampled_from(RECORDED), st.data())
def test_a_damaged_node_is_listed_as_it_is_decoded(value: bytes, data: st.DataObject) -> None:
    damaged = bytearray(value)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(damaged[: data.draw(st.integers(0, len(damaged)))] if data.draw(st.booleans()) else damaged)
    assert listed_row(cut) == by_the_decoder(cut)


def test_groups_nested_as_deep_as_the_runtime_allows_are_listed_as_they_are_decoded() -> None:
    for depth in range(95, 105):
        nested = field(15, 3, b"") * depth + field(15, 4, b"") * depth
        for number in (6, 11):
            value = delimited(WHOLE.SerializeToString() + field(number, 2, encode_varint(len(nested)) + nested))
            assert listed_row(value) == by_the_decoder(value)
