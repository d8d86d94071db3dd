"""The fields of a pending deletion by their names in PIP-186, and the value made of them."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, TypeVar

from bookwarden.errors import MalformedMarkError
from bookwarden.ledgers.kinds import LedgerComponent
from bookwarden.ledgers.pending_deletion import LedgerType, OffloadContext, PendingDeletion
from bookwarden.ledgers.times import is_time

E = TypeVar("E", bound=enum.Enum)

_MIN_LONG = -(2**63)
_MAX_LONG = 2**63 - 1
_SHOWN = 80


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
