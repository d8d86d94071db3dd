"""The kinds of holders in Pulsar's metadata that ledgers can belong to, each in a module of its own."""

from __future__ import annotations

from typing import Final

from bookwarden.ledgers.kinds.bucket import BucketHolder as BucketHolder
from bookwarden.ledgers.kinds.compacted import CompactedHolder as CompactedHolder
from bookwarden.ledgers.kinds.cursor import CursorHolder as CursorHolder
from bookwarden.ledgers.kinds.holder import CursorsHolder
from bookwarden.ledgers.kinds.holder import Holder as Holder
from bookwarden.ledgers.kinds.holder import LedgerComponent as LedgerComponent
from bookwarden.ledgers.kinds.holder import PlaceKind as PlaceKind
from bookwarden.ledgers.kinds.managed_ledger import ManagedLedgerHolder as ManagedLedgerHolder
from bookwarden.ledgers.kinds.schema import SchemaHolder as SchemaHolder

KINDS: Final[tuple[type[Holder], ...]] = (
    ManagedLedgerHolder,
    CursorHolder,
    SchemaHolder,
    CompactedHolder,
    BucketHolder,
)
KINDS_OF_CURSORS: Final = tuple(kind for kind in KINDS if issubclass(kind, CursorsHolder))
KIND_BY_COMPONENT: Final = {kind.component: kind for kind in KINDS}


def holders_of_cursor(managed_ledger: str, cursor: str) -> list[CursorsHolder]:
    """Return the holders whose ledgers the node of this cursor names, and no other cursor's."""
    node = CursorHolder(managed_ledger, cursor)
    holders = [kind.of_cursor(managed_ledger, cursor) for kind in KINDS_OF_CURSORS]
    return [holder for holder in holders if holder.named_by()[0] == node]
