"""Offloaded copies of ledgers: where one lies, and what a look at it or a delete of it can find."""

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
    """What the index of a copy says: the bytes of its data, and the last entry and the bytes of its ledger.

    All None in that of a file system, which says nothing of the kind.
    """

    data_bytes: int | None = None
    last_entry_id: int | None = None
    length: int | None = None


@dataclass(frozen=True, slots=True)
class DamagedIndex:
    """An index from which no broker could read."""

    reason: str


@dataclass(frozen=True, slots=True)
class PresentCopy:
    """The store has the copy; ``owner`` is the managed ledger that it names, None if it names none.

    ``data_bytes`` is the size of its data, and ``index`` what its index says, for those who asked for both; None where
    it is missing.
    """

    owner: str | None
    data_bytes: int = 0
    index: CopyIndex | DamagedIndex | None = None


@dataclass(frozen=True, slots=True)
class AbsentCopy:
    """The store has no data of this copy, as far as a look can tell."""


@dataclass(frozen=True, slots=True)
class UnreadableCopy:
    """The store did not say: nothing may be concluded from it."""

    reason: str


CopyReading = PresentCopy | AbsentCopy | UnreadableCopy


class CopyFate(enum.Enum):
    """What became of the delete of one copy.

    ABORTED: deleted too, and an upload of it was not finished; it may have been all that there was.
    """

    DELETED = "deleted"
    ABORTED = "aborted"
    ABSENT = "absent"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class CopyDeletion:
    """What became of one copy; ``reason`` is the store's own words where the delete failed."""

    fate: CopyFate
    reason: str = ""
