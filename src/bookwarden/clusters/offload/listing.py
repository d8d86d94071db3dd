"""The listing of all stores of offloaded copies: their objects and unfinished uploads, in pieces.

A copy's objects and uploads begin with its UUID, so all of them are in one piece.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bookwarden.clusters.offload.inventory import InventoryFolder, read_manifest
from bookwarden.clusters.offload.inventory import pages as inventory_pages
from bookwarden.clusters.offload.names import (
    EVERYTHING,
    RANGES,
    NameRange,
    StoredObject,
    parse_map_file_name,
    parse_object_name,
)
from bookwarden.clusters.offload.stores import OffloadStores
from bookwarden.errors import ConfigError, FormatError
from bookwarden.ledgers.listing import ListedObject
from bookwarden.ledgers.offloaded_copies import FILE_SYSTEM, StoreLocation

_S3 = frozenset({"S3", "aws-s3"})
# Listings of these drivers can begin and end in the middle.
_IN_RANGES = _S3 | {"google-cloud-storage"}


@dataclass(frozen=True, slots=True)
class ObjectPiece:
    """A range of names in a place of the settings; picklable, and plain values for JSON."""

    driver: str  #: As the settings name it.
    bucket: str  #: "" for a file system.
    region: str  #: "" if not set.
    endpoint: str  #: A URL, or the base path of a file system; "" if not set.
    prefix: str = ""  #: Of all names of the piece.
    start: str = ""  #: The first possible name; "" for no bound.
    end: str = ""  #: The first name after the piece; "" for no bound.
    inventory: str = ""  #: The folder of an inventory to read instead of listing; "" without one.
    file: str = ""  #: The key of a data file in that inventory.

    @property
    def location(self) -> StoreLocation:
        """The place."""
        return StoreLocation(self.driver, self.bucket, self.region, self.endpoint)

    @property
    def names(self) -> NameRange:
        """The names."""
        return NameRange(self.prefix, self.start, self.end)


class ObjectListing:
    """Lists the stores that the settings name; a bucket that they do not name is never looked into.

    ``inventories`` are folders with S3 inventories; a bucket with one is not listed itself.
    """

    def __init__(self, stores: OffloadStores, inventories: Sequence[str] = ()) -> None:
        self._stores = stores
        self._inventories = tuple(inventories)

    def pieces(self) -> list[ObjectPiece]:
        """List the pieces that make up the whole listing.

        Raises StoreError or FormatError where an inventory cannot be read, ConfigError for one of another bucket.
        """
        inventoried = dict(piece for folder in self._inventories for piece in self._of_inventory(folder))
        return [
            piece for location in self._stores.locations() for piece in inventoried.get(location) or _live(location)
        ]

    def _of_inventory(self, folder: str) -> Iterator[tuple[StoreLocation, list[ObjectPiece]]]:
        found = read_manifest(InventoryFolder(Path(folder)))
        locations = [one for one in self._stores.locations() if one.driver in _S3 and one.bucket == found.bucket]
        if not locations:
            raise ConfigError(
                f"the inventory in {folder} is of bucket {found.bucket}, which no S3 store of offload.stores has"
            )
        for location in locations:
            files = [file.key for file in found.files]
            yield location, [ObjectPiece(*location, inventory=folder, file=key) for key in files]

    def locations(self) -> dict[str, StoreLocation]:
        """Return the place of each store, by its name in the rows."""
        return {store_name(location): location for location in self._stores.locations()}

    def not_listed(self) -> dict[str, str]:
        """Return the reason for each store that cannot be listed at all."""
        reason = "its buckets are not named: list them in offload.stores, so that they are scanned"
        return dict.fromkeys(self._stores.unnamed(), reason)

    def pages(self, piece: ObjectPiece) -> Iterator[list[ListedObject]]:
        """List a piece, page by page; StoreError where it cannot be listed to its end."""
        store, names = store_name(piece.location), piece.names
        for page in _inventory_pages(piece) if piece.inventory else self._stores.pages(piece.location, names):
            yield [listed_object(store, piece.driver, found) for found in page if names.has(found.key)]


def _live(location: StoreLocation) -> list[ObjectPiece]:
    ranges = RANGES if location.driver in _IN_RANGES else (EVERYTHING,)
    return [ObjectPiece(*location, names.prefix, names.start, names.end) for names in ranges]


def _inventory_pages(piece: ObjectPiece) -> Iterator[list[StoredObject]]:
    source = InventoryFolder(Path(piece.inventory))
    inventory = read_manifest(source)
    file = next((one for one in inventory.files if one.key == piece.file), None)
    if file is None:
        raise FormatError(f"the inventory in {piece.inventory} was replaced while it was read: begin a new scan")
    yield from inventory_pages(source, inventory, file)


class ListingDigest:
    """A running digest over the names of a listing, and their number."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self.names = 0

    def add(self, page: list[ListedObject]) -> None:
        """Add a page."""
        self.names += len(page)
        for row in page:
            self._digest.update(f"{row.key}\n{row.upload_id or ''}\n{row.length}\n{row.modified_ms}\n".encode())

    def __str__(self) -> str:
        return self._digest.hexdigest()


def store_name(location: StoreLocation) -> str:
    """Format a place for tables and people: its settings, without the empty ones."""
    return " ".join(part for part in location if part)


def listed_object(store: str, driver: str, found: StoredObject) -> ListedObject:
    """Make the row of an object; UUID and ledger are None where the name is not that of a copy."""
    in_folders = driver == FILE_SYSTEM
    named = parse_map_file_name(found.key.rpartition("/")[2]) if in_folders else parse_object_name(found.key)
    uuid, ledger_id = named or (None, None)
    return ListedObject(store, found.key, uuid, ledger_id, found.length, found.modified_ms, found.upload_id)
