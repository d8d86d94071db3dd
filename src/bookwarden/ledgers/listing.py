"""Rows of a listing of a whole BookKeeper, and of a reading of all metadata roots.

Rows are tuples, since a scan makes tens of millions of them.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID


class ListedLedger(NamedTuple):
    """A ledger that has metadata."""

    ledger_id: int  #: From the path of its node.
    path: str  #: Of the node, in the metadata store.
    version: int  #: Of the node; a delete demands it.
    created_ms: int  #: When the store created the node, in ms since the epoch.
    ctime_ms: int | None = None  #: When the ledger was created, by its creator's clock, in ms since the epoch.
    state: str | None = None  #: The name of a LedgerState.
    length: int = 0  #: In bytes; 0 while the ledger is open.
    kind: str | None = None  #: The name of the LedgerComponent in the custom metadata; None if unknown to us.
    holder: str | None = None  #: The text of the holder named there; None if unknown to us.
    custom: str | None = None  #: The custom metadata for people, where the holder is unknown.
    problem: str | None = None  #: Why the metadata could not be understood: what comes of it is then None or 0.
    entries: int = 0  #: 0 while the ledger is open.
    disk_bytes: int = 0  #: On all bookies together, as `ledgers.disk_use.disk_bytes` has it; 0 while it is open.
    segments: bytes | None = None  #: As `decode_segments` reads them.


class ListedReference(NamedTuple):
    """A place that names a ledger."""

    ledger_id: int | None  #: None for a holder that exists and names no ledger.
    place: str  #: The value of its PlaceKind.
    holder: str  #: The text of the holder that the place belongs to.
    managed_ledger: str | None  #: Of the topic that the place belongs to; None for schemas and logs.
    path: str  #: Of the node that the place is in.
    root: str  #: URL of its metadata root.
    length: int = 0  #: The size in bytes that the place states.
    #: BookKeeper need not have it: the place itself says so (bookkeeperDeleted), or it is the compacted ledger
    #: in the node of a cursor whose own ledger is open, where it stays after the broker has replaced and deleted it.
    gone: bool = False


class ListedCopy(NamedTuple):
    """An offloaded copy that a managed ledger names, finished or not."""

    uuid: UUID  #: Names the objects of the copy.
    ledger_id: int  #: Of the copied ledger.
    managed_ledger: str  #: That lists the ledger.
    driver: str  #: As recorded with the ledger.
    bucket: str  #: As recorded with the ledger; empty where none was.
    root: str  #: URL of the metadata root.


class ListedObject(NamedTuple):
    """An object, or a partial upload, in a store of offloaded copies."""

    store: str  #: As the settings name it.
    key: str  #: Of the object, whole.
    uuid: UUID | None  #: Read off the key; None if it is not the key of an offloaded copy.
    ledger_id: int | None  #: Read off the key; None if that has none.
    length: int  #: In bytes.
    modified_ms: int  #: By the store's clock, in ms since the epoch.
    upload_id: str | None = None  #: Of an upload that was begun and not ended; None for an object.
