"""The names that Pulsar's offloaders give the objects and files of a copy, and ranges of names for parallel listings.

Sources: DataBlockUtils and BlobStoreManagedLedgerOffloader (jcloud), FileSystemManagedLedgerOffloader, Pulsar 4.0.
Names of copies begin with a UUID, so the sixteen digits divide them evenly. Names in between are listed as well: an
object whose name is not a copy's is kept, and counted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from bookwarden.ledgers.offloaded_copies import OffloadedCopy

_OWNER = "managedledgername"
_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_LEDGER = "0|[1-9][0-9]{0,18}"
_OBJECT = re.compile(f"({_UUID})(?:-ledger-({_LEDGER}))?(?:-index)?")
_MAP_FILE = re.compile(f"({_LEDGER})-({_UUID})")
_MAX_LEDGER_ID = 2**63 - 1


class StoredObject(NamedTuple):
    """An object, or an unfinished upload (of length 0); ``modified_ms`` by the store's clock, since the epoch."""

    key: str
    length: int
    modified_ms: int
    upload_id: str | None = None


@dataclass(frozen=True, slots=True)
class NameRange:
    """The names that begin with ``prefix``, from ``start`` on and before ``end`` ("" for no end), as stores sort."""

    prefix: str = ""
    start: str = ""
    end: str = ""

    def has(self, name: str) -> bool:
        """Whether the name is in it."""
        # Text sorts by code points as its UTF-8 does by bytes.
        return name.startswith(self.prefix) and name >= self.start and (not self.end or name < self.end)

    @property
    def start_after(self) -> str:
        """A name shortly before the range, for stores that begin after a given name."""
        return f"{chr(ord(self.start) - 1)}~" if self.start else ""


EVERYTHING = NameRange()
RANGES = (
    *(NameRange(prefix=digit) for digit in "0123456789abcdef"),
    NameRange(end="0"),
    NameRange(start=":", end="a"),
    NameRange(start="g"),
)
"""Every name is in exactly one of them."""


def data_name(copy: OffloadedCopy) -> str:
    """Return the name of the object that holds the entries."""
    return str(copy.uuid) if copy.segment else f"{copy.uuid}-ledger-{copy.ledger_id}"


def object_names(copy: OffloadedCopy) -> tuple[str, str]:
    """List the copy's objects: the data first, then its index."""
    data = data_name(copy)
    return data, f"{data}-index"


def map_file_name(copy: OffloadedCopy) -> str:
    """Return the folder (a Hadoop MapFile) of a copy, below the storage's base path."""
    return f"{copy.managed_ledger}/{copy.ledger_id}-{copy.uuid}"


def owner_in(metadata: Mapping[str, str]) -> str | None:
    """Return the managed ledger in an object's metadata; stores change the case of names."""
    return next((value for name, value in metadata.items() if name.lower() == _OWNER), None)


def parse_object_name(name: str) -> tuple[UUID, int | None] | None:
    """Parse UUID and ledger in the name of a copy's data or index; None where it is neither.

    The ledger is None for a segment of the former streaming offload, whose name has none.
    """
    found = _OBJECT.fullmatch(name)
    return None if found is None else _copy_named(found[1], found[2])


def parse_map_file_name(name: str) -> tuple[UUID, int | None] | None:
    """Parse UUID and ledger in the last name of a folder's path; None where it is not a copy's."""
    found = _MAP_FILE.fullmatch(name)
    return None if found is None else _copy_named(found[2], found[1])


def _copy_named(uuid: str, ledger: str | None) -> tuple[UUID, int | None] | None:
    ledger_id = None if ledger is None else int(ledger)
    return None if ledger_id is not None and ledger_id > _MAX_LEDGER_ID else (UUID(uuid), ledger_id)
