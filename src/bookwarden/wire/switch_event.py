"""The event of a switch of bookie clusters: plain Avro without a header, by schemas/bookie_cluster_switch.avsc."""

from __future__ import annotations

import json
from importlib import resources
from io import BytesIO
from typing import Final

import fastavro

from bookwarden.wire.writer_schema import parse_writer_schema

_FIELDS: Final = ("source", "target", "origin", "epoch", "timeMs", "owner")


def switch_event_schema() -> str:
    """Return the schema to register for the topic, as JSON text, of type AVRO."""
    text = resources.files("bookwarden.schemas").joinpath("bookie_cluster_switch.avsc").read_text("utf-8")
    return json.dumps(json.loads(text), separators=(",", ":"))


def encode_switch_event(source: str, target: str, origin: str, epoch: int, time_ms: int, owner: str) -> bytes:
    """Encode an event; the schema tells what each field is."""
    fields = dict(zip(_FIELDS, (source, target, origin, epoch, time_ms, owner), strict=True))
    output = BytesIO()
    fastavro.schemaless_writer(output, parse_writer_schema(switch_event_schema()).definition, fields)
    return output.getvalue()
