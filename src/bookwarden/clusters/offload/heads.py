"""What the head of an object tells, and what the heads of a copy's objects say of the copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from bookwarden.clusters.offload.names import data_name, object_names
from bookwarden.ledgers.offloaded_copies import (
    AbsentCopy,
    CopyReading,
    OffloadedCopy,
    PresentCopy,
    UnreadableCopy,
)


class StoredHead(NamedTuple):
    """An object that is there: its bytes, and the managed ledger that it names, if any."""

    length: int
    owner: str | None


Head = StoredHead | AbsentCopy | UnreadableCopy
# Looks at the object of a name; may raise StoreSilentError.
ReadsHead = Callable[[str], Head]


def look(copy: OffloadedCopy, head: ReadsHead) -> CopyReading:
    """Look at the data alone, which tells whose the copy is."""
    data = head(data_name(copy))
    return PresentCopy(data.owner) if isinstance(data, StoredHead) else data


def examine(copy: OffloadedCopy, head: ReadsHead) -> CopyReading:
    """Look at data and index."""
    data, index = (head(name) for name in object_names(copy))
    if not isinstance(data, StoredHead):
        return data
    if isinstance(index, UnreadableCopy):
        return index
    return PresentCopy(data.owner, data.length, index.length if isinstance(index, StoredHead) else None)
