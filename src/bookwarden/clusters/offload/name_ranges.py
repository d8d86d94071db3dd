"""Ranges of the names in a store, by which a bucket is listed in parallel, and the objects of a listing.

Names of copies begin with a UUID, so the sixteen digits divide them evenly. Names in between are listed as well: an
object whose name is not a copy's is kept, and counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


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
