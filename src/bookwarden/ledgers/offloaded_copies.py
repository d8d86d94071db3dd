"""Offloaded copies of ledgers: their places, and the results of looking at or deleting one."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

# Keys of an offloaded copy's driver metadata (TieredStorageConfiguration, FileSystemManagedLedgerOffloader).
DRIVER = "managedLedgerOffloadDriver"
BUCKET = "bucket"
REGION = "region"
ENDPOINT = "serviceEndpoint"
STORAGE_BASE_PATH = "storageBasePath"
FILE_SYSTEM = "filesystem"
# Ours: the copy is a segment of the former streaming offload, whose objects have other names.
LEGACY_SEGMENT = "bookwarden.legacySegment"

# The brokers record the driver's name and, in its metadata, the name of the enum constant.
_DRIVERS = {
    "s3": "S3",
    "aws-s3": "aws-s3",
    "aws_s3": "aws-s3",
    "google-cloud-storage": "google-cloud-storage",
    "google_cloud_storage": "google-cloud-storage",
    "azureblob": "azureblob",
    "azure_blob": "azureblob",
    "filesystem": FILE_SYSTEM,
}


class StoreLocation(NamedTuple):
    """The place that was recorded with the ledger; empty text where nothing was.

    ``endpoint`` is a URL, or the base path of a file system, which has no bucket and no region.
    """

    driver: str
    bucket: str
    region: str
    endpoint: str

    def __str__(self) -> str:
        bucket = f", bucket {self.bucket!r}" if self.bucket else ""
        region = f", region {self.region!r}" if self.region else ""
        return f"driver {self.driver!r}{bucket}{region}, endpoint {self.endpoint!r}"


class OffloadedCopy(NamedTuple):
    """One offloaded copy; ``segment`` marks one of the former streaming offload."""

    ledger_id: int
    managed_ledger: str
    uuid: UUID
    location: StoreLocation
    segment: bool = False


def store_location(driver_name: str, metadata: Mapping[str, str]) -> StoreLocation:
    """Return where a copy lies, from what the broker recorded; a driver that we do not know keeps its name."""
    named = driver_name or metadata.get(DRIVER, "")
    driver = _DRIVERS.get(named.lower(), named)
    if driver == FILE_SYSTEM:
        return StoreLocation(driver, "", "", metadata.get(STORAGE_BASE_PATH, ""))
    return StoreLocation(driver, metadata.get(BUCKET, ""), metadata.get(REGION, ""), metadata.get(ENDPOINT, ""))


def recorded_metadata(location: StoreLocation) -> dict[str, str]:
    """Return the metadata that a broker records with a copy in this place; `store_location` reads it back."""
    if location.driver == FILE_SYSTEM:
        return {STORAGE_BASE_PATH: location.endpoint}
    return {BUCKET: location.bucket, REGION: location.region, ENDPOINT: location.endpoint}


@dataclass(frozen=True, slots=True)
class CopyIndex:
    """The contents of a copy's index; all None in that of a file system, which has none of it."""

    data_bytes: int | None = None  #: Of the copy.
    last_entry_id: int | None = None  #: Of the ledger.
    length: int | None = None  #: Of the ledger, in bytes.


@dataclass(frozen=True, slots=True)
class DamagedIndex:
    """An index from which no broker could read."""

    reason: str


@dataclass(frozen=True, slots=True)
class PresentCopy:
    """The store has the copy."""

    owner: str | None  #: The managed ledger that it names; None if it names none.
    data_bytes: int = 0  #: Size of its data, where asked for.
    index: CopyIndex | DamagedIndex | None = None  #: Where asked for; None if it is missing.


@dataclass(frozen=True, slots=True)
class AbsentCopy:
    """The store has no data of this copy, as far as a look can tell."""


@dataclass(frozen=True, slots=True)
class UnreadableCopy:
    """The store did not say: nothing may be concluded from it."""

    reason: str
    has_store: bool = True  #: False where the settings have no store for its place, so that asking again is no use.


CopyReading = PresentCopy | AbsentCopy | UnreadableCopy


class CopyFate(enum.Enum):
    """The result of deleting one copy."""

    DELETED = "deleted"
    ABORTED = "aborted"  #: An unfinished upload of it was deleted too; there may have been nothing else.
    ABSENT = "absent"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class CopyDeletion:
    """The result of deleting one copy; ``reason`` is the store's own words where that failed."""

    fate: CopyFate
    reason: str = ""
