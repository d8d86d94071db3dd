"""Records as ZooKeeper writes them to files: big-endian numbers, and lengths before texts, values and lists.

Format: jute's BinaryOutputArchive, and FileHeader of persistence, ZooKeeper 3.6 to 3.9.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from typing import Final

from bookwarden.errors import FormatError

# Bytes in memory, or a file mapped into it.
Bytes = bytes | mmap.mmap

_BYTE: Final = struct.Struct(">b")
_INT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")
_VERSION: Final = 2
_CONTAINER_OWNER: Final = -(1 << 63)
_TTL_OWNERS: Final = 0xFF


class JuteReader:
    """Reads one record after another from ``offset`` on; each length is checked against the bytes left.

    ``place`` names the bytes in errors, and ``base`` is where they begin in the file. All methods raise FormatError.
    """

    def __init__(self, data: Bytes, place: str, offset: int = 0, *, base: int = 0) -> None:
        self._data = data
        self.place = place
        self._end = len(data)
        self.base = base
        self.offset = offset

    @property
    def left(self) -> int:
        """The number of bytes not read yet."""
        return self._end - self.offset

    def read_int(self) -> int:
        """Read a number of four bytes."""
        return self._number(_INT)

    def read_long(self) -> int:
        """Read a number of eight bytes."""
        return self._number(_LONG)

    def read_boolean(self) -> bool:
        """Read a truth value."""
        value = self._number(_BYTE)
        if value not in (0, 1):
            raise self.damaged(f"a truth value is {value}")
        return bool(value)

    def read_value(self) -> bytes:
        """Read bytes with their length; null is returned as empty, as clients see it."""
        size = self.read_int()
        if size == -1:
            return b""
        if not 0 <= size <= self.left:
            raise self.damaged(f"a value has the length {size}")
        return self.take(size)

    def read_text(self) -> str:
        """Read a text."""
        try:
            return self.read_value().decode("utf-8")
        except UnicodeDecodeError:
            raise self.damaged("a text ends that is not UTF-8") from None

    def each(self) -> Iterator[int]:
        """Number the elements of the list that begins here; the caller reads each of them."""
        size = self.read_int()
        if size < -1 or size > self.left:
            raise self.damaged(f"a list has the length {size}")
        yield from range(size)

    def read_header(self, magic: bytes) -> None:
        """Read the header of a file that has to be of this kind."""
        found = self.take(min(len(magic), self.left))
        if found != magic:
            raise self.damaged(f"its kind is {found!r}, not {magic!r}")
        version = self.read_int()
        if version != _VERSION:
            raise self.damaged(f"its format version is {version}, not {_VERSION}")
        self.read_long()

    def skip_access_rules(self) -> None:
        """Pass over a list of access rules."""
        for _ in self.each():
            self.read_int()
            self.read_value()
            self.read_value()

    def take(self, size: int) -> bytes:
        """Read a number of bytes; the caller has checked that they are there."""
        start, self.offset = self.offset, self.offset + size
        return self._data[start : self.offset]

    def damaged(self, what: str) -> FormatError:
        """Make the error for damage at this offset."""
        return damaged(self.place, self.base + self.offset, what)

    def _number(self, kind: struct.Struct) -> int:
        if self.left < kind.size:
            raise self.damaged("it ends in the middle of a record")
        (value,) = kind.unpack_from(self._data, self.offset)
        self.offset += kind.size
        return int(value)


def is_of_session(owner: int) -> bool:
    """Return by a stat's owner whether the node is ephemeral; containers and nodes with a TTL are not.

    Source: server.EphemeralType, ZooKeeper 3.9.
    """
    return owner not in (0, _CONTAINER_OWNER) and (owner >> 56) & 0xFF != _TTL_OWNERS


def damaged(place: str, offset: int, what: str) -> FormatError:
    """Make the error for damage in a file of ZooKeeper's at this offset in bytes."""
    return FormatError(
        f"{place} is damaged or cut off: at byte {offset:,} {what}; copy it again from the server, or take another one"
    )
