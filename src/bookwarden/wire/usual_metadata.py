"""Ledger metadata as BookKeeper writes it today, read with one call of protobuf's runtime.

Its segments and its custom metadata are understood once for the many ledgers that share them. Whatever is in the least
unusual is left to the careful decoder of wire/ledger_metadata.py, so both say the same of every value.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from google.protobuf.message import DecodeError

from bookwarden.ledgers.metadata import Segment
from bookwarden.wire.pb.usual_metadata_pb2 import UsualMetadata, UsualSegment

_VERSION_3: Final = b"BookieMetadataFormatVersion\t3\n"
_ONE_BYTE_LENGTH: Final = len(_VERSION_3) + 1
_TWO_BYTE_LENGTH: Final = len(_VERSION_3) + 2
# A larger value is rare, and would cost too much where its parts are remembered.
_MAX_BYTES: Final = 2048
_REMEMBERED: Final = 8192
_CLOSED: Final = UsualMetadata.CLOSED


def usual_metadata(value: bytes) -> UsualMetadata | None:
    """Parse what BookKeeper 4.9 and later write; None for anything that is not certainly that.

    The segments and the custom metadata are to be looked at by the caller: they are still encoded.
    """
    body = _body(value)
    if body is None:
        return None
    try:
        found = UsualMetadata.FromString(body)
    except DecodeError:
        return None
    state, quorum = found.state, found.quorumSize
    if found.length < 0 or not 0 <= found.ackQuorumSize <= quorum <= found.ensembleSize or quorum == 0:
        return None
    if not state or (state == _CLOSED and found.lastEntryId < -1):
        return None
    return found


def _body(value: bytes) -> bytes | None:
    """Cut the message of version 3 out, if it is all there is and its length stands in one byte or two."""
    size = len(value)
    if not _TWO_BYTE_LENGTH <= size <= _MAX_BYTES or not value.startswith(_VERSION_3):
        return None
    low = value[_ONE_BYTE_LENGTH - 1]
    if low < 0x80:
        return value[_ONE_BYTE_LENGTH:] if low == size - _ONE_BYTE_LENGTH else None
    length = low & 0x7F | value[_TWO_BYTE_LENGTH - 1] << 7
    return value[_TWO_BYTE_LENGTH:] if length == size - _TWO_BYTE_LENGTH else None


@lru_cache(maxsize=_REMEMBERED)
def usual_segments(encoded: tuple[bytes, ...], ensemble: int) -> tuple[Segment, ...] | None:
    """Decode the segments: at least one, each of so many bookies and behind the one before; None if they are not."""
    segments: list[Segment] = []
    last = -1
    for part in encoded:
        try:
            found = UsualSegment.FromString(part)
        except DecodeError:
            return None
        if found.firstEntryId <= last or len(found.ensembleMember) != ensemble:
            return None
        last = found.firstEntryId
        segments.append(Segment(last, tuple(found.ensembleMember)))
    return tuple(segments) or None
