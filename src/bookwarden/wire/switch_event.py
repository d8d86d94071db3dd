"""The event of a switch of bookie clusters: plain Avro without a header, by schemas/bookie_cluster_switch.avsc."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from io import BytesIO

import fastavro

from bookwarden.wire.writer_schema import parse_writer_schema


def switch_event_schema() -> str:
    """Return the schema to register for the topic, as JSON text, of type AVRO."""
    text = resources.files("bookwarden.schemas").joinpath("bookie_cluster_switch.avsc").read_text("utf-8")
    return json.dumps(json.loads(text), separators=(",", ":"))


def encode_switch_event(fields: Mapping[str, str | int]) -> bytes:
    """Encode the fields of the schema."""
    output = BytesIO()
    fastavro.schemaless_writer(output, parse_writer_schema(switch_event_schema()).definition, dict(fields))
    return output.getvalue()
