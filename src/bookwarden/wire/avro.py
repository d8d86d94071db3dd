"""Pending deletions as Avro or JSON, for the deletion topic, its retry topic and its DLQ.

Avro is plain binary without a header, as Pulsar's AVRO schema type has it; the writer's schema is in Pulsar's
registry. JSON has the same field names, as Pulsar's JSON schema type writes it.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from io import BytesIO
from typing import Any, TypeVar

import fastavro

from bookwarden.errors import MalformedMarkError
from bookwarden.ledgers.kinds import LedgerComponent
from bookwarden.ledgers.pending_deletion import LedgerType, OffloadContext, PendingDeletion, is_time
from bookwarden.wire.protobuf import encode_zigzag
from bookwarden.wire.writer_schema import ParsedSchema, parse_writer_schema

E = TypeVar("E", bound=enum.Enum)

_MIN_LONG = -(2**63)
_MAX_LONG = 2**63 - 1
_SHOWN = 80
__all__ = ["MAX_PAYLOAD_BYTES", "ParsedSchema", "PendingDeletionCodec", "parse_writer_schema", "registry_schema"]
MAX_PAYLOAD_BYTES = 1024 * 1024
_SURROUNDINGS = 4096
# What fastavro raises for bytes that do not fit the schema; UnicodeDecodeError is a ValueError.
_UNDECODABLE = (EOFError, ValueError, IndexError, OverflowError, KeyError, TypeError)


def name_fields(deletion: PendingDeletion) -> dict[str, Any]:
    """Return the fields by their names in our Avro schema, and in JSON."""
    context = deletion.offload_context
    return {
        "topicName": deletion.topic_name,
        "ledgerComponent": deletion.component.value,
        "cursorName": deletion.cursor_name,
        "schemaId": deletion.schema_id,
        "ledgerType": deletion.ledger_type.value,
        "ledgerId": deletion.ledger_id,
        "offloadContext": None if context is None else _name_context(context),
        "bookieCluster": deletion.bookie_cluster,
        "markedAt": deletion.marked_at,
        "reason": deletion.reason,
    }


def build_pending_deletion(fields: object) -> PendingDeletion:
    """Make the value of decoded fields of any writer; unknown fields are ignored.

    Raises MalformedMarkError naming the field that is missing, of a wrong type, or impossible.
    """
    if not isinstance(fields, dict):
        raise MalformedMarkError(f"payload is {_describe(fields)}, not a record")
    deletion = PendingDeletion(
        topic_name=_text(fields, "topicName") or "",
        component=_member(fields, "ledgerComponent", LedgerComponent),
        ledger_type=_member(fields, "ledgerType", LedgerType),
        ledger_id=_ledger_id(fields),
        cursor_name=_text(fields, "cursorName"),
        schema_id=_schema_id(fields),
        offload_context=_context(fields.get("offloadContext")),
        bookie_cluster=_text(fields, "bookieCluster") or "",
        marked_at=_marked_at(fields),
        reason=_text(fields, "reason") or "",
    )
    deletion.validate()
    return deletion


def _name_context(context: OffloadContext) -> dict[str, Any]:
    return {
        "lsb": context.lsb,
        "msb": context.msb,
        "driverName": context.driver_name,
        "metadata": dict(context.metadata),
    }


def _describe(value: object) -> str:
    text = repr(value) if isinstance(value, str | int | float | None) else type(value).__name__
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _text(fields: Mapping[str, object], name: str) -> str | None:
    value = fields.get(name)
    if value is None or (isinstance(value, str) and value.isascii()):
        return value
    if not isinstance(value, str):
        raise MalformedMarkError(f"{name} is {_describe(value)}, not text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise MalformedMarkError(f"{name} is {_describe(value)}, not valid Unicode: {error.reason}") from error
    return value


def _long(fields: Mapping[str, object], name: str) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise MalformedMarkError(f"{name} is {_describe(value)}, not a whole number")
    if not _MIN_LONG <= value <= _MAX_LONG:
        raise MalformedMarkError(f"{name} is a number of more than 64 bits")
    return value


def _ledger_id(fields: Mapping[str, object]) -> int:
    value = _long(fields, "ledgerId")
    if value is None:
        raise MalformedMarkError("ledgerId is missing")
    return value


def _marked_at(fields: Mapping[str, object]) -> int:
    value = _long(fields, "markedAt") or 0
    if value < 0:
        raise MalformedMarkError(f"markedAt {value} lies before the epoch")
    if not is_time(value):
        raise MalformedMarkError(f"markedAt {value} is no time in milliseconds: it lies beyond the year 9999")
    return value


def _schema_id(fields: Mapping[str, object]) -> str | None:
    """Read schemaId, which the proposal has once as a number and once as text."""
    if isinstance(fields.get("schemaId"), int):
        return str(_long(fields, "schemaId"))
    return _text(fields, "schemaId")


def _member(fields: Mapping[str, object], name: str, kind: type[E]) -> E:
    """Read an enum's constant; the proposal's spelling in prose, as in Offload-Ledger, is understood too."""
    value = _text(fields, name)
    if value is None:
        raise MalformedMarkError(f"{name} is missing")
    found = kind.__members__.get(value) or kind.__members__.get(value.upper().replace("-", "_").replace(" ", "_"))
    if found is None:
        known = ", ".join(kind.__members__)
        raise MalformedMarkError(f"{name} {_describe(value)} is unknown; known are {known}")
    return found


def _context(value: object) -> OffloadContext | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise MalformedMarkError(f"offloadContext is {_describe(value)}, not a record")
    msb, lsb = _long(value, "msb"), _long(value, "lsb")
    if msb is None or lsb is None:
        raise MalformedMarkError("offloadContext lacks msb or lsb")
    return OffloadContext(msb, lsb, _text(value, "driverName") or "", _metadata(value.get("metadata")))


def _metadata(value: object) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise MalformedMarkError(f"offloadContext.metadata is {_describe(value)}, not a map")
    for name, text in value.items():
        if _text(value, name) is None or not isinstance(text, str):
            raise MalformedMarkError(f"offloadContext.metadata {_describe(name)} is {_describe(text)}, not text")
    return dict(value)


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
