"""The value of a ledger's metadata node, in the three versions of BookKeeper's LedgerMetadataSerDe.

All begin with ``BookieMetadataFormatVersion\\t<version>\\n``. Version 1 goes on with lines of text, version 2 with
protobuf's text format, version 3 with a varint length and the binary message. The password that a ledger's
metadata carries is never taken into LedgerMetadata or an error; decode_ledger_password alone gives it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from google.protobuf import text_format

from bookwarden.errors import FormatError
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState, Segment
from bookwarden.wire.pb import ledger_metadata_pb2 as pb
from bookwarden.wire.protobuf import encode_varint, parse

_WHAT = "ledger metadata"
_HEADER = b"BookieMetadataFormatVersion\t"
_VERSION_3 = _HEADER + b"3\n"
_VERSION_2 = _HEADER + b"2\n"
_VERSION_1 = _HEADER + b"1\n"
_HEADER_SIZE = len(_VERSION_3)
# The first bytes of the fields of segments and of custom metadata.
_SEGMENT_TAG, _CUSTOM_TAG = b"\x32", b"\x5a"
# A larger value is rare, and its parts would cost too much memory.
_MAX_SHARED_BYTES = 2048

_STATES = {state.value: state for state in LedgerState}
_CLOSED = LedgerState.CLOSED.value
_DIGESTS = {number: name for name, number in pb.LedgerMetadataFormat.DigestType.items()}
_IN_RECOVERY_V1 = -102
_INT64 = range(-(2**63), 2**63)


def decode_ledger_metadata(raw: bytes) -> LedgerMetadata:
    """Decode the node's value; raises FormatError for anything that BookKeeper could not have written."""
    header = raw[:_HEADER_SIZE]
    if header == _VERSION_3:
        return _from_body(_delimited(raw), 3)
    if header == _VERSION_2:
        return _from_body(_parse_text(raw[_HEADER_SIZE:]).SerializeToString(), 2)
    if header == _VERSION_1:
        return _from_lines(raw[_HEADER_SIZE:])
    raise FormatError(f"{_WHAT}: {len(raw)} bytes without a header of version 1, 2 or 3")


def encode_ledger_metadata(metadata: LedgerMetadata, *, password: bytes = b"") -> bytes:
    """Encode as version 3, as BookKeeper's own client does."""
    message = pb.LedgerMetadataFormat(
        quorumSize=metadata.write_quorum,
        ackQuorumSize=metadata.ack_quorum,
        ensembleSize=metadata.ensemble_size,
        length=metadata.length,
        lastEntryId=-1 if metadata.last_entry_id is None else metadata.last_entry_id,
        state=metadata.state.name,
        digestType=metadata.digest_type,
        password=password,
        ctime=metadata.ctime_ms,
    )
    message.MergeFromString(encode_segments(metadata.segments))
    for key, value in metadata.custom.items():
        message.customMetadata.add(key=key, value=value)
    return _as_version_3(message)


def change_ledger_metadata(raw: bytes, state: LedgerState, last_entry_id: int | None = None, length: int = 0) -> bytes:
    """Encode the same metadata with another state and end; all else stays as it is.

    Raises FormatError where it is not of version 3: BookKeeper keeps the version of a ledger, and this writes no other.
    """
    message = _parse_to_change(raw)
    last = -1 if last_entry_id is None else last_entry_id
    message.MergeFrom(pb.LedgerMetadataFormat(state=state.name, lastEntryId=last, length=length))
    return _as_version_3(message)


def with_custom_metadata(raw: bytes, values: Mapping[str, str]) -> bytes:
    """Encode the same metadata with other values of some keys of the custom metadata that it has.

    All else stays as it is. Raises FormatError as `change_ledger_metadata` does.
    """
    message = _parse_to_change(raw)
    for entry in message.customMetadata:
        if entry.key in values:
            entry.value = values[entry.key].encode()
    return _as_version_3(message)


def decode_ledger_password(raw: bytes) -> bytes:
    """Decode the password alone, for readers of the ledger's entries; empty where there is none.

    Raises FormatError as decode_ledger_metadata does.
    """
    header = raw[:_HEADER_SIZE]
    if header == _VERSION_3:
        return parse(pb.LedgerMetadataFormat(), _delimited(raw), _WHAT).password
    if header == _VERSION_2:
        return _parse_text(raw[_HEADER_SIZE:]).password
    return b""


def decode_custom_metadata(fields: bytes) -> Mapping[str, bytes]:
    """Decode the custom metadata alone, from its encoded fields of version 3 and perhaps others among them.

    Raises FormatError as decode_ledger_metadata does.
    """
    entries = parse(pb.LedgerMetadataFormat(), fields, _WHAT).customMetadata
    custom = {entry.key: entry.value for entry in entries}
    if len(custom) != len(entries) or "" in custom:
        raise FormatError(f"{_WHAT}: a key of the custom metadata is missing or stands twice")
    return custom


def encode_segments(segments: Sequence[Segment]) -> bytes:
    """Encode segments as the fields of version 3."""
    message = pb.LedgerMetadataFormat()
    for segment in segments:
        message.segment.add(ensembleMember=segment.ensemble, firstEntryId=segment.first_entry_id)
    return message.SerializePartialToString()


def decode_segments(fields: bytes) -> tuple[Segment, ...]:
    """Decode the segments alone, from their encoded fields of version 3; FormatError if they are damaged."""
    parts = parse(pb.LedgerMetadataFormat(), fields, _WHAT).segment
    return tuple([Segment(part.firstEntryId, tuple(part.ensembleMember)) for part in parts])


def _parse_to_change(raw: bytes) -> pb.LedgerMetadataFormat:
    if raw[:_HEADER_SIZE] != _VERSION_3:
        raise FormatError(f"{_WHAT} of another version than 3 is not written here")
    return parse(pb.LedgerMetadataFormat(), _delimited(raw), _WHAT)


def _as_version_3(message: pb.LedgerMetadataFormat) -> bytes:
    body = message.SerializeToString()
    return _VERSION_3 + encode_varint(len(body)) + body


def _delimited(raw: bytes) -> bytes:
    length = shift = 0
    position = _HEADER_SIZE
    for byte in raw[_HEADER_SIZE : _HEADER_SIZE + 5]:
        length |= (byte & 0x7F) << shift
        shift += 7
        position += 1
        if byte < 0x80:
            break
    if len(raw) - position != length:
        raise FormatError(f"{_WHAT}: {len(raw) - position} bytes where its length says {length}")
    return raw[position:]


def _parse_text(text: bytes) -> pb.LedgerMetadataFormat:
    try:
        return text_format.Parse(text.decode(), pb.LedgerMetadataFormat())
    except UnicodeDecodeError:
        # Not chained, here and below: these errors carry the text, which holds the password.
        raise FormatError(f"{_WHAT}: version 2 text that is not UTF-8") from None
    except text_format.ParseError as error:
        raise FormatError(f"{_WHAT}: version 2 text that cannot be parsed, line {error.GetLine()}") from None


def _from_body(body: bytes, version: int) -> LedgerMetadata:
    found = parse(pb.LedgerMetadataParts(), body, _WHAT)
    has = found.HasField
    if not (has("state") and has("length") and has("quorumSize") and has("ensembleSize")):
        raise FormatError(f"{_WHAT}: the state, length, quorum size or ensemble size is missing")
    state = found.state
    closed = state == _CLOSED
    if closed and not has("lastEntryId"):
        raise FormatError(f"{_WHAT}: it is closed and lastEntryId is missing")
    ensemble, write = found.ensembleSize, found.quorumSize
    ack, length, last_entry = found.ackQuorumSize if has("ackQuorumSize") else write, found.length, found.lastEntryId
    _check_numbers(ensemble, write, ack, length, last_entry if closed else None)
    large = len(body) > _MAX_SHARED_BYTES
    segments_of, custom_of = (_segments, _custom) if large else (_shared_segments, _shared_custom)
    return LedgerMetadata(
        version,
        _STATES[state],
        ensemble,
        write,
        ack,
        # Slices: the runtime's own iteration takes twice as long.
        segments_of(tuple(found.segment[:]), ensemble),
        length,
        last_entry if closed else None,
        _DIGESTS[found.digestType] if has("digestType") else None,
        found.ctime if has("ctime") else None,
        custom_of(tuple(found.customMetadata[:])),
    )


def _segments(encoded: Sequence[bytes], ensemble: int) -> tuple[Segment, ...]:
    segments = decode_segments(_fields(_SEGMENT_TAG, encoded))
    _check_segments(segments, ensemble)
    return segments


def _custom(encoded: Sequence[bytes]) -> Mapping[str, bytes]:
    return decode_custom_metadata(_fields(_CUSTOM_TAG, encoded))


# Many ledgers share both; they are never changed.
_shared_segments = lru_cache(maxsize=8192)(_segments)
_shared_custom = lru_cache(maxsize=8192)(_custom)


def _fields(tag: bytes, encoded: Sequence[bytes]) -> bytes:
    return b"".join([tag + encode_varint(len(value)) + value for value in encoded])


def _from_lines(text: bytes) -> LedgerMetadata:
    try:
        lines = text.decode("ascii").split("\n")
    except UnicodeDecodeError as error:
        raise FormatError(f"{_WHAT}: version 1 text that is not ASCII") from error
    if len(lines) < 3:
        raise FormatError(f"{_WHAT}: version 1 text of {len(lines)} lines; quorum, ensemble and length are needed")
    quorum, ensemble, length = (_number(line) for line in lines[:3])
    rows = [line.split("\t") for line in lines[3:] if line]
    state, last_entry = LedgerState.OPEN, None
    if rows and rows[-1][1:] == ["CLOSED"]:
        closing = _number(rows.pop()[0])
        state = LedgerState.IN_RECOVERY if closing == _IN_RECOVERY_V1 else LedgerState.CLOSED
        last_entry = closing if state is LedgerState.CLOSED else None
    if any("CLOSED" in row for row in rows):
        raise FormatError(f"{_WHAT}: version 1 text that goes on behind its end")
    segments = tuple(Segment(_number(row[0]), tuple(row[1:])) for row in rows)
    _check_numbers(ensemble, quorum, quorum, length, last_entry)
    _check_segments(segments, ensemble)
    return LedgerMetadata(1, state, ensemble, quorum, quorum, segments, length, last_entry)


def _number(text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isdigit() and digits.isascii() and len(digits) <= 19) or int(text) not in _INT64:
        raise FormatError(f"{_WHAT}: version 1 text has {text[:40]!r} where a number is expected")
    return int(text)


def _check_numbers(ensemble: int, write: int, ack: int, length: int, last_entry: int | None) -> None:
    """Raise FormatError for values that LedgerMetadataImpl and LedgerMetadataBuilder do not allow."""
    if not 0 <= ack <= write <= ensemble or write == 0:
        raise FormatError(f"{_WHAT}: impossible quorums: ensemble {ensemble}, write {write}, ack {ack}")
    if length < 0:
        raise FormatError(f"{_WHAT}: impossible length {length}")
    if last_entry is not None and last_entry < -1:
        raise FormatError(f"{_WHAT}: impossible last entry {last_entry}")


def _check_segments(segments: Sequence[Segment], ensemble: int) -> None:
    if not segments:
        raise FormatError(f"{_WHAT}: no bookies at all")
    previous = -1
    for segment in segments:
        if segment.first_entry_id <= previous:
            raise FormatError(f"{_WHAT}: a segment begins at entry {segment.first_entry_id}, behind {previous}")
        if len(segment.ensemble) != ensemble:
            raise FormatError(f"{_WHAT}: a segment of {len(segment.ensemble)} bookies, not {ensemble}")
        previous = segment.first_entry_id
