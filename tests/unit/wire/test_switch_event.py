"""The event of a switch is what its schema says."""

from __future__ import annotations

import json
from io import BytesIO

import fastavro

from bookwarden.switching.operation import SwitchEvent
from bookwarden.wire.switch_event import encode_switch_event, switch_event_schema
from bookwarden.wiring.switch import event_fields


def test_an_event_is_read_by_its_schema() -> None:
    schema = json.loads(switch_event_schema())
    fields = event_fields(SwitchEvent("a", "b", "host process 7", 2**40, 1_700_000_000_000, "5f2c9a41"))
    payload = BytesIO(encode_switch_event(fields))
    assert fastavro.schemaless_reader(payload, schema, None) == fields
    assert payload.read() == b""
    assert [field["name"] for field in schema["fields"]] == list(fields)
