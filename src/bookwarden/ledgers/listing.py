"""Rows of a listing of a whole BookKeeper, and of a reading of all metadata roots.

Rows are tuples, since a scan makes tens of millions of them.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID


class ListedLedger(NamedTuple):
    """A ledger that has metadata.

    ``created_ms`` is the store's creation time of the node and ``ctime_ms`` the creator's clock, both in milliseconds
    since the epoch; ``state`` is a name of LedgerState; ``length`` is in bytes, 0 while the ledger is open. ``kind`` is
    the name of the LedgerComponent in its custom metadata and ``holder`` the text of the holder named there, both
    None where it names none that we know; ``custom`` then describes it for people. ``problem`` says why the metadata
    could not be understood: the fields that come of it are then None or 0.
    """

    ledger_id: int
    path: str
    version: int
    created_ms: int
    ctime_ms: int | None = None
    state: str | None = None
    length: int = 0
    kind: str | None = None
    holder: str | None = None
    custom: str | None = None
    problem: str | None = None


class ListedReference(NamedTuple):
    """A ledger that a place names; ``place`` is the value of its PlaceKind, ``root`` the URL of its metadata root.

    ``ledger_id`` is None for a holder that exists and names no ledger. ``managed_ledger`` is that of the topic that the
    place belongs to, None where there is none (schemas, logs). ``length`` is the size in bytes that the place states.
    ``gone`` says that BookKeeper need not have it any more: the place itself says so (bookkeeperDeleted), or it is the
    compacted ledger in the node of a cursor whose own ledger is open, which stays there when the broker has replaced
    and deleted it.
    """

    ledger_id: int | None
    place: str
    holder: str
    managed_ledger: str | None
    path: str
    root: str
    length: int = 0
    gone: bool = False


class ListedCopy(NamedTuple):
    """An offloaded copy that a managed ledger names, finished or not; where it lies, as recorded with the ledger."""

    uuid: UUID
    ledger_id: int
    managed_ledger: str
    driver: str
    bucket: str
    root: str


class ListedObject(NamedTuple):
    """An object, or a partial upload, in a store of offloaded copies; ``store`` names the store as the settings do.

    ``uuid`` and ``ledger_id`` are read off its name, and None where the name is not that of an offloaded copy
    (``ledger_id`` also where the name has none). ``modified_ms`` is the store's clock. ``upload_id`` is that of an
    upload that was begun and not ended, None for an object.
    """

    store: str
    key: str
    uuid: UUID | None
    ledger_id: int | None
    length: int
    modified_ms: int
    upload_id: str | None = None
