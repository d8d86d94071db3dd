"""Ledgers left in BookKeeper that their topic's list says are gone from it: the conditions for deleting them.

A broker writes bookkeeperDeleted first and deletes after, so one that dies in between leaves the ledger behind, and
never deletes it again (ManagedLedgerImpl.internalTrimLedgers and asyncDeleteLedger of Pulsar 4.0). Here the offloaded
copy must be proven before the ledger goes, since the ledger may be the only copy left.
"""

from __future__ import annotations

from bookwarden.ledgers.custom_metadata import is_unfinished
from bookwarden.ledgers.managed_ledger import LedgerInfo, OffloadInfo
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState
from bookwarden.ledgers.offloaded_copies import (
    AbsentCopy,
    CopyIndex,
    CopyReading,
    DamagedIndex,
    OffloadedCopy,
    UnreadableCopy,
    store_location,
)


def copy_left(listed: LedgerInfo, offload: OffloadInfo, managed_ledger: str) -> OffloadedCopy:
    """Return the offloaded copy that the list says is the only one."""
    location = store_location(offload.driver_name, offload.driver_metadata)
    return OffloadedCopy(listed.ledger_id, managed_ledger, offload.uuid, location)


def why_not_offloaded(listed: LedgerInfo, metadata: LedgerMetadata) -> str | None:
    """Return why the list does not vouch for a whole offloaded copy of this ledger; None if it does."""
    offload = listed.offload
    if offload is None or not offload.bookkeeper_deleted:
        return "the list does not say that BookKeeper's ledger was deleted"
    if not offload.understood:
        return "the list says more of its offloaded copy than is known here"
    if not offload.complete or offload.uuid.int == 0:
        return "the list does not say that its offloaded copy is complete"
    if offload.segments:
        return "the list has segments of the former streaming offload"
    if is_unfinished(metadata):
        # Only the list says how long the ledger of a copy was that no broker reads.
        return None
    if metadata.state is not LedgerState.CLOSED or metadata.last_entry_id is None:
        return "BookKeeper's ledger is not closed"
    if metadata.last_entry_id >= listed.entries:
        return f"BookKeeper has {metadata.last_entry_id + 1:,} entries of it, and the list {listed.entries:,}"
    return None


def why_not_whole(copy: OffloadedCopy, reading: CopyReading, length: int, last_entry_id: int) -> str | None:
    """Return why the store's copy is not whole for a ledger of this length and last entry; None if it is."""
    if isinstance(reading, UnreadableCopy):
        return f"it cannot be looked at: {reading.reason}"
    if isinstance(reading, AbsentCopy):
        return "the store has no data of it"
    if reading.owner not in (None, copy.managed_ledger):
        return f"it names {reading.owner}"
    if reading.data_bytes < max(length, 1):
        return f"its data has {reading.data_bytes:,} bytes, and the ledger {length:,}"
    if reading.index is None:
        return "the store has no index of it"
    if isinstance(reading.index, DamagedIndex):
        return f"its index is damaged: {reading.index.reason}"
    return _why_not_its(reading.index, reading.data_bytes, length, last_entry_id)


def _why_not_its(index: CopyIndex, data_bytes: int, length: int, last_entry_id: int) -> str | None:
    if index.data_bytes not in (None, data_bytes):
        return f"its index is of {index.data_bytes:,} bytes of data, and its data has {data_bytes:,}"
    if index.length is not None and index.length < length:
        return f"its index is of a ledger of {index.length:,} bytes, and the ledger has {length:,}"
    if index.last_entry_id is not None and index.last_entry_id < last_entry_id:
        return f"its index ends with entry {index.last_entry_id:,}, and the ledger with {last_entry_id:,}"
    return None
