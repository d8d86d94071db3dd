"""The event of a switch is what its schema says."""

from __future__ import annotations

import json
from io import BytesIO

import fastavro
import pytest

from bookwarden.errors import MalformedMarkError
from bookwarden.ledgers.switch_event import SwitchEvent
from bookwarden.wire.switch_event import decode_switch_event, encode_switch_event, switch_event_schema

EVENT = SwitchEvent("a", "b", "host process 7", 2**40, 1_700_000_000_000, "5f2c9a41")


def test_an_event_is_read_by_its_schema() -> None:
    schema = json.loads(switch_event_schema())
    payload = BytesIO(encode_switch_event(EVENT))
    read = fastavro.schemaless_reader(payload, schema, None)
    assert payload.read() == b""
    assert [field["name"] for field in schema["fields"]] == list(read)
    assert read == {
        "source": "a",
        "target": "b",
        "origin": "host process 7",
        "epoch": 2**40,
        "timeMs": 1_700_000_000_000,
        "owner": "5f2c9a41",
    }
    assert decode_switch_event(encode_switch_event(EVENT)) == EVENT


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "does not fit"),
        (b"no event", "does not fit"),
        (encode_switch_event(EVENT)[:-1], "does not fit"),
        (encode_switch_event(EVENT) + b"x", "1 bytes behind"),
        (encode_switch_event(EVENT._replace(epoch=0)), "epoch 0"),
        (encode_switch_event(EVENT._replace(target="")), "bookie cluster ''"),
        (encode_switch_event(EVENT._replace(origin="o" * 20_000)), "at most 16,384"),
    ],
)
def test_what_is_no_event_is_refused(payload: bytes, reason: str) -> None:
    with pytest.raises(MalformedMarkError, match=reason):
        decode_switch_event(payload)
