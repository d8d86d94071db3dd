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
from bookwarden.wire.varint import encode_varint

_VERSION_3: Final = b"BookieMetadataFormatVersion\t3\n"
# A larger value is rare, and would cost too much where its parts are remembered.
_MAX_BYTES: Final = 2048
# What a value of so many bytes begins with, when its message is all the rest.
_BEGINNINGS: Final = {
    len(beginning) + length: beginning
    for length in range(_MAX_BYTES)
    for beginning in [_VERSION_3 + encode_varint(length)]
}
_REMEMBERED: Final = 8192


def usual_metadata(value: bytes) -> UsualMetadata | None:
    """Parse what BookKeeper 4.9 and later write; None for anything that is not certainly that.

    What it says is to be looked at by the caller, who reads each field once; segments and custom metadata are still
    encoded.
    """
    body = _body(value)
    if body is None:
        return None
    try:
        return UsualMetadata.FromString(body)
    except DecodeError:
        return None


def _body(value: bytes) -> bytes | None:
    """Cut the message of version 3 out, if it is all there is."""
    beginning = _BEGINNINGS.get(len(value))
    return value[len(beginning) :] if beginning is not None and value.startswith(beginning) else None


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
