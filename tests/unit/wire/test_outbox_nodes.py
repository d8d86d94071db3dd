"""Nodes of brokers' outboxes, as the jar writes them: broker/'s OutboxFormatTest has the same text."""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from bookwarden.errors import FormatError
from bookwarden.ledgers.pending_deletion import LedgerType
from bookwarden.wire.broker_marks import (
    MarksEnabled,
    decode_marking_broker,
    decode_marks_enabled,
    decode_outbox_node,
    encode_marks_enabled,
)

NODE = (
    '{"format":1,"drops":[{"managedLedger":"x/y/persistent/t","time":1700000000000,'
    '"data":[5,2,993],"copies":[[5,"00000000-0000-0001-ffff-fffffffffffe",0],'
    '[7,"00000000-0000-0003-0000-000000000004",0]]},'
    '{"managedLedger":"x/y/persistent/t","cursor":"a%2Fb","time":1700000000000,'
    '"cursors":[9],"buckets":[30,1]}],'
    '"drivers":[{"name":"aws-s3","metadata":{"bucket":"b","region":"eu"}}]}'
)


def test_each_ledger_and_copy_is_a_mark() -> None:
    marks = decode_outbox_node(NODE.encode(), "dropped")
    ledgers = [(str(mark.holder()), mark.ledger_id) for mark in marks if mark.ledger_type is LedgerType.LEDGER]
    assert ledgers == [
        ("x/y/persistent/t", 5),
        ("x/y/persistent/t", 7),
        ("x/y/persistent/t", 1000),
        ("x/y/persistent/t/a%2Fb", 9),
        ("buckets:x/y/persistent/t/a%2Fb", 30),
        ("buckets:x/y/persistent/t/a%2Fb", 31),
    ]
    copies = [
        (mark.ledger_id, mark.offload_context.uuid, mark.offload_context.lsb, mark.offload_context.driver_name)
        for mark in marks
        if mark.offload_context
    ]
    assert copies == [
        (5, UUID("00000000-0000-0001-ffff-fffffffffffe"), -2, "aws-s3"),
        (7, UUID("00000000-0000-0003-0000-000000000004"), 4, "aws-s3"),
    ]
    assert {(mark.marked_at, mark.reason) for mark in marks} == {(1_700_000_000_000, "dropped")}
    assert {mark.offload_context.metadata["bucket"] for mark in marks if mark.offload_context} == {"b"}


@pytest.mark.parametrize(
    "broken", ["", "[]", "{}", NODE.replace('"format":1', '"format":2'), NODE.replace('"time"', '"tame"')]
)
def test_anything_else_is_an_error(broken: str) -> None:
    with pytest.raises(FormatError, match="outbox"):
        decode_outbox_node(broken.encode(), "")


def test_fields_that_are_not_known_are_ignored() -> None:
    fields = json.loads(NODE)
    fields["drops"][0]["former"] = "AA=="
    assert len(decode_outbox_node(json.dumps(fields).encode(), "")) == 8


def test_whether_brokers_mark_is_read_as_it_was_written() -> None:
    state = MarksEnabled(False, "me@here", 7)
    raw = encode_marks_enabled(state)
    assert json.loads(raw) == {"format": 1, "enabled": False, "by": "me@here", "time": 7}
    assert decode_marks_enabled(raw) == state


@pytest.mark.parametrize("broken", ["", "[]", '{"format":2,"enabled":true,"by":"","time":0}', '{"format":1}'])
def test_another_value_there_is_an_error(broken: str) -> None:
    with pytest.raises(FormatError, match="enabled"):
        decode_marks_enabled(broken.encode())
    with pytest.raises(FormatError, match="brokers"):
        decode_marking_broker(broken.encode())


def test_a_text_is_neither_on_nor_off() -> None:
    with pytest.raises(FormatError, match="true or false"):
        decode_marks_enabled(b'{"format":1,"enabled":"false","by":"","time":0}')
