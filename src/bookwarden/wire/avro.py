"""Pending deletions as Avro or JSON, for the deletion topic, its retry topic and its DLQ.

Avro is plain binary without a header, as Pulsar's AVRO schema type has it; the writer's schema is in Pulsar's
registry. JSON has the same field names, as Pulsar's JSON schema type writes it.
"""

from __future__ import annotations

import json
from functools import lru_cache
from importlib import resources
from io import BytesIO
from typing import Any

import fastavro

from bookwarden.errors import MalformedMarkError
from bookwarden.ledgers.kinds import LedgerComponent
from bookwarden.ledgers.pending_deletion import LedgerType, PendingDeletion
from bookwarden.wire.pending_deletion_fields import build_pending_deletion, name_fields
from bookwarden.wire.varint import encode_zigzag
from bookwarden.wire.writer_schema import ParsedSchema, parse_writer_schema

__all__ = ["MAX_PAYLOAD_BYTES", "ParsedSchema", "PendingDeletionCodec", "parse_writer_schema", "registry_schema"]

MAX_PAYLOAD_BYTES = 1024 * 1024
_SURROUNDINGS = 4096

# What fastavro raises for bytes that do not fit the schema; UnicodeDecodeError is a ValueError.
_UNDECODABLE = (EOFError, ValueError, IndexError, OverflowError, KeyError, TypeError)


def registry_schema() -> str:
    """Return the schema to register for the deletion topic, as JSON text, of type AVRO."""
    text = resources.files("bookwarden.schemas").joinpath("pending_ledger_deletion.avsc").read_text("utf-8")
    return json.dumps(json.loads(text), separators=(",", ":"))


class PendingDeletionCodec:
    """Encodes pending deletions, and decodes them, ours and those of other writers."""

    def __init__(self) -> None:
        self._text = registry_schema()
        self._own = parse_writer_schema(self._text)
        self._head, self._tail = _around(self._text, "ledgerId")
        # The marks of one call to `Marker.mark` differ in few things but their ids.
        self._surroundings = lru_cache(maxsize=_SURROUNDINGS)(self._encode_surroundings)

    def registry_schema(self) -> str:
        """Return the schema of what `encode` returns, as the module's function does."""
        return self._text

    def encode(self, deletion: PendingDeletion) -> bytes:
        """Encode by our own schema; raise MalformedMarkError for a value that Avro cannot hold."""
        try:
            if deletion.offload_context is not None:
                return _write_avro(self._own, name_fields(deletion))
            head, tail = self._surroundings(
                deletion.topic_name,
                deletion.component,
                deletion.cursor_name,
                deletion.schema_id,
                deletion.ledger_type,
                deletion.bookie_cluster,
                deletion.marked_at,
                deletion.reason,
            )
            return head + encode_zigzag(deletion.ledger_id) + tail
        except (ValueError, OverflowError, TypeError) as error:
            raise MalformedMarkError(f"ledger {deletion.ledger_id}: it cannot be encoded: {error}") from error

    # Fast path of _write_avro, must equal it: tests/unit/wire/test_avro.py
    def _encode_surroundings(
        self,
        topic_name: str,
        component: LedgerComponent,
        cursor_name: str | None,
        schema_id: str | None,
        ledger_type: LedgerType,
        bookie_cluster: str,
        marked_at: int,
        reason: str,
    ) -> tuple[bytes, bytes]:
        """Encode the parts before and behind the ledger id of a mark without an offloaded copy."""
        fields = name_fields(
            PendingDeletion(
                topic_name=topic_name,
                component=component,
                ledger_type=ledger_type,
                ledger_id=0,
                cursor_name=cursor_name,
                schema_id=schema_id,
                bookie_cluster=bookie_cluster,
                marked_at=marked_at,
                reason=reason,
            )
        )
        return _write_avro(self._head, fields), _write_avro(self._tail, fields)

    def decode(self, payload: bytes, writer_schema: ParsedSchema | None = None) -> PendingDeletion:
        """Decode a payload by its writer's schema, or without one as JSON if it begins with a brace, else as ours.

        Raises MalformedMarkError, with the field or the place, for anything that is no valid pending deletion.
        """
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise MalformedMarkError(f"payload of {len(payload)} bytes; at most {MAX_PAYLOAD_BYTES} are read")
        # Ours never begins with a brace: as the length of topicName, its first field, that byte is negative.
        if writer_schema is None and payload.startswith(b"{"):
            return build_pending_deletion(_read_json(payload))
        return build_pending_deletion(read_avro(payload, writer_schema or self._own))


def _around(schema: str, name: str) -> tuple[ParsedSchema, ParsedSchema]:
    """Cut a record's schema at a field: an Avro record is its fields' bytes, one after another and nothing else."""
    record = json.loads(schema)
    fields = record["fields"]
    (place,) = (index for index, field in enumerate(fields) if field["name"] == name)
    head, tail = (json.dumps({**record, "fields": part}) for part in (fields[:place], fields[place + 1 :]))
    return parse_writer_schema(head), parse_writer_schema(tail)


def _write_avro(schema: ParsedSchema, fields: dict[str, Any]) -> bytes:
    output = BytesIO()
    fastavro.schemaless_writer(output, schema.definition, fields)
    return output.getvalue()


def read_avro(payload: bytes, schema: ParsedSchema) -> Any:
    """Read one record, to the last byte; MalformedMarkError for anything else."""
    source = BytesIO(payload)
    try:
        record = fastavro.schemaless_reader(source, schema.definition, None)
    except _UNDECODABLE as error:
        raise MalformedMarkError(
            f"payload of {len(payload)} bytes is no pending deletion: it does not fit the writer's Avro schema"
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
    """Refuse a field that is given twice: which of the two is meant is unknown."""
    fields = dict(pairs)
    if len(fields) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise MalformedMarkError(f"field {twice[:40]!r} is given twice")
    return fields
