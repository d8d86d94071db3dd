"""The value of a cursor's node, ManagedCursorInfo, and the last entry of its ledger, PositionInfo."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from bookwarden.errors import FormatError
from bookwarden.ledgers.managed_ledger import (
    DELAYED_BUCKET_PREFIX,
    CursorInfo,
    CursorPosition,
    Position,
)
from bookwarden.wire.envelope import Compression, unwrap, wrap
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


def position_entry(position: Position) -> bytes:
    """Make the entry of a cursor's ledger that has this position, and nothing acknowledged behind it."""
    return pb.PositionInfo(ledgerId=position.ledger_id, entryId=position.entry_id).SerializeToString()


def at_position(raw: bytes, entry: bytes | None) -> bytes:
    """Rewrite a cursor's node as one without a ledger, at the position in its ledger's last entry; None: in the node.

    Everything else stays. Raises FormatError as decoding does, where there is no position, and where acknowledgements
    are in no form that is known.
    """
    message, codec = _parse_cursor(raw)
    if entry is not None:
        found = parse(pb.PositionInfo(), entry, _ENTRY)
        refuse_unknown(found, _ENTRY)
        position = _position_in(found, _ENTRY)
        words = [_ranges_of_words(raw_words, position) for raw_words in found.individualDeletedMessageRanges]
        message.markDeleteLedgerId, message.markDeleteEntryId = position
        del message.individualDeletedMessages[:], message.batchedEntryDeletionIndexInfo[:], message.properties[:]
        message.individualDeletedMessages.extend(found.individualDeletedMessages)
        message.individualDeletedMessages.extend(one for of_ledger in words for one in of_ledger)
        message.batchedEntryDeletionIndexInfo.extend(found.batchedEntryDeletionIndexInfo)
        message.properties.extend(found.properties)
    require(message, "markDeleteLedgerId", _NODE)
    message.cursorsLedgerId = _NO_LEDGER
    return _rewritten(message, codec)


def acknowledged_behind(raw: bytes, entry: bytes | None) -> tuple[tuple[Position, Position], ...]:
    """List the ranges that a cursor has acknowledged behind its position: the entry before each, and its last one.

    ``raw`` is the cursor's node, ``entry`` the last one of its ledger; None: the position is in the node. FormatError
    as `at_position` raises it.
    """
    message, _ = _parse_cursor(at_position(raw, entry))
    ranges = (map(_nested, _ends(each)) for each in message.individualDeletedMessages)
    return tuple(sorted((before, last) for before, last in ranges))


def cursor_of_entry(entry: bytes, ledger_id: int) -> bytes:
    """Make a cursor's node again from the last entry of its ledger, which it then no longer needs.

    Only where acknowledgements are in a form that is not known here it names the ledger. FormatError for an entry that
    is none.
    """
    position = decode_position_info(entry).mark_delete
    made = pb.ManagedCursorInfo(cursorsLedgerId=_NO_LEDGER)
    try:
        return at_position(made.SerializeToString(), entry)
    except FormatError:
        made.cursorsLedgerId, made.markDeleteLedgerId, made.markDeleteEntryId = ledger_id, *position
        return made.SerializeToString()


def with_acknowledged(raw: bytes, live: bytes, through: Mapping[int, int]) -> bytes:
    """Rewrite a cursor's node as one that has also acknowledged what another, live one has; both have no ledger.

    ``through`` has the last entry that the live one has acknowledged, of each ledger of which it has all up to there.
    FormatError as decoding raises it.
    """
    message, codec = _parse_cursor(raw)
    other, _ = _parse_cursor(live)
    whole = (_message_range(ledger_id, -1, last) for ledger_id, last in sorted(through.items()) if last >= 0)
    # What was joined before has each of them already.
    single = dict.fromkeys((*message.individualDeletedMessages, *whole, *other.individualDeletedMessages))
    in_batches = dict.fromkeys((*message.batchedEntryDeletionIndexInfo, *other.batchedEntryDeletionIndexInfo))
    del message.individualDeletedMessages[:], message.batchedEntryDeletionIndexInfo[:]
    message.individualDeletedMessages.extend(single)
    message.batchedEntryDeletionIndexInfo.extend(in_batches)
    own = {entry.name for entry in other.cursorProperties}
    kept = [entry for entry in message.cursorProperties if entry.name not in own]
    del message.cursorProperties[:]
    message.cursorProperties.extend([*kept, *other.cursorProperties])
    return _rewritten(message, codec)


def without_buckets(raw: bytes, ledger_ids: Collection[int]) -> bytes:
    """Rewrite a cursor's node without the buckets that are in these ledgers; FormatError as decoding raises it."""
    message, codec = _parse_cursor(raw)
    kept = [
        entry
        for entry in message.cursorProperties
        if not (entry.name.startswith(DELAYED_BUCKET_PREFIX) and int(entry.value) in ledger_ids)
    ]
    del message.cursorProperties[:]
    message.cursorProperties.extend(kept)
    return _rewritten(message, codec)


def _parse_cursor(raw: bytes) -> tuple[pb.ManagedCursorInfo, Compression | None]:
    decode_cursor(raw)
    plain, codec = unwrap(raw)
    return parse(pb.ManagedCursorInfo(), plain, _NODE), codec


def _rewritten(message: pb.ManagedCursorInfo, codec: Compression | None) -> bytes:
    plain = message.SerializeToString()
    return plain if codec is None else wrap(plain, codec)


def _message_range(ledger_id: int, before: int, last: int) -> bytes:
    """Encode entries of a ledger as MessageRange of MLDataFormats: those behind one, up to and with the last."""
    ends = [pb.NestedPositionInfo(ledgerId=ledger_id, entryId=entry_id) for entry_id in (before, last)]
    fields = [(number, end.SerializeToString()) for number, end in enumerate(ends, 1)]
    return b"".join(bytes((number << 3 | 2, len(value))) + value for number, value in fields)


def _ends(raw: bytes) -> list[pb.NestedPositionInfo]:
    """Decode what `_message_range` encodes; FormatError for anything else."""
    ends, rest = [], raw
    for number in (1, 2):
        if rest[:1] != bytes((number << 3 | 2,)):
            raise FormatError(f"{_NODE}: it has acknowledgements in a form that is not known here")
        ends.append(parse(pb.NestedPositionInfo(), rest[2 : 2 + rest[1]], _NODE))
        rest = rest[2 + rest[1] :]
    return ends


def _nested(end: pb.NestedPositionInfo) -> Position:
    return Position(end.ledgerId, end.entryId)


def _ranges_of_words(raw: bytes, position: Position) -> list[bytes]:
    """Return the ranges of a ledger whose acknowledged entries are a set of bits, as brokers from 4.1 on write them.

    FormatError where that is not what it is: none of them is before the cursor's position.
    """
    found = parse(pb.LongListMap(), raw, _ENTRY)
    refuse_unknown(found, _ENTRY)
    bits = sum((word % 2**64) << (64 * at) for at, word in enumerate(found.values))
    ranges, at = [], 0
    while bits >> at:
        first = at + ((bits >> at) & -(bits >> at)).bit_length() - 1
        rest = ~(bits >> first)
        at = first + (rest & -rest).bit_length() - 1
        ranges.append((first, at - 1))
    if found.key < position.ledger_id or (
        found.key == position.ledger_id and ranges and ranges[0][0] <= position.entry_id
    ):
        raise FormatError(f"{_ENTRY}: it has acknowledgements in a form that is not known here")
    return [_message_range(found.key, first - 1, last) for first, last in ranges]


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
