"""The names that Pulsar's offloaders give the objects and files of a copy.

Sources: DataBlockUtils and BlobStoreManagedLedgerOffloader (jcloud), FileSystemManagedLedgerOffloader, Pulsar 4.0.
"""

from __future__ import annotations

from collections.abc import Mapping

from bookwarden.ledgers.offloaded_copies import OffloadedCopy

_OWNER = "managedledgername"


def data_name(copy: OffloadedCopy) -> str:
    """Name the object that holds the entries."""
    return str(copy.uuid) if copy.segment else f"{copy.uuid}-ledger-{copy.ledger_id}"


def object_names(copy: OffloadedCopy) -> tuple[str, str]:
    """Name the copy's objects: the data first, then its index."""
    data = data_name(copy)
    return data, f"{data}-index"


def map_file_name(copy: OffloadedCopy) -> str:
    """Name the folder (a Hadoop MapFile) of a copy, below the storage's base path."""
    return f"{copy.managed_ledger}/{copy.ledger_id}-{copy.uuid}"


def owner_in(metadata: Mapping[str, str]) -> str | None:
    """Name the managed ledger that an object's metadata tells of; the stores change the case of names."""
    return next((value for name, value in metadata.items() if name.lower() == _OWNER), None)
