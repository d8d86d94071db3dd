"""The kind of the ledgers in which cursors keep their positions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from bookwarden.errors import FormatError
from bookwarden.ledgers.kinds.holder import CursorsHolder, Holder, LedgerComponent, MarkFields, PlaceKind
from bookwarden.ledgers.kinds.managed_ledger import MANAGED_LEDGER, ManagedLedgerHolder, marked_managed_ledger
from bookwarden.ledgers.managed_ledger import CursorInfo
from bookwarden.ledgers.names import decode_local_name, encode_local_name

CURSOR = "pulsar/cursor"


@dataclass(frozen=True, slots=True)
class SubscriptionsHolder(CursorsHolder):
    """A cursor, or a holder that every cursor has; ``cursor`` is the encoded subscription, as in the metadata path."""

    names_below = 3

    cursor: str

    def __str__(self) -> str:
        return f"{self.prefix}{self.managed_ledger}/{self.cursor}"

    @classmethod
    def of_text(cls, text: str) -> SubscriptionsHolder | None:
        managed_ledger, _, cursor = text[len(cls.prefix) :].rpartition("/")
        return cls(managed_ledger, cursor) if text.startswith(cls.prefix) else None

    def mark_fields(self) -> MarkFields:
        return self.managed_ledger, decode_local_name(self.cursor), None

    def named_by(self) -> tuple[Holder, ...]:
        return CursorHolder(self.managed_ledger, self.cursor), ManagedLedgerHolder(self.managed_ledger)

    def is_markable(self) -> bool:
        # Both parts are cached: many others share them.
        return is_cursor(self.cursor) and ManagedLedgerHolder(self.managed_ledger).is_markable()

    @classmethod
    def of_cursor(cls, managed_ledger: str, cursor: str) -> SubscriptionsHolder:
        return cls(managed_ledger, cursor)


@dataclass(frozen=True, slots=True, order=True)
class CursorHolder(SubscriptionsHolder):
    """A cursor of a managed ledger."""

    component = LedgerComponent.MANAGED_CURSOR
    places = (PlaceKind.CURSOR,)
    label, ledgers_label = "cursor", "cursor"
    tag, tag_names = "managed-ledger", (MANAGED_LEDGER, CURSOR)

    def tags(self) -> dict[str, str]:
        return {MANAGED_LEDGER: self.managed_ledger, CURSOR: self.cursor}

    @classmethod
    def of_tags(cls, tags: Mapping[str, str]) -> CursorHolder:
        return cls(tags[MANAGED_LEDGER], tags[CURSOR])

    @classmethod
    def of_mark(cls, topic_name: str, cursor_name: str | None, schema_id: str | None) -> CursorHolder:
        return cls(marked_managed_ledger(topic_name).name, marked_cursor(cursor_name))

    @staticmethod
    def ledgers_in(info: CursorInfo) -> frozenset[int]:
        own = info.cursors_ledger_id
        return frozenset() if own is None else frozenset((own,))


def marked_cursor(name: str | None) -> str:
    """Encode the subscription that a mark names; FormatError if it names none."""
    if not name:
        raise FormatError("the ledger of a cursor, or of its delayed messages, needs cursorName")
    return encode_local_name(name)


@lru_cache(maxsize=4096)
def is_cursor(name: str) -> bool:
    """Return whether a cursor's name is encoded as Pulsar does it."""
    try:
        return encode_local_name(decode_local_name(name)) == name
    except FormatError:
        return False
