"""A ledger's metadata node as a row of a listing, in a few microseconds.

What BookKeeper writes today is read as wire/usual_metadata.py does. Whatever is in the least unusual goes through
decode_ledger_metadata, so a row says the same as that would.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from bookwarden.errors import FormatError
from bookwarden.ledgers.custom_metadata import describe_custom_metadata, identify_holder
from bookwarden.ledgers.holders import BucketHolder, CompactedHolder, CursorHolder, ManagedLedgerHolder, SchemaHolder
from bookwarden.ledgers.listing import ListedLedger
from bookwarden.ledgers.pending_deletion import LedgerComponent
from bookwarden.wire.ledger_metadata import decode_custom_metadata, decode_ledger_metadata
from bookwarden.wire.pb.usual_metadata_pb2 import UsualMetadata
from bookwarden.wire.usual_metadata import usual_metadata, usual_segments

_REMEMBERED: Final = 65_536

_STATES: Final = {number: name for name, number in UsualMetadata.State.items() if number != UsualMetadata.MISSING}
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
    found = usual_metadata(value)
    if found is None:
        return None
    # Slices: the runtime's own iteration takes twice as long.
    meaning = _understood(tuple(found.customMetadata[:]))
    if meaning is None or usual_segments(tuple(found.segment[:]), found.ensembleSize) is None:
        return None
    kind, holder, custom = meaning
    ctime_ms = found.ctime if found.HasField("ctime") else None
    state = _STATES[found.state]
    return ListedLedger(ledger_id, path, version, created_ms, ctime_ms, state, found.length, kind, holder, custom)


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
