"""The event of a switch of bookie clusters: plain Avro without a header, by schemas/bookie_cluster_switch.avsc."""

from __future__ import annotations

import json
from importlib import resources
from io import BytesIO
from typing import Final

import fastavro

from bookwarden.errors import MalformedMarkError
from bookwarden.ledgers.switch_event import SwitchEvent
from bookwarden.wire.avro import read_avro
from bookwarden.wire.writer_schema import parse_writer_schema

_FIELDS: Final = ("source", "target", "origin", "epoch", "timeMs", "owner")
# In bytes; an event has less than a tenth of it.
_LARGEST: Final = 1 << 14


def switch_event_schema() -> str:
    """Return the schema to register for the topic, as JSON text, of type AVRO."""
    text = resources.files("bookwarden.schemas").joinpath("bookie_cluster_switch.avsc").read_text("utf-8")
    return json.dumps(json.loads(text), separators=(",", ":"))


def encode_switch_event(event: SwitchEvent) -> bytes:
    """Encode an event."""
    output = BytesIO()
    fields = dict(zip(_FIELDS, event, strict=True))
    fastavro.schemaless_writer(output, parse_writer_schema(switch_event_schema()).definition, fields)
    return output.getvalue()


def decode_switch_event(payload: bytes) -> SwitchEvent:
    """Decode an event; MalformedMarkError for anything else."""
    if len(payload) > _LARGEST:
        raise MalformedMarkError(f"its payload has {len(payload):,} bytes; a switch directive has at most {_LARGEST:,}")
    fields = read_avro(payload, parse_writer_schema(switch_event_schema()))
    event = SwitchEvent(*(fields[name] for name in _FIELDS))
    if not event.target or event.epoch < 1:
        raise MalformedMarkError(f"it names bookie cluster {event.target!r} and epoch {event.epoch}: no registry does")
    return event
