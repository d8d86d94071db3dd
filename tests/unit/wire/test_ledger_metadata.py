"""Ledger metadata in its three versions, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookwarden.errors import FormatError
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState, Segment
from bookwarden.wire.ledger_metadata import (
    decode_ledger_metadata,
    decode_ledger_password,
    encode_ledger_metadata,
    with_custom_metadata,
)
from bookwarden.wire.pb import ledger_metadata_pb2 as pb

HEADER = b"BookieMetadataFormatVersion\t"
METADATA = LedgerMetadata(
    format_version=3,
    state=LedgerState.CLOSED,
    ensemble_size=2,
    write_quorum=2,
    ack_quorum=1,
    segments=(Segment(0, ("a:3181", "b:3181")), Segment(9, ("a:3181", "c:3181"))),
    length=1234,
    last_entry_id=11,
    digest_type="CRC32C",
    ctime_ms=1_700_000_000_000,
    custom={"application": b"pulsar", "component": b"managed-ledger", "binary": b"\xff\x00"},
)
VERSION_2 = b"""quorumSize: 2
ensembleSize: 2
length: 1234
lastEntryId: 11
state: CLOSED
segment { ensembleMember: "a:3181" ensembleMember: "b:3181" firstEntryId: 0 }
segment { ensembleMember: "a:3181" ensembleMember: "c:3181" firstEntryId: 9 }
digestType: CRC32C
password: "sesame"
ackQuorumSize: 1
ctime: 1700000000000
customMetadata { key: "application" value: "pulsar" }
customMetadata { key: "component" value: "managed-ledger" }
customMetadata { key: "binary" value: "\\377\\000" }
"""


def _binary(change: Callable[[pb.LedgerMetadataFormat], object]) -> bytes:
    message = pb.LedgerMetadataFormat(quorumSize=1, ensembleSize=1, length=0, state="OPEN")
    message.segment.add(ensembleMember=["a:3181"], firstEntryId=0)
    change(message)
    body = message.SerializeToString()
    return HEADER + b"3\n" + bytes([len(body)]) + body


def test_custom_metadata_is_changed_and_all_else_stays() -> None:
    raw = encode_ledger_metadata(METADATA, password=b"sesame")
    changed = with_custom_metadata(raw, {"component": "schema", "application": "pulsar", "absent": "x"})
    expected = METADATA._replace(custom={**METADATA.custom, "component": b"schema"})
    assert decode_ledger_metadata(changed) == expected
    assert decode_ledger_password(changed) == b"sesame"
    assert with_custom_metadata(changed, {"component": "managed-ledger"}) == raw
    with pytest.raises(FormatError, match="another version than 3"):
        with_custom_metadata(HEADER + b"2\n" + VERSION_2, {})


def test_version_3_is_read_back_as_written() -> None:
    raw = encode_ledger_metadata(METADATA, password=b"sesame")
    assert raw.startswith(HEADER + b"3\n")
    assert decode_ledger_metadata(raw) == METADATA


def test_version_2_says_the_same() -> None:
    assert decode_ledger_metadata(HEADER + b"2\n" + VERSION_2) == METADATA._replace(format_version=2)


@pytest.mark.parametrize(
    ("last", "state", "last_entry"),
    [
        (b"", LedgerState.OPEN, None),
        (b"\n11\tCLOSED", LedgerState.CLOSED, 11),
        (b"\n-102\tCLOSED", LedgerState.IN_RECOVERY, None),
    ],
)
def test_version_1_is_lines_of_text(last: bytes, state: LedgerState, last_entry: int | None) -> None:
    raw = HEADER + b"1\n1\n2\n1234\n0\ta:3181\tb:3181\n9\ta:3181\tc:3181" + last
    assert decode_ledger_metadata(raw) == LedgerMetadata(1, state, 2, 1, 1, METADATA.segments, 1234, last_entry)


def test_what_the_format_leaves_open_is_left_open() -> None:
    metadata = decode_ledger_metadata(_binary(lambda message: None))
    assert (metadata.ack_quorum, metadata.ctime_ms, metadata.digest_type, metadata.last_entry_id) == (
        1,
        None,
        None,
        None,
    )
    assert dict(metadata.custom) == {}


def test_the_password_is_in_no_value_and_no_error() -> None:
    for raw in (encode_ledger_metadata(METADATA, password=b"sesame"), HEADER + b"2\n" + VERSION_2):
        assert "sesame" not in repr(decode_ledger_metadata(raw))
    broken = [
        HEADER + b'2\npassword: "sesame" "sesame" nonsense: sesame',
        HEADER + b'2\npassword: "sesame',
        HEADER + b'2\npassword: "sesame\xff"',
        encode_ledger_metadata(METADATA, password=b"sesame")[:-1],
    ]
    for raw in broken:
        with pytest.raises(FormatError) as caught:
            decode_ledger_metadata(raw)
        assert "sesame" not in str(caught.value)
        assert "sesame" not in str(caught.value.__cause__)
        assert caught.value.__cause__ is None or raw.startswith(HEADER + b"3")


@pytest.mark.parametrize(
    "change",
    [
        lambda message: message.ClearField("state"),
        lambda message: message.ClearField("length"),
        lambda message: message.ClearField("quorumSize"),
        lambda message: message.ClearField("ensembleSize"),
        lambda message: message.ClearField("segment"),
        lambda message: setattr(message, "state", pb.LedgerMetadataFormat.CLOSED),
        lambda message: setattr(message, "length", -1),
        lambda message: setattr(message, "quorumSize", 0),
        lambda message: setattr(message, "quorumSize", 2),
        lambda message: setattr(message, "ensembleSize", 2),
        lambda message: setattr(message, "ackQuorumSize", 2),
        lambda message: setattr(message, "ackQuorumSize", -1),
        lambda message: setattr(message.segment[0], "firstEntryId", -1),
        lambda message: message.segment[0].ensembleMember.append("b:3181"),
        lambda message: message.segment.add(ensembleMember=["a:3181"], firstEntryId=0),
        lambda message: [message.customMetadata.add(key="application", value=value) for value in (b"pulsar", b"other")],
        lambda message: message.customMetadata.add(value=b"pulsar"),
        lambda message: message.MergeFromString(b"\x28\x03\x20" + b"\xfe" + b"\xff" * 8 + b"\x01"),
        lambda message: message.MergeFromString(b"\x5a\x05\x12\x03abc"),
    ],
)
def test_what_bookkeeper_could_not_have_written_is_refused(change: Callable[[pb.LedgerMetadataFormat], object]) -> None:
    decode_ledger_metadata(_binary(lambda message: None))
    with pytest.raises(FormatError):
        decode_ledger_metadata(_binary(change))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        HEADER,
        HEADER + b"4\n",
        HEADER + b"3\n",
        HEADER + b"3\n" + b"\xff" * 10,
        HEADER
        + b"3\n"
        + b"\x19"
        + b"\x08\x01\x10\x01\x18\x00\x28\x01\x32\x05\x0a\x01\x61\x10\x00\x5a\x06\x0a\x01\xff\x12\x01\x62",
        encode_ledger_metadata(METADATA) + b"x",
        encode_ledger_metadata(METADATA) + b"\x78\x01",
        encode_ledger_metadata(METADATA)[:-1],
        HEADER + b"2\nquorumSize: 1",
        HEADER + b"2\n" + VERSION_2 + b"more: 1",
        HEADER + b"1\n",
        HEADER + b"1\n1\n1\nx\n0\ta",
        HEADER + b"1\n1\n1\n99999999999999999999\n0\ta",
        HEADER + b"1\n1\n1\n0\n5\tCLOSED",
        HEADER + b"1\n1\n1\n0\n0\ta\n-2\tCLOSED",
        HEADER + b"1\n1\n1\n0\n0\ta\n1\tCLOSED\n2\tb",
        HEADER + b"1\n1\n1\n0\n0\t\xff",
    ],
)
def test_bytes_that_are_no_ledger_metadata_are_refused(raw: bytes) -> None:
    with pytest.raises(FormatError):
        decode_ledger_metadata(raw)


_ENSEMBLE = st.lists(st.text("abc:.1", min_size=1), min_size=2, max_size=2).map(tuple)


@given(
    length=st.integers(0, 2**63 - 1),
    last_entry=st.integers(-1, 2**63 - 1),
    starts=st.sets(st.integers(0, 2**63 - 1), min_size=1, max_size=4),
    ensemble=_ENSEMBLE,
    custom=st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])).filter(bool), st.binary(), max_size=4),
)
def test_any_ledger_metadata_is_read_back_as_written(
    length: int, last_entry: int, starts: set[int], ensemble: tuple[str, ...], custom: dict[str, bytes]
) -> None:
    segments = tuple(Segment(start, ensemble) for start in sorted(starts))
    metadata = METADATA._replace(segments=segments, length=length, last_entry_id=last_entry, custom=custom)
    assert decode_ledger_metadata(encode_ledger_metadata(metadata)) == metadata
