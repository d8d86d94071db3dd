"""The head of an object, and the reading of a copy from its objects' heads and its index."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from bookwarden.clusters.offload.names import data_name, object_names
from bookwarden.errors import FormatError
from bookwarden.ledgers.offloaded_copies import (
    AbsentCopy,
    CopyIndex,
    CopyReading,
    DamagedIndex,
    OffloadedCopy,
    PresentCopy,
    UnreadableCopy,
)
from bookwarden.wire.offload_index import decode_index_beginning


class StoredHead(NamedTuple):
    """An object that is there: its bytes, and the managed ledger that it names, if any."""

    length: int
    owner: str | None


Head = StoredHead | AbsentCopy | UnreadableCopy
# Reads the head of the object with this name; may raise StoreSilentError.
ReadsHead = Callable[[str], Head]
# Reads the first INDEX_BEGINNING bytes of an object that is not empty; may raise StoreSilentError.
ReadsBeginning = Callable[[str], bytes | AbsentCopy | UnreadableCopy]


def look(copy: OffloadedCopy, head: ReadsHead) -> CopyReading:
    """Check the data alone, whose head names the copy's owner."""
    data = head(data_name(copy))
    return PresentCopy(data.owner) if isinstance(data, StoredHead) else data


def examine(copy: OffloadedCopy, head: ReadsHead, beginning: ReadsBeginning) -> CopyReading:
    """Check data and index, and read the latter."""
    data_key, index_key = object_names(copy)
    data = head(data_key)
    if not isinstance(data, StoredHead):
        return data
    found = head(index_key)
    index = _index(index_key, found, beginning) if isinstance(found, StoredHead) else found
    if isinstance(index, UnreadableCopy):
        return index
    return PresentCopy(data.owner, data.length, None if isinstance(index, AbsentCopy) else index)


def _index(
    key: str, found: StoredHead, beginning: ReadsBeginning
) -> CopyIndex | DamagedIndex | AbsentCopy | UnreadableCopy:
    if not found.length:
        return DamagedIndex("it is empty")
    raw = beginning(key)
    if not isinstance(raw, bytes):
        return raw
    try:
        return decode_index_beginning(raw, found.length)
    except FormatError as error:
        return DamagedIndex(str(error))
