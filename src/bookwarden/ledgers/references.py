"""Who names which ledger: an index over everything that the metadata roots hold, built from what was read of them.

It is pure: whoever reads the nodes adds what they name, and notes the places that could not be read or parsed. Such
a doubt about a place that could name a ledger makes the answer "unknown", never "not referenced".
"""

from __future__ import annotations

import enum
from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from bookwarden.ledgers.holders import BucketHolder, CompactedHolder, CursorHolder, Holder, ManagedLedgerHolder
from bookwarden.ledgers.managed_ledger import (
    COMPACTION_CURSOR,
    SHADOW_SOURCE_PROPERTY,
    CursorInfo,
    ManagedLedgerInfo,
    SchemaLocator,
)


class PlaceKind(enum.Enum):
    """What a place in the metadata is; the values are for people."""

    MANAGED_LEDGER = "managed ledger"
    SHADOW_TOPIC = "shadow topic"
    CURSOR = "cursor"
    COMPACTED = "compacted ledger of a cursor's node"
    COMPACTED_NOW = "compacted ledger of a cursor's last entry"
    BUCKET = "bucket of delayed messages"
    SCHEMA = "schema"
    LOG_SEGMENT = "log segment"
    LOG_ALLOCATION = "log allocation"


class Place(NamedTuple):
    """A place that names ledgers: what it is, what it belongs to, its node, and the URL of its metadata root."""

    kind: PlaceKind
    holder: str
    path: str
    root: str


class Reference(NamedTuple):
    """A ledger, and a place that names it."""

    ledger_id: int
    place: Place


class Doubt(NamedTuple):
    """A place that could not be read or parsed.

    ``about`` are the holders whose ledgers it could name, or kinds of holders; where it is empty, any ledger.
    """

    path: str
    root: str
    reason: str
    about: tuple[Holder | type[Holder], ...] = ()

    def concerns(self, holder: Holder | None) -> bool:
        """Whether the place could name a ledger of this holder; None for a ledger whose holder is not known."""
        return not self.about or holder is None or holder in self.about or type(holder) in self.about


class ReferenceIndex:
    """All references of some metadata roots, or those to some ledgers only.

    With ``wanted`` only references to these ledgers are kept. A reference takes 16 bytes, and a place its strings
    once, however many ledgers it names.
    """

    def __init__(self, wanted: Collection[int] | None = None) -> None:
        self._wanted = wanted
        self._ids = array("q")
        self._places_of = array("q")
        self._places: list[Place] = []
        self._sorted = True
        self._doubts: list[Doubt] = []

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, place: Place, ledger_ids: Iterable[int]) -> None:
        """Note that the place names these ledgers."""
        kept = [ledger_id for ledger_id in ledger_ids if self._wanted is None or ledger_id in self._wanted]
        if not kept:
            return
        self._ids.extend(kept)
        self._places_of.extend([len(self._places)] * len(kept))
        self._places.append(place)
        self._sorted = False

    def note(self, doubt: Doubt) -> None:
        """Note a place that could not be read."""
        self._doubts.append(doubt)

    def who_names(self, ledger_id: int) -> tuple[Reference, ...]:
        """Return the references to the ledger."""
        self._sort()
        found = []
        index = bisect_left(self._ids, ledger_id)
        while index < len(self._ids) and self._ids[index] == ledger_id:
            found.append(Reference(ledger_id, self._places[self._places_of[index]]))
            index += 1
        return tuple(found)

    @property
    def doubts(self) -> tuple[Doubt, ...]:
        """The places that could not be read."""
        return tuple(self._doubts)

    def doubts_about(self, holder: Holder | None) -> tuple[Doubt, ...]:
        """Return the doubts that concern a ledger of this holder."""
        return tuple(doubt for doubt in self._doubts if doubt.concerns(holder))

    def is_referenced(self, ledger_id: int, holder: Holder | None) -> bool | None:
        """Say whether any place names the ledger; None where a doubt about its holder leaves that open."""
        self._sort()
        index = bisect_left(self._ids, ledger_id)
        if index < len(self._ids) and self._ids[index] == ledger_id:
            return True
        return None if any(doubt.concerns(holder) for doubt in self._doubts) else False

    def _sort(self) -> None:
        if self._sorted:
            return
        order = sorted(range(len(self._ids)), key=self._ids.__getitem__)
        self._ids = array("q", [self._ids[index] for index in order])
        self._places_of = array("q", [self._places_of[index] for index in order])
        self._sorted = True


def named_by_managed_ledger(
    name: str, info: ManagedLedgerInfo, path: str, root: str
) -> Iterator[tuple[Place, Collection[int]]]:
    """Say what the node of a managed ledger names; a shadow topic's are its source's ledgers."""
    kind = PlaceKind.SHADOW_TOPIC if SHADOW_SOURCE_PROPERTY in info.properties else PlaceKind.MANAGED_LEDGER
    yield Place(kind, name, path, root), info.ledger_ids


def named_by_cursor(
    managed_ledger: str, cursor: str, info: CursorInfo, path: str, root: str
) -> Iterator[tuple[Place, Collection[int]]]:
    """Say what the node of a cursor names: its ledger, its buckets, and the compacted ledger, perhaps of before."""
    own = info.cursors_ledger_id
    if own is not None:
        yield Place(PlaceKind.CURSOR, str(CursorHolder(managed_ledger, cursor)), path, root), (own,)
    compacted = info.compacted_ledger_id
    if compacted is not None and compacted >= 0:
        yield Place(PlaceKind.COMPACTED, str(CompactedHolder(managed_ledger)), path, root), (compacted,)
    if info.delayed_bucket_ids:
        holder = str(BucketHolder(managed_ledger, cursor))
        yield Place(PlaceKind.BUCKET, holder, path, root), info.delayed_bucket_ids


def named_by_schema(
    schema_id: str, locator: SchemaLocator, path: str, root: str
) -> Iterator[tuple[Place, Collection[int]]]:
    """Say what the node of a schema names: the ledgers of all its versions."""
    yield Place(PlaceKind.SCHEMA, f"schema:{schema_id}", path, root), locator.ledger_ids


def doubt_about_managed_ledger(path: str, root: str, reason: str) -> Doubt:
    """Make the doubt of a managed ledger's node: it may be a shadow topic, which names the ledgers of another."""
    return Doubt(path, root, reason, (ManagedLedgerHolder,))


def doubt_about_cursor(managed_ledger: str, cursor: str, path: str, root: str, reason: str) -> Doubt:
    """Make the doubt of a cursor's node."""
    holders: list[Holder] = [CursorHolder(managed_ledger, cursor), BucketHolder(managed_ledger, cursor)]
    if cursor == COMPACTION_CURSOR:
        holders.append(CompactedHolder(managed_ledger))
    return Doubt(path, root, reason, tuple(holders))
