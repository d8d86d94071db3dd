"""The event of a switch is what its schema says."""

from __future__ import annotations

import json
from io import BytesIO

import fastavro

from bookwarden.switching.operation import SwitchEvent
from bookwarden.wire.switch_event import encode_switch_event, switch_event_schema


def test_an_event_is_read_by_its_schema() -> None:
    event = SwitchEvent("a", "b", "host process 7", 2**40, 1_700_000_000_000, "5f2c9a41")
    schema = json.loads(switch_event_schema())
    payload = BytesIO(encode_switch_event(*event))
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
