"""The value of a cursor's node, ManagedCursorInfo, and the last entry of its ledger, PositionInfo."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from bookwarden.errors import FormatError
from bookwarden.ledgers.managed_ledger import (
    DELAYED_BUCKET_PREFIX,
    CursorInfo,
    CursorPosition,
    Position,
)
from bookwarden.wire.envelope import unwrap
from bookwarden.wire.pb import managed_ledger_pb2 as pb
from bookwarden.wire.pb import pulsar_api_pb2
from bookwarden.wire.protobuf import parse, refuse_unknown, require

_NODE = "cursor node"
_ENTRY = "entry of a cursor's ledger"
_MESSAGE_ID = "message id"
_NO_LEDGER = -1
_MAX_LEDGER_ID = 2**63 - 1


def decode_cursor(raw: bytes) -> CursorInfo:
    """Decode the node's value, possibly in a compression envelope.

    Raises FormatError for a broken envelope, bytes that are no such message, a field that the message or one of its
    properties cannot have, no cursorsLedgerId, and a property that should name a ledger and does not.
    """
    plain, _ = unwrap(raw)
    message = parse(pb.ManagedCursorInfo(), plain, _NODE)
    refuse_unknown(message, _NODE)
    require(message, "cursorsLedgerId", _NODE)
    ledger_id = message.cursorsLedgerId
    if ledger_id < _NO_LEDGER:
        raise FormatError(f"{_NODE}: its ledger has the impossible id {ledger_id}")
    properties = _properties(message.properties, _NODE)
    _check_properties(message.cursorProperties, _NODE)
    named = {entry.name: entry.value for entry in message.cursorProperties}
    _check_buckets(named.items())
    own = None if ledger_id == _NO_LEDGER else ledger_id
    return CursorInfo(own, _mark_delete(message), properties, named, _acknowledged(message))


def decode_position_info(raw: bytes) -> CursorPosition:
    """Decode the last entry of a cursor's ledger; raises FormatError if it is malformed."""
    message = parse(pb.PositionInfo(), raw, _ENTRY)
    refuse_unknown(message, _ENTRY)
    position = _position_in(message, _ENTRY)
    return CursorPosition(position, _properties(message.properties, _ENTRY), _acknowledged(message))


def decode_message_id(raw: bytes) -> Position:
    """Decode the position in a message id; raises FormatError if it is none."""
    return _position_in(parse(pulsar_api_pb2.MessageIdData(), raw, _MESSAGE_ID), _MESSAGE_ID)


def _position_in(message: pb.PositionInfo | pulsar_api_pb2.MessageIdData, what: str) -> Position:
    require(message, "ledgerId", what)
    require(message, "entryId", what)
    return Position(message.ledgerId, message.entryId)


def _properties(entries: Collection[pb.LongProperty], what: str) -> dict[str, int]:
    _check_properties(entries, what)
    return {entry.name: entry.value for entry in entries}


def _check_properties(entries: Iterable[pb.LongProperty | pb.StringProperty], what: str) -> None:
    """Refuse a property that is not whole: it might be the one that names the compacted ledger."""
    for entry in entries:
        refuse_unknown(entry, f"{what}, property {entry.name!r}")
        require(entry, "name", f"{what}, property")
        require(entry, "value", f"{what}, property {entry.name!r}")


def _acknowledged(message: pb.ManagedCursorInfo | pb.PositionInfo) -> tuple[bytes, ...]:
    found = (*message.individualDeletedMessages, *message.batchedEntryDeletionIndexInfo)
    return found if isinstance(message, pb.ManagedCursorInfo) else (*found, *message.individualDeletedMessageRanges)


def _mark_delete(message: pb.ManagedCursorInfo) -> Position | None:
    if not message.HasField("markDeleteLedgerId"):
        return None
    require(message, "markDeleteEntryId", _NODE)
    return Position(message.markDeleteLedgerId, message.markDeleteEntryId)


def _check_buckets(named: Iterable[tuple[str, str]]) -> None:
    """Refuse a bucket whose ledger cannot be read: ignored, that ledger would look unreferenced."""
    for name, value in named:
        if name.startswith(DELAYED_BUCKET_PREFIX) and not _is_ledger_id(value):
            raise FormatError(f"{_NODE}: property {name!r} should name a ledger and is {value[:40]!r}")


def _is_ledger_id(text: str) -> bool:
    return len(text) <= 19 and text.isascii() and text.isdigit() and int(text) <= _MAX_LEDGER_ID
