"""Drops: ledgers and offloaded copies that a node no longer names."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from bookwarden.ledgers.kinds import PlaceKind
from bookwarden.ledgers.naming import NodeLedgers
from bookwarden.ledgers.pending_deletion import OffloadContext

# The id of a ledger, or of an offloaded copy.
Key = int | UUID


class DropCause(enum.Enum):
    """The fate of the node; the values stand in metrics and in the reasons of marks."""

    DELETED = "node deleted"
    TRIMMED = "trimmed"  #: The list of a topic that is there.
    OFFLOADED = "offloaded"  #: The list says that BookKeeper's copy goes, and the offloaded one stays.
    REPLACED = "replaced"  #: The node names something else.


class Drop(NamedTuple):
    """One ledger or copy that left a node."""

    ledger_id: int  #: Of the copy's ledger, for a copy.
    place: PlaceKind  #: The place that named it; for a copy that of its ledger.
    cause: DropCause  #: The fate of the node.
    path: str  #: Of the node.
    root: str  #: URL of the metadata root.
    at_ms: (
        int  #: When it was dropped, by the store; when that was seen, for a node that is gone. In ms since the epoch.
    )
    copy: OffloadContext | None = None  #: None for a ledger in BookKeeper.

    @property
    def key(self) -> Key:
        """The id of what is dropped."""
        return self.ledger_id if self.copy is None else self.copy.uuid


def drops_between(before: NodeLedgers, now: NodeLedgers | None, path: str, root: str, at_ms: int) -> list[Drop]:
    """List what a node named before and does not name now; None stands for a node that is gone."""
    places = now.places if now is not None else {}
    copied = now.copied if now is not None else frozenset[int]()
    drops = []
    for ledger_id, place in before.places.items():
        if ledger_id not in places:
            drops.append(Drop(ledger_id, place, _cause(place, now, ledger_id in copied), path, root, at_ms))
    left = {copy.uuid for copy in now.copies} if now is not None else set[UUID]()
    for copy in before.copies:
        if copy.uuid not in left:
            cause = DropCause.DELETED if now is None else DropCause.REPLACED if copy.ledger_id in copied else None
            place = before.places.get(copy.ledger_id, PlaceKind.MANAGED_LEDGER)
            drops.append(Drop(copy.ledger_id, place, cause or DropCause.TRIMMED, path, root, at_ms, copy.context))
    return drops


def keys_in(naming: NodeLedgers) -> Iterable[Key]:
    """Yield everything that a node names."""
    yield from naming.places
    for copy in naming.copies:
        yield copy.uuid


def _cause(place: PlaceKind, now: NodeLedgers | None, has_copy: bool) -> DropCause:
    if now is None:
        return DropCause.DELETED
    if has_copy:
        return DropCause.OFFLOADED
    listed = (PlaceKind.MANAGED_LEDGER, PlaceKind.SHADOW_TOPIC)
    return DropCause.TRIMMED if place in listed else DropCause.REPLACED
