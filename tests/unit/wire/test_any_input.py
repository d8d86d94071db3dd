"""Whatever the bytes, a decoder returns or raises its own error."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kazoo.exceptions import ConnectionLoss
from kazoo.retry import KazooRetry, RetryFailedError

from bookwarden.errors import FormatError
from bookwarden.ledgers.kinds import LedgerComponent
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState, Segment
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.pending_deletion import LedgerType, OffloadContext, PendingDeletion
from bookwarden.wire.avro import PendingDeletionCodec, parse_writer_schema, registry_schema
from bookwarden.wire.cursor import decode_cursor, decode_position_info
from bookwarden.wire.envelope import Compression, unwrap, wrap
from bookwarden.wire.ledger_metadata import decode_ledger_metadata, encode_ledger_metadata
from bookwarden.wire.managed_ledger import decode_managed_ledger, remove_ledgers
from bookwarden.wire.schema_locator import decode_schema_locator

SAMPLES = json.loads((Path(__file__).parents[2] / "data/pulsar_4_0_8_nodes.json").read_text())["samples"]
CODEC = PendingDeletionCodec()
HEADER = b"BookieMetadataFormatVersion\t"
METADATA = LedgerMetadata(
    3, LedgerState.CLOSED, 1, 1, 1, (Segment(0, ("a:1",)),), 9, 3, "CRC32C", 5, {"application": b"p"}
)
DELETION = PendingDeletion(
    *("persistent://t/n/x", LedgerComponent.MANAGED_LEDGER, LedgerType.OFFLOAD_LEDGER, 7),
    offload_context=OffloadContext(1, 2, "S3", {"bucket": "b"}),
)
OTHER_WRITER = parse_writer_schema(
    json.dumps(
        {
            "type": "record",
            "name": "Any",
            "fields": [
                {"name": "ledgerId", "type": ["null", "long", "double", "boolean", "bytes"]},
                {"name": "topicName", "type": ["string", {"type": "fixed", "name": "Four", "size": 4}]},
                {"name": "ledgerType", "type": {"type": "enum", "name": "E", "symbols": ["LEDGER", "B"]}},
                {"name": "list", "type": {"type": "array", "items": {"type": "map", "values": "float"}}},
                {"name": "day", "type": {"type": "int", "logicalType": "date"}},
                {"name": "sum", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4}},
            ],
        }
    )
)


def _nodes(ending: str) -> list[bytes]:
    return [
        base64.b64decode(value)
        for sample in SAMPLES
        for path, value in sample["nodes"].items()
        if path.startswith("/managed-ledgers/") and path.endswith(ending)
    ]


@dataclass(frozen=True)
class Case:
    name: str
    decode: Callable[[bytes], object]
    valid: list[bytes]


V3 = encode_ledger_metadata(METADATA, password=b"p")
V2 = HEADER + b'2\nquorumSize: 1 ensembleSize: 1 length: 0 state: OPEN segment { ensembleMember: "a" firstEntryId: 0 }'
V1 = HEADER + b"1\n1\n1\n0\n0\ta:3181\n5\tCLOSED"
SCHEMA = [base64.b64decode(v) for s in SAMPLES for path, v in s["nodes"].items() if path.startswith("/schemas/")]
CASES = [
    Case("envelope", unwrap, [wrap(b"abc" * 30, codec) for codec in Compression]),
    Case("managed ledger", decode_managed_ledger, _nodes("") or [b""]),
    Case("rewrite", lambda raw: remove_ledgers(raw, [5]), _nodes("")),
    Case("cursor", decode_cursor, [*_nodes("__compaction"), *_nodes("sub%2Fone")]),
    Case("position", decode_position_info, [b"\x08\x05\x10\x06\x22\x05\x0a\x01a\x10\x01"]),
    Case("schema locator", decode_schema_locator, SCHEMA),
    Case("ledger metadata", decode_ledger_metadata, [V3, V2, V1]),
    Case("own mark", CODEC.decode, [CODEC.encode(DELETION), b'{"ledgerId": 1, "topicName": "t/n/x"}']),
    Case("other mark", lambda raw: CODEC.decode(raw, OTHER_WRITER), [b"\x02\x0e\x00\x02x\x00\x00\x02\x02"]),
    Case(
        "writer schema",
        lambda raw: parse_writer_schema(raw.decode("utf-8", "surrogateescape")),
        [registry_schema().encode()],
    ),
    Case(
        "topic",
        lambda raw: TopicName.parse(raw.decode("utf-8", "surrogateescape")).managed_ledger,
        [b"persistent://t/n/x"],
    ),
]
every_decoder = pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.name))


def _mutate(raw: bytes, changes: list[tuple[int, int, bytes]]) -> bytes:
    """Replace, for each change, `removed` bytes from a position on by others."""
    for at, removed, put in changes:
        start = at % (len(raw) + 1)
        raw = raw[:start] + put + raw[start + removed :]
    return raw


_CHANGES = st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 4), st.binary(max_size=4)), min_size=1, max_size=3)


@every_decoder
@settings(max_examples=300)
@given(raw=st.binary(max_size=200))
def test_any_bytes(case: Case, raw: bytes) -> None:
    with suppress(FormatError):
        case.decode(raw)


@every_decoder
@settings(max_examples=500)
@given(data=st.data())
def test_valid_bytes_with_a_few_changes(case: Case, data: st.DataObject) -> None:
    raw = data.draw(st.sampled_from(case.valid))
    with suppress(FormatError):
        case.decode(_mutate(raw, data.draw(_CHANGES)))


@every_decoder
def test_valid_bytes_with_one_byte_changed_or_cut_off(case: Case) -> None:
    for raw in case.valid:
        for at in range(len(raw)):
            for broken in (
                raw[:at],
                raw[:at] + bytes([raw[at] ^ 0x80]) + raw[at + 1 :],
                raw[:at] + b"\xff" * 9 + raw[at:],
            ):
                with suppress(FormatError):
                    case.decode(broken)


@settings(max_examples=300)
@given(tail=st.binary(max_size=120), version=st.sampled_from([b"1\n", b"2\n", b"3\n"]))
def test_any_bytes_behind_a_header_of_ledger_metadata(version: bytes, tail: bytes) -> None:
    with suppress(FormatError):
        decode_ledger_metadata(HEADER + version + tail)


@settings(max_examples=300)
@given(body=st.binary(max_size=100), head=st.binary(max_size=8))
def test_any_bytes_in_an_envelope(head: bytes, body: bytes) -> None:
    with suppress(FormatError):
        decode_managed_ledger(b"\x47\x78" + len(head).to_bytes(4, "big") + head + body)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
_FIELDS = (
    "topicName",
    "ledgerComponent",
    "cursorName",
    "schemaId",
    "ledgerType",
    "ledgerId",
    "offloadContext",
    "markedAt",
)
_LIKELY = st.sampled_from(
    ["MANAGED_CURSOR", "SCHEMA_STORAGE", "LEDGER", "t/n/x", 7, {"msb": 1, "lsb": 2, "metadata": {"a": 1}}]
)


@settings(max_examples=500)
@given(st.dictionaries(st.sampled_from(_FIELDS), _LIKELY | _JSON))
def test_any_json_in_the_fields(fields: dict[str, object]) -> None:
    with suppress(FormatError):
        CODEC.decode(json.dumps(fields).encode())


_TYPES = st.recursive(
    st.sampled_from(["null", "int", "long", "string", "bytes", "R", "nonsense"]) | _JSON,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.builds(lambda items: {"type": "array", "items": items}, inner)
        | st.builds(lambda values: {"type": "map", "values": values}, inner)
        | st.builds(lambda kind: {"type": "record", "name": "N", "fields": [{"name": "a", "type": kind}]}, inner)
        | st.builds(lambda name, symbols: {"type": "enum", "name": name, "symbols": symbols}, _JSON, _JSON)
        | st.builds(lambda size: {"type": "fixed", "name": "F", "size": size}, _JSON)
    ),
    max_leaves=6,
)


@settings(max_examples=500)
@given(kinds=st.lists(_TYPES, max_size=3), payload=st.binary(max_size=40))
def test_any_writers_schema_and_any_payload(kinds: list[object], payload: bytes) -> None:
    fields = [{"name": f"f{index}", "type": kind} for index, kind in enumerate(kinds)]
    with suppress(FormatError):
        schema = parse_writer_schema(json.dumps({"type": "record", "name": "R", "fields": fields}))
        CODEC.decode(payload, schema)


def test_kazoo_whose_threads_outlive_other_tests_takes_none_of_the_random_numbers_here() -> None:
    def lose() -> None:
        raise ConnectionLoss

    before = random.getstate()
    with pytest.raises(RetryFailedError):
        KazooRetry(max_tries=2, sleep_func=lambda _seconds: None)(lose)
    assert random.getstate() == before
