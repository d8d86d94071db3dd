"""Pending deletions as Avro or JSON: what travels on the deletion topic, its retry topic and its DLQ.

Avro is plain binary without a header, as Pulsar's AVRO schema type has it; the writer's schema is in Pulsar's
registry. JSON has the same field names, as Pulsar's JSON schema type writes it.
"""

from __future__ import annotations

import json
from importlib import resources
from io import BytesIO
from typing import Any

import fastavro

from bookwarden.errors import MalformedMarkError
from bookwarden.ledgers.pending_deletion import PendingDeletion
from bookwarden.wire.pending_deletion_fields import build_pending_deletion, name_fields
from bookwarden.wire.writer_schema import ParsedSchema, parse_writer_schema

__all__ = ["MAX_PAYLOAD_BYTES", "ParsedSchema", "PendingDeletionCodec", "parse_writer_schema", "registry_schema"]

MAX_PAYLOAD_BYTES = 1024 * 1024

# What fastavro raises for bytes that do not fit the schema; UnicodeDecodeError is a ValueError.
_UNDECODABLE = (EOFError, ValueError, IndexError, OverflowError, KeyError, TypeError)


def registry_schema() -> str:
    """Give the schema to register for the deletion topic, as JSON text, of type AVRO."""
    text = resources.files("bookwarden.schemas").joinpath("pending_ledger_deletion.avsc").read_text("utf-8")
    return json.dumps(json.loads(text), separators=(",", ":"))


class PendingDeletionCodec:
    """Encodes pending deletions, and decodes ours as well as those of other writers."""

    def __init__(self) -> None:
        self._text = registry_schema()
        self._own = parse_writer_schema(self._text)

    def registry_schema(self) -> str:
        """Give the schema of what `encode` returns, as the module's function does."""
        return self._text

    def encode(self, deletion: PendingDeletion) -> bytes:
        """Encode by our own schema; raise MalformedMarkError for a value that Avro cannot hold."""
        output = BytesIO()
        try:
            fastavro.schemaless_writer(output, self._own.definition, name_fields(deletion))
        except (ValueError, OverflowError, TypeError) as error:
            raise MalformedMarkError(f"ledger {deletion.ledger_id}: it cannot be encoded: {error}") from error
        return output.getvalue()

    def decode(self, payload: bytes, writer_schema: ParsedSchema | None = None) -> PendingDeletion:
        """Decode a payload by its writer's schema, or without one as JSON if it begins with a brace, else as ours.

        Raises MalformedMarkError, with the field or the place, for anything that is no valid pending deletion.
        """
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise MalformedMarkError(f"payload of {len(payload)} bytes; at most {MAX_PAYLOAD_BYTES} are read")
        # Ours never begins with a brace: as the length of topicName, its first field, that byte is negative.
        if writer_schema is None and payload.startswith(b"{"):
            return build_pending_deletion(_read_json(payload))
        return build_pending_deletion(_read_avro(payload, writer_schema or self._own))


def _read_avro(payload: bytes, schema: ParsedSchema) -> Any:
    source = BytesIO(payload)
    try:
        record = fastavro.schemaless_reader(source, schema.definition, None)
    except _UNDECODABLE as error:
        raise MalformedMarkError(
            f"payload of {len(payload)} bytes does not fit the writer's Avro schema: {type(error).__name__} {error}"
        ) from error
    if source.tell() != len(payload):
        raise MalformedMarkError(f"payload has {len(payload) - source.tell()} bytes behind the Avro record")
    return record


def _read_json(payload: bytes) -> Any:
    try:
        return json.loads(payload.decode("utf-8"), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise MalformedMarkError(f"payload of {len(payload)} bytes is not JSON: {error}") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a field that is given twice: which of the two is meant cannot be known."""
    fields = dict(pairs)
    if len(fields) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise MalformedMarkError(f"field {twice[:40]!r} is given twice")
    return fields
