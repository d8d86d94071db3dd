"""Namings: the ledgers and copies that a node of Pulsar's metadata names, in few bytes, since millions are kept.

A naming begins with a letter for the kind of its node. Behind it are the ledgers' ids by growing id, eight bytes each,
little-endian. A small letter says that there is more: the number of ledgers, four bytes, comes first then; behind the
ids are a byte for each ledger's place, and the copies, as compressed JSON.
"""

from __future__ import annotations

import enum
import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from bookwarden.errors import FormatError
from bookwarden.ledgers.kinds import PlaceKind
from bookwarden.ledgers.pending_deletion import OffloadContext

_COUNT: Final = struct.Struct("<I")
_PLACES: Final = tuple(PlaceKind)
_PLACE_NUMBERS: Final = {place.value: number for number, place in enumerate(_PLACES)}


class NodeKind(enum.Enum):
    """The kind of a node that names ledgers; the values are for people."""

    TOPIC = "topic"
    CURSOR = "cursor"
    SCHEMA = "schema"

    @property
    def place(self) -> PlaceKind:
        """The place that most of its nodes have alone."""
        return _OWN_PLACE[self]


_OWN_PLACE: Final = {
    NodeKind.TOPIC: PlaceKind.MANAGED_LEDGER,
    NodeKind.CURSOR: PlaceKind.CURSOR,
    NodeKind.SCHEMA: PlaceKind.SCHEMA,
}
_LETTERS: Final = {kind.value: kind.name[:1].encode() for kind in NodeKind}
_KINDS: Final = {letter: NodeKind(value) for value, letter in _LETTERS.items()}


class NamedCopy(NamedTuple):
    """An offloaded copy that a topic's node names, and where it lies, which only this node says."""

    ledger_id: int
    context: OffloadContext

    @property
    def uuid(self) -> UUID:
        """The id of the copy."""
        return self.context.uuid


@dataclass(frozen=True, slots=True)
class NodeLedgers:
    """The ledgers and copies that one node names."""

    kind: NodeKind
    places: Mapping[int, PlaceKind]  #: By ledger; of an offloaded ledger only while BookKeeper should have it.
    copies: tuple[NamedCopy, ...] = ()  #: Finished or not.

    @property
    def copied(self) -> frozenset[int]:
        """The ledgers of the copies."""
        return frozenset(copy.ledger_id for copy in self.copies)


def pack(kind: str, ids: bytes, places: Sequence[str] | None = None, copies: str | None = None) -> bytes:
    """Make the bytes of a naming: of ids as they are in it, the values of their places, and copies from `copies_text`.

    ``places`` is None where all ledgers are in the node's own kind of place.
    """
    letter = _LETTERS[kind]
    if places is None and copies is None:
        return letter + ids
    count = len(ids) // 8
    own = NodeKind(kind).place.value
    numbers = bytes([_PLACE_NUMBERS[place] for place in places or [own] * count])
    return letter.lower() + _COUNT.pack(count) + ids + numbers + (zlib.compress(copies.encode()) if copies else b"")


def pack_ids(ids: Sequence[int]) -> bytes:
    """Make the bytes of ids, which grow."""
    return struct.pack(f"<{len(ids)}q", *ids)


def unpack(packed: bytes) -> NodeLedgers:
    """Read the bytes of a naming back; FormatError if they are damaged."""
    try:
        kind = _KINDS[packed[:1].upper()]
        if packed[:1].isupper():
            return NodeLedgers(kind, dict.fromkeys(_ids(packed[1:]), kind.place))
        (count,) = _COUNT.unpack_from(packed, 1)
        start, end = 5 + 8 * count, 5 + 9 * count
        if len(packed) < end:
            raise ValueError(f"{len(packed)} bytes are too few for {count} ledgers")
        places = [_PLACES[number] for number in packed[start:end]]
        copies = _copies(zlib.decompress(packed[end:]).decode()) if packed[end:] else ()
        return NodeLedgers(kind, dict(zip(_ids(packed[5:start]), places, strict=True)), copies)
    except (KeyError, IndexError, ValueError, TypeError, struct.error, zlib.error) as error:
        raise FormatError(f"what a node was known to name is damaged: {error}") from error


def ids_in(packed: bytes) -> bytes:
    """Return the bytes of the ids alone."""
    if packed[:1].isupper():
        return packed[1:]
    return packed[5 : 5 + 8 * _COUNT.unpack_from(packed, 1)[0]]


def has_copies(packed: bytes) -> bool:
    """Return whether it names offloaded copies."""
    return packed[:1].islower() and len(packed) > 5 + 9 * _COUNT.unpack_from(packed, 1)[0]


def copies_text(copies: Sequence[NamedCopy]) -> str | None:
    """Write copies as JSON: a list of ledger, both halves of the UUID, driver, and its metadata; None for none."""
    if not copies:
        return None
    return json.dumps(
        [
            [copy.ledger_id, copy.context.msb, copy.context.lsb, copy.context.driver_name, dict(copy.context.metadata)]
            for copy in copies
        ],
        sort_keys=True,
    )


def _copies(text: str) -> tuple[NamedCopy, ...]:
    return tuple(
        NamedCopy(ledger_id, OffloadContext(msb, lsb, driver, metadata))
        for ledger_id, msb, lsb, driver, metadata in json.loads(text)
    )


def _ids(packed: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(packed) // 8}q", packed)
