"""The value of a ledger's metadata node, in the three versions of BookKeeper's LedgerMetadataSerDe.

All begin with ``BookieMetadataFormatVersion\\t<version>\\n``. Version 1 goes on with lines of text, version 2 with
protobuf's text format, version 3 with a varint length and the binary message. The password that a ledger's
metadata carries is never taken into LedgerMetadata or an error; decode_ledger_password alone gives it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from google.protobuf import text_format

from bookwarden.errors import FormatError
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState, Segment
from bookwarden.wire.pb import ledger_metadata_pb2 as pb
from bookwarden.wire.protobuf import parse
from bookwarden.wire.usual_metadata import usual_metadata, usual_segments
from bookwarden.wire.varint import encode_varint

_WHAT = "ledger metadata"
_HEADER = b"BookieMetadataFormatVersion\t"
_VERSION_3 = _HEADER + b"3\n"
_VERSION_2 = _HEADER + b"2\n"
_VERSION_1 = _HEADER + b"1\n"
_HEADER_SIZE = len(_VERSION_3)
_CUSTOM_TAG = b"\x5a"

_STATES = {state.value: state for state in LedgerState}
_CLOSED = LedgerState.CLOSED.value
_DIGESTS = {number: name for name, number in pb.LedgerMetadataFormat.DigestType.items()}
_IN_RECOVERY_V1 = -102
_INT64 = range(-(2**63), 2**63)


def decode_ledger_metadata(raw: bytes) -> LedgerMetadata:
    """Decode the node's value; raises FormatError for whatever BookKeeper could not have written."""
    return _usual(raw) or decode_carefully(raw)


def decode_carefully(raw: bytes) -> LedgerMetadata:
    """Decode the node's value in any of the versions, which takes longer; raises as decode_ledger_metadata does."""
    header = raw[:_HEADER_SIZE]
    if header == _VERSION_3:
        return _from_message(_parse_delimited(raw), 3)
    if header == _VERSION_2:
        return _from_message(_parse_text(raw[_HEADER_SIZE:]), 2)
    if header == _VERSION_1:
        return _from_lines(raw[_HEADER_SIZE:])
    raise FormatError(f"{_WHAT}: {len(raw)} bytes without a header of version 1, 2 or 3")


def decode_ledger_password(raw: bytes) -> bytes:
    """Decode the password alone, for those who read the ledger's entries; empty where there is none.

    Raises FormatError as decode_ledger_metadata does.
    """
    header = raw[:_HEADER_SIZE]
    if header == _VERSION_3:
        return _parse_delimited(raw).password
    if header == _VERSION_2:
        return _parse_text(raw[_HEADER_SIZE:]).password
    return b""


def decode_custom_metadata(entries: Iterable[bytes]) -> Mapping[str, bytes]:
    """Decode the custom metadata alone, from the encoded values of its field of version 3.

    Raises FormatError as decode_ledger_metadata does.
    """
    body = b"".join([_CUSTOM_TAG + encode_varint(len(entry)) + entry for entry in entries])
    return _custom(parse(pb.LedgerMetadataFormat(), body, _WHAT))


def encode_ledger_metadata(metadata: LedgerMetadata, *, password: bytes = b"") -> bytes:
    """Encode as version 3, as a BookKeeper client would."""
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
    for segment in metadata.segments:
        message.segment.add(ensembleMember=segment.ensemble, firstEntryId=segment.first_entry_id)
    for key, value in metadata.custom.items():
        message.customMetadata.add(key=key, value=value)
    body = message.SerializeToString()
    return _VERSION_3 + encode_varint(len(body)) + body


def _usual(raw: bytes) -> LedgerMetadata | None:
    found = usual_metadata(raw)
    if found is None:
        return None
    ensemble, write, ack, length = found.ensembleSize, found.quorumSize, found.ackQuorumSize, found.length
    if length < 0 or not 0 <= ack <= write <= ensemble or write == 0:
        return None
    state = found.state
    last_entry = found.lastEntryId if state == _CLOSED else None
    if not state or (last_entry is not None and last_entry < -1):
        return None
    # Slices: the runtime's own iteration takes twice as long.
    segments = usual_segments(tuple(found.segment[:]), ensemble)
    custom = _usual_custom(tuple(found.customMetadata[:]))
    if segments is None or custom is None:
        return None
    return LedgerMetadata(
        3,
        _STATES[state],
        ensemble,
        write,
        ack,
        segments,
        length,
        last_entry,
        _DIGESTS.get(found.digestType),
        found.ctime if found.HasField("ctime") else None,
        custom,
    )


# A holder's ledgers share theirs; nobody changes it.
@lru_cache(maxsize=8192)
def _usual_custom(entries: tuple[bytes, ...]) -> Mapping[str, bytes] | None:
    try:
        return decode_custom_metadata(entries)
    except FormatError:
        return None


def _parse_delimited(raw: bytes) -> pb.LedgerMetadataFormat:
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
    return parse(pb.LedgerMetadataFormat(), raw[position:], _WHAT)


def _parse_text(text: bytes) -> pb.LedgerMetadataFormat:
    try:
        return text_format.Parse(text.decode(), pb.LedgerMetadataFormat())
    except UnicodeDecodeError:
        # Not chained, here and below: these errors carry the text, which holds the password.
        raise FormatError(f"{_WHAT}: version 2 text that is not UTF-8") from None
    except text_format.ParseError as error:
        raise FormatError(f"{_WHAT}: version 2 text that cannot be parsed, line {error.GetLine()}") from None


def _from_message(message: pb.LedgerMetadataFormat, version: int) -> LedgerMetadata:
    has = message.HasField
    if not (has("state") and has("length") and has("quorumSize") and has("ensembleSize")):
        raise FormatError(f"{_WHAT}: the state, length, quorum size or ensemble size is missing")
    closed = message.state == _CLOSED
    if closed and not has("lastEntryId"):
        raise FormatError(f"{_WHAT}: it is closed and lastEntryId is missing")
    return _checked(
        LedgerMetadata(
            version,
            _STATES[message.state],
            message.ensembleSize,
            message.quorumSize,
            message.ackQuorumSize if has("ackQuorumSize") else message.quorumSize,
            tuple([Segment(part.firstEntryId, tuple(part.ensembleMember)) for part in message.segment]),
            message.length,
            message.lastEntryId if closed else None,
            _DIGESTS[message.digestType] if has("digestType") else None,
            message.ctime if has("ctime") else None,
            _custom(message),
        )
    )


def _custom(message: pb.LedgerMetadataFormat) -> Mapping[str, bytes]:
    entries = message.customMetadata
    custom = {entry.key: entry.value for entry in entries}
    if len(custom) != len(entries) or "" in custom:
        raise FormatError(f"{_WHAT}: a key of the custom metadata is missing or stands twice")
    return custom


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
    return _checked(LedgerMetadata(1, state, ensemble, quorum, quorum, segments, length, last_entry))


def _number(text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isdigit() and digits.isascii() and len(digits) <= 19) or int(text) not in _INT64:
        raise FormatError(f"{_WHAT}: version 1 text has {text[:40]!r} where a number is expected")
    return int(text)


def _checked(metadata: LedgerMetadata) -> LedgerMetadata:
    """Hold the value against the rules of LedgerMetadataImpl and LedgerMetadataBuilder."""
    write = metadata.write_quorum
    if not 0 <= metadata.ack_quorum <= write <= metadata.ensemble_size or write == 0:
        raise FormatError(
            f"{_WHAT}: impossible quorums: ensemble {metadata.ensemble_size}, write {write}, ack {metadata.ack_quorum}"
        )
    if metadata.length < 0:
        raise FormatError(f"{_WHAT}: impossible length {metadata.length}")
    if metadata.last_entry_id is not None and metadata.last_entry_id < -1:
        raise FormatError(f"{_WHAT}: impossible last entry {metadata.last_entry_id}")
    _check_segments(metadata)
    return metadata


def _check_segments(metadata: LedgerMetadata) -> None:
    if not metadata.segments:
        raise FormatError(f"{_WHAT}: no bookies at all")
    previous = -1
    for segment in metadata.segments:
        if segment.first_entry_id <= previous:
            raise FormatError(f"{_WHAT}: a segment begins at entry {segment.first_entry_id}, behind {previous}")
        if len(segment.ensemble) != metadata.ensemble_size:
            raise FormatError(f"{_WHAT}: a segment of {len(segment.ensemble)} bookies, not {metadata.ensemble_size}")
        previous = segment.first_entry_id
