"""Ranges of the names in a store, so that one bucket is listed by many at once, and what a listing says of each name.

Names of copies begin with a UUID, so the sixteen digits part them evenly. What lies between is listed as well: an
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
        """A name before all of the range, for stores that begin behind a name; few others lie between."""
        return f"{chr(ord(self.start) - 1)}~" if self.start else ""


EVERYTHING = NameRange()
RANGES = (
    *(NameRange(prefix=digit) for digit in "0123456789abcdef"),
    NameRange(end="0"),
    NameRange(start=":", end="a"),
    NameRange(start="g"),
)
"""Every name is in exactly one of them."""
