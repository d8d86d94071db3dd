"""A ledger's metadata node as a row of a listing, in a few microseconds.

What BookKeeper writes today is read with one call of the protobuf runtime, and its custom metadata is understood once
for the many ledgers that share it. Whatever is in the least unusual goes through decode_ledger_metadata, so a row
says the same as that would.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from bookwarden.errors import FormatError
from bookwarden.ledgers.custom_metadata import describe_custom_metadata, identify_holder
from bookwarden.ledgers.holders import BucketHolder, CompactedHolder, CursorHolder, ManagedLedgerHolder, SchemaHolder
from bookwarden.ledgers.listing import ListedLedger
from bookwarden.ledgers.pending_deletion import LedgerComponent
from bookwarden.wire.ledger_metadata import decode_custom_metadata, decode_ledger_metadata
from bookwarden.wire.pb.listed_ledger_pb2 import ListedMetadata, ListedSegment

_VERSION_3: Final = b"BookieMetadataFormatVersion\t3\n"
_ONE_BYTE_LENGTH: Final = len(_VERSION_3) + 1
_TWO_BYTE_LENGTH: Final = len(_VERSION_3) + 2
# A larger value is rare, and would cost too much where its custom metadata is remembered.
_MAX_QUICK_BYTES: Final = 2048
_REMEMBERED: Final = 65_536

_CLOSED: Final = ListedMetadata.CLOSED
_STATES: Final = {number: name for name, number in ListedMetadata.State.items() if number != ListedMetadata.MISSING}
_KINDS: Final = {
    ManagedLedgerHolder: LedgerComponent.MANAGED_LEDGER.name,
    CursorHolder: LedgerComponent.MANAGED_CURSOR.name,
    SchemaHolder: LedgerComponent.SCHEMA_STORAGE.name,
    CompactedHolder: LedgerComponent.COMPACTED_LEDGER.name,
    BucketHolder: LedgerComponent.DELAYED_INDEX_BUCKET.name,
}


class _Meaning(NamedTuple):
    """What custom metadata says: the last fields but one of a ListedLedger."""

    kind: str | None
    holder: str | None
    custom: str | None


def listed_ledger(ledger_id: int, path: str, value: bytes, version: int, created_ms: int) -> ListedLedger:
    """Make the row of a ledger whose node has this value; what cannot be understood is told in ``problem``."""
    return _quick(ledger_id, path, value, version, created_ms) or _careful(ledger_id, path, value, version, created_ms)


def _quick(ledger_id: int, path: str, value: bytes, version: int, created_ms: int) -> ListedLedger | None:
    """Read what BookKeeper 4.9 and later write; None for anything that is not certainly that."""
    body = _body(value)
    if body is None:
        return None
    try:
        found = ListedMetadata.FromString(body)
    except DecodeError:
        return None
    ensemble, quorum, length, state = found.ensembleSize, found.quorumSize, found.length, found.state
    if length < 0 or not 0 <= found.ackQuorumSize <= quorum <= ensemble or quorum == 0:
        return None
    if not state or (state == _CLOSED and found.lastEntryId < -1):
        return None
    # Slices: the runtime's own iteration takes twice as long.
    meaning = _understood(tuple(found.customMetadata[:]))
    if meaning is None or not _are_segments(tuple(found.segment[:]), ensemble):
        return None
    kind, holder, custom = meaning
    ctime_ms = found.ctime if found.HasField("ctime") else None
    return ListedLedger(ledger_id, path, version, created_ms, ctime_ms, _STATES[state], length, kind, holder, custom)


def _body(value: bytes) -> bytes | None:
    """Cut the message of version 3 out, if it is all there is and its length stands in one byte or two."""
    size = len(value)
    if not _TWO_BYTE_LENGTH <= size <= _MAX_QUICK_BYTES or not value.startswith(_VERSION_3):
        return None
    low = value[_ONE_BYTE_LENGTH - 1]
    if low < 0x80:
        return value[_ONE_BYTE_LENGTH:] if low == size - _ONE_BYTE_LENGTH else None
    length = low & 0x7F | value[_TWO_BYTE_LENGTH - 1] << 7
    return value[_TWO_BYTE_LENGTH:] if length == size - _TWO_BYTE_LENGTH else None


@lru_cache(maxsize=_REMEMBERED)
def _are_segments(segments: tuple[bytes, ...], ensemble: int) -> bool:
    """Whether the encoded segments are at least one, each of so many bookies and behind the one before."""
    last = -1
    for segment in segments:
        try:
            found = ListedSegment.FromString(segment)
        except DecodeError:
            return False
        if found.firstEntryId <= last or len(found.ensembleMember) != ensemble:
            return False
        last = found.firstEntryId
    return last >= 0


def _careful(ledger_id: int, path: str, value: bytes, version: int, created_ms: int) -> ListedLedger:
    try:
        metadata = decode_ledger_metadata(value)
    except FormatError as error:
        return ListedLedger(ledger_id, path, version, created_ms, problem=str(error))
    meaning = _meaning(metadata.custom)
    state, length = metadata.state.name, metadata.length
    return ListedLedger(ledger_id, path, version, created_ms, metadata.ctime_ms, state, length, *meaning)


@lru_cache(maxsize=_REMEMBERED)
def _understood(entries: tuple[bytes, ...]) -> _Meaning | None:
    """Say what the encoded entries mean together; None for what the careful decoder would refuse."""
    try:
        return _meaning(decode_custom_metadata(entries))
    except FormatError:
        return None


def _meaning(custom: Mapping[str, bytes]) -> _Meaning:
    holder = identify_holder(custom)
    if holder is None:
        return _Meaning(None, None, describe_custom_metadata(custom))
    return _Meaning(_KINDS[type(holder)], str(holder), None)
