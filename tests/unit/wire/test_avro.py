"""Pending deletions on the wire: ours, those of other writers, and what is refused and why."""

from __future__ import annotations

import json
import pickle
from dataclasses import fields, replace
from io import BytesIO
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookwarden.errors import MalformedMarkError
from bookwarden.ledgers.kinds import LedgerComponent, SchemaHolder
from bookwarden.ledgers.pending_deletion import LAST_MS, LedgerType, OffloadContext, PendingDeletion, Waiver
from bookwarden.wire.avro import (
    MAX_PAYLOAD_BYTES,
    PendingDeletionCodec,
    name_fields,
    parse_writer_schema,
    registry_schema,
)

CODEC = PendingDeletionCodec()
DELETION = PendingDeletion(
    "persistent://t/n/x",
    LedgerComponent.MANAGED_CURSOR,
    LedgerType.OFFLOAD_LEDGER,
    7,
    cursor_name="sub ñ",
    schema_id="t/n/x",
    offload_context=OffloadContext(-1, 2, "S3", {"bucket": "b"}),
    bookie_cluster="blue",
    marked_at=9,
    reason="trim",
)
PLAIN: dict[str, Any] = {
    "topicName": "persistent://t/n/x",
    "ledgerComponent": "MANAGED_LEDGER",
    "ledgerType": "LEDGER",
    "ledgerId": 7,
}

# A class with PIP-186's fields, as Java's reflection writes its schema when null is allowed: fields by name.
_TEXT = {"type": "string", "avro.java.string": "String"}
JAVA_SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "PendingDeleteLedgerInfo",
    "namespace": "org.example",
    "fields": [
        {"name": "addedLater", "type": ["null", "double"], "default": None},
        {"name": "cursorName", "type": ["null", _TEXT], "default": None},
        {
            "name": "ledgerComponent",
            "type": [
                "null",
                {"type": "enum", "name": "LedgerComponent", "symbols": ["MANAGED_LEDGER", "SCHEMA_STORAGE", "NEW"]},
            ],
        },
        {"name": "ledgerId", "type": ["null", "long"], "default": None},
        {
            "name": "ledgerType",
            "type": ["null", {"type": "enum", "name": "LedgerType", "symbols": ["OFFLOAD_LEDGER", "LEDGER"]}],
        },
        {
            "name": "offloadContext",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "OffloadContext",
                    "fields": [
                        {"name": "driverName", "type": ["null", _TEXT]},
                        {"name": "lsb", "type": "long"},
                        {"name": "metadata", "type": ["null", {"type": "map", "values": _TEXT}]},
                        {"name": "msb", "type": {"type": "long", "logicalType": "timestamp-millis"}},
                    ],
                },
            ],
        },
        {"name": "schemaId", "type": ["null", "long"], "default": None},
        {"name": "topicName", "type": ["null", _TEXT]},
    ],
}
JAVA_NULLS = dict.fromkeys((field["name"] for field in JAVA_SCHEMA["fields"]), None)


def _java(**fields: object) -> bytes:
    output = BytesIO()
    fastavro.schemaless_writer(output, fastavro.parse_schema(JAVA_SCHEMA), {**JAVA_NULLS, **fields})
    return output.getvalue()


def _json(**fields: object) -> bytes:
    return json.dumps({**PLAIN, **fields}).encode()


def test_what_was_encoded_is_decoded() -> None:
    payload = CODEC.encode(DELETION)
    assert CODEC.decode(payload) == DELETION
    assert CODEC.decode(payload, parse_writer_schema(CODEC.registry_schema())) == DELETION


def test_the_registered_schema_has_the_fields_of_the_proposal() -> None:
    schema = json.loads(registry_schema())
    assert [field["name"] for field in schema["fields"]] == [
        *("topicName", "ledgerComponent", "cursorName", "schemaId", "ledgerType", "ledgerId", "offloadContext"),
        *("bookieCluster", "markedAt", "reason"),
    ]


def test_a_record_of_java_is_read_by_its_own_schema() -> None:
    context = {"driverName": "S3", "lsb": 2, "msb": 2**62, "metadata": {"bucket": "b"}}
    payload = _java(**{**PLAIN, "ledgerType": "OFFLOAD_LEDGER"}, offloadContext=context, addedLater=0.5)
    assert CODEC.decode(payload, parse_writer_schema(json.dumps(JAVA_SCHEMA))) == PendingDeletion(
        "persistent://t/n/x",
        LedgerComponent.MANAGED_LEDGER,
        LedgerType.OFFLOAD_LEDGER,
        7,
        offload_context=OffloadContext(2**62, 2, "S3", {"bucket": "b"}),
    )


def test_a_record_whose_bytes_begin_as_json_does_is_read_by_its_schema() -> None:
    schema = {**JAVA_SCHEMA, "fields": [{"name": "first", "type": "long"}, *JAVA_SCHEMA["fields"]]}
    output = BytesIO()
    fastavro.schemaless_writer(output, fastavro.parse_schema(schema), {**JAVA_NULLS, **PLAIN, "first": -62})
    assert output.getvalue().startswith(b"{")
    assert CODEC.decode(output.getvalue(), parse_writer_schema(json.dumps(schema))).ledger_id == 7


def test_a_schema_that_is_named_by_a_number_is_that_of_the_topic() -> None:
    payload = _java(**{**PLAIN, "ledgerComponent": "SCHEMA_STORAGE"}, schemaId=17)
    deletion = CODEC.decode(payload, parse_writer_schema(json.dumps(JAVA_SCHEMA)))
    assert (deletion.schema_id, deletion.holder()) == ("17", SchemaHolder("t/n/x"))


def test_json_has_the_same_fields() -> None:
    fields = {
        "cursorName": "sub ñ",
        "schemaId": "t/n/x",
        "offloadContext": {"metadata": {"bucket": "b"}, "driverName": "S3", "lsb": 2, "msb": -1},
        "bookieCluster": "blue",
        "markedAt": 9,
        "reason": "trim",
        "addedLater": [1],
    }
    payload = _json(**fields, ledgerComponent="MANAGED_CURSOR", ledgerType="OFFLOAD_LEDGER")
    assert CODEC.decode(payload) == DELETION


@pytest.mark.parametrize("spelling", ["Managed-Cursor", "managed_cursor", "MANAGED CURSOR", "MANAGED_CURSOR"])
def test_the_spellings_of_the_proposal_are_understood(spelling: str) -> None:
    deletion = CODEC.decode(_json(ledgerComponent=spelling, ledgerType="Ledger", cursorName="s"))
    assert (deletion.component, deletion.ledger_type) == (LedgerComponent.MANAGED_CURSOR, LedgerType.LEDGER)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"ledgerId": None}, "ledgerId is missing"),
        ({"ledgerId": -4}, "ledgerId -4"),
        ({"ledgerId": "7"}, "ledgerId is '7', not a whole number"),
        ({"ledgerId": 7.0}, "ledgerId is 7.0, not a whole number"),
        ({"ledgerId": True}, "ledgerId is True, not a whole number"),
        ({"ledgerId": 2**64}, "ledgerId is a number of more than 64 bits"),
        ({"ledgerComponent": None}, "ledgerComponent is missing"),
        ({"ledgerComponent": "PACKAGES"}, "ledgerComponent 'PACKAGES' is unknown"),
        ({"ledgerType": "name"}, "ledgerType 'name' is unknown"),
        ({"ledgerType": 1}, "ledgerType is 1, not text"),
        ({"topicName": None}, "topicName is missing"),
        ({"topicName": 5}, "topicName is 5, not text"),
        ({"topicName": "t/n/\ud800"}, "topicName is 't/n/.ud800', not valid Unicode"),
        ({"topicName": "../../x"}, "'..' has a character"),
        ({"markedAt": -1}, "markedAt -1"),
        ({"schemaId": 2**63}, "schemaId is a number of more than 64 bits"),
        ({"schemaId": 1.5}, "schemaId is 1.5, not text"),
        ({"offloadContext": 3}, "offloadContext is 3, not a record"),
        ({"offloadContext": {"msb": 1}}, "offloadContext lacks msb or lsb"),
        ({"offloadContext": {"msb": 1, "lsb": 2, "metadata": []}}, "offloadContext.metadata is list, not a map"),
        ({"offloadContext": {"msb": 1, "lsb": 2, "metadata": {"a": None}}}, "metadata 'a' is None, not text"),
        ({"ledgerType": "OFFLOAD_LEDGER"}, "needs offloadContext"),
        ({"ledgerComponent": "x" * 5000}, "xxx... is unknown"),
    ],
)
def test_a_field_that_is_wrong_is_named(fields: dict[str, object], reason: str) -> None:
    with pytest.raises(MalformedMarkError, match=reason.replace(".", r"\.").replace(r"\.ud", ".+ud")) as caught:
        CODEC.decode(_json(**fields))
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "does not fit"),
        (b"\x02", "does not fit"),
        (b"{", "is not JSON"),
        (b'{"a": 1} 2', "is not JSON"),
        (b'{"ledgerId": 1, "ledgerId": 2}', "'ledgerId' is given twice"),
        (b'{"a":' * 100_000, "is not JSON"),
        (b'{"ledgerId": ' + b"9" * 5000 + b"}", "is not JSON"),
        (b'{"a": "\xff"}', "is not JSON"),
        (b"[]", "does not fit"),
        (CODEC.encode(DELETION) + b"x", "1 bytes behind"),
        (CODEC.encode(DELETION)[:-1], "does not fit"),
        (b"{" + b" " * MAX_PAYLOAD_BYTES, "at most"),
    ],
)
def test_a_payload_that_cannot_be_read_says_why(payload: bytes, reason: str) -> None:
    with pytest.raises(MalformedMarkError, match=reason):
        CODEC.decode(payload)


def test_a_component_that_is_new_in_java_is_decoded_and_refused_by_name() -> None:
    payload = _java(**{**PLAIN, "ledgerComponent": "NEW"})
    with pytest.raises(MalformedMarkError, match="ledgerComponent 'NEW' is unknown"):
        CODEC.decode(payload, parse_writer_schema(json.dumps(JAVA_SCHEMA)))


def test_an_invalid_text_is_not_encoded() -> None:
    with pytest.raises(MalformedMarkError, match="ledger 7"):
        CODEC.encode(replace(DELETION, reason="\ud800"))


def _record(*fields: object) -> str:
    named = [{"name": f"f{index}", "type": kind} for index, kind in enumerate(fields)]
    return json.dumps({"type": "record", "name": "R", "fields": named})


EMPTY = {"type": "record", "name": "Empty", "fields": [{"name": "n", "type": "null"}]}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('"string"', "not an Avro record"),
        ("[]", "not an Avro record"),
        ('{"type": "record"}', "not valid Avro"),
        (_record("nonsense"), "not valid Avro"),
        (_record({"type": 5}), "not valid Avro"),
        (_record(["null", "R"]), "contains itself"),
        (_record({"type": "map", "values": "R"}), "contains itself"),
        (_record({"type": "array", "items": "null"}), "takes no bytes"),
        (_record({"type": "array", "items": EMPTY}), "takes no bytes"),
        (_record({"type": "array", "items": "EmptyToo"}), "not valid Avro"),
        (_record({"type": "error", "name": "E", "fields": [{"name": "n", "type": "null"}]}), "is no type"),
        (_record("null"), "takes no bytes"),
        (_record(), "takes no bytes"),
        (_record({"type": "record", "name": "E", "fields": []}), "takes no bytes"),
        (_record({"type": "record", "name": "S", "fields": [{"name": "s", "type": ["null", "S"]}]}), "contains itself"),
        (_record({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}), "takes no bytes"),
        (json.dumps({"type": "record", "name": "R", "fields": [], "doc": "x" * 300_000}), "at most"),
        (_record(json.loads('{"type":"array","items":' * 60 + '"int"' + "}" * 60)), "nested deeper"),
    ],
)
def test_a_writers_schema_that_could_do_harm_is_refused(text: str, reason: str) -> None:
    with pytest.raises(MalformedMarkError, match=reason):
        parse_writer_schema(text)


def test_what_takes_no_bytes_is_harmless_in_a_union() -> None:
    parse_writer_schema(_record(["null", {"type": "record", "name": "E", "fields": []}]))


def test_a_type_may_be_used_twice_by_name() -> None:
    point = {"type": "record", "name": "P", "fields": [{"name": "x", "type": "int"}]}
    parse_writer_schema(_record(point, {"type": "array", "items": "P"}, ["null", "P"]))


def test_a_parsed_schema_travels_to_other_processes() -> None:
    schema = parse_writer_schema(json.dumps(JAVA_SCHEMA))
    assert CODEC.decode(_java(**PLAIN), pickle.loads(pickle.dumps(schema))).ledger_id == 7


_NAME = st.text("abcñ~ *%+", min_size=1).filter(bool)
_LONG = st.integers(-(2**63), 2**63 - 1)
DELETIONS = st.builds(
    PendingDeletion,
    _NAME.map(lambda name: f"persistent://t/n/{name}"),
    st.sampled_from(LedgerComponent),
    st.sampled_from(LedgerType),
    st.integers(0, 2**63 - 1),
    cursor_name=_NAME,
    schema_id=st.none() | st.just("t/n/x") | st.just("12"),
    offload_context=st.builds(
        OffloadContext, _LONG, _LONG, st.text("abc"), st.dictionaries(st.text("abc"), st.text("ñ"))
    ),
    bookie_cluster=st.text("abc"),
    marked_at=st.integers(0, LAST_MS),
    reason=st.text(st.characters(exclude_categories=["Cs"])),
)


@given(DELETIONS)
def test_any_pending_deletion_is_decoded_as_it_was_encoded(deletion: PendingDeletion) -> None:
    assert CODEC.decode(CODEC.encode(deletion)) == deletion


@given(DELETIONS, st.booleans())
def test_a_mark_is_encoded_as_the_whole_schema_has_it(deletion: PendingDeletion, offloaded: bool) -> None:
    if not offloaded:
        deletion = replace(deletion, offload_context=None, ledger_type=LedgerType.LEDGER)
    whole = BytesIO()
    fastavro.schemaless_writer(whole, json.loads(registry_schema()), name_fields(deletion))
    assert CODEC.encode(deletion) == whole.getvalue()


@given(DELETIONS, st.frozensets(st.sampled_from(Waiver)), st.integers(0, LAST_MS))
def test_a_mark_is_stamped_as_any_field_is_replaced(
    deletion: PendingDeletion, waives: frozenset[Waiver], now_ms: int
) -> None:
    waiving = replace(deletion, waives=waives)
    assert waiving.stamped(now_ms) == replace(waiving, marked_at=now_ms)


def test_an_id_that_no_long_holds_is_not_encoded() -> None:
    with pytest.raises(MalformedMarkError, match="ledger 9223372036854775808: it cannot be encoded"):
        CODEC.encode(replace(DELETION, offload_context=None, ledger_id=2**63))


def test_a_mark_that_is_stamped_or_encoded_keeps_every_field() -> None:
    # What a mark waives is a property of its message.
    ours = {field.name: field.default for field in fields(PendingDeletion) if field.name != "waives"}
    assert all(getattr(DELETION, name) != default for name, default in ours.items())
    waiving = replace(DELETION, waives=frozenset(Waiver))
    assert waiving.stamped(12) == replace(waiving, marked_at=12)
    plain = replace(DELETION, offload_context=None)
    assert CODEC.decode(CODEC.encode(replace(plain, ledger_type=LedgerType.LEDGER))) == replace(
        plain, ledger_type=LedgerType.LEDGER
    )


def test_of_bytes_that_fit_no_schema_no_library_speaks() -> None:
    with pytest.raises(MalformedMarkError) as caught:
        CODEC.decode(b"hello")
    assert str(caught.value) == "payload of 5 bytes is no pending deletion: it does not fit the writer's Avro schema"
