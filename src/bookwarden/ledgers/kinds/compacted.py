"""The kind of the ledgers that compaction writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bookwarden.errors import FormatError
from bookwarden.ledgers.kinds.cursor import CursorHolder
from bookwarden.ledgers.kinds.holder import CursorsHolder, Holder, LedgerComponent, MarkFields, PlaceKind
from bookwarden.ledgers.kinds.managed_ledger import marked_managed_ledger
from bookwarden.ledgers.managed_ledger import COMPACTION_CURSOR, CursorInfo
from bookwarden.ledgers.names import TopicName

COMPACTED_TOPIC = "pulsar/compactedTopic"
#: Its value is the id of the last message that the compaction read, as protobuf MessageIdData.
COMPACTED_TO = "pulsar/compactedTo"


@dataclass(frozen=True, slots=True, order=True)
class CompactedHolder(CursorsHolder):
    """The compacted view of a topic, by the topic's managed ledger."""

    component = LedgerComponent.COMPACTED_LEDGER
    places = (PlaceKind.COMPACTED, PlaceKind.COMPACTED_NOW)
    label, ledgers_label = "compacted view", "compacted"
    prefix, names_below = "compacted:", 2
    tag, tag_names = "compacted-ledger", (COMPACTED_TOPIC,)

    def __str__(self) -> str:
        return f"compacted:{self.managed_ledger}"

    @classmethod
    def of_text(cls, text: str) -> CompactedHolder | None:
        return cls(text[len(cls.prefix) :]) if text.startswith(cls.prefix) else None

    def tags(self) -> dict[str, str]:
        return {COMPACTED_TOPIC: str(TopicName.of_managed_ledger(self.managed_ledger))}

    @classmethod
    def of_tags(cls, tags: Mapping[str, str]) -> CompactedHolder:
        return cls(TopicName.parse(tags[COMPACTED_TOPIC]).managed_ledger)

    def mark_fields(self) -> MarkFields:
        return self.managed_ledger, None, None

    @classmethod
    def of_mark(cls, topic_name: str, cursor_name: str | None, schema_id: str | None) -> CompactedHolder:
        return cls(of_named_topic(topic_name))

    def named_by(self) -> tuple[Holder, ...]:
        return CursorHolder(self.managed_ledger, COMPACTION_CURSOR).named_by()

    @classmethod
    def of_cursor(cls, managed_ledger: str, cursor: str) -> CompactedHolder:
        return cls(managed_ledger)

    @staticmethod
    def ledgers_in(info: CursorInfo) -> frozenset[int]:
        compacted = info.compacted_ledger_id
        return frozenset() if compacted is None or compacted < 0 else frozenset((compacted,))


def of_named_topic(topic_name: str) -> str:
    """Return the managed ledger of a mark's topic; FormatError if its full name means another one."""
    managed_ledger = marked_managed_ledger(topic_name).name
    # The ledger has the full name.
    name = str(TopicName.of_managed_ledger(managed_ledger))
    if TopicName.parse(name).managed_ledger != managed_ledger:
        raise FormatError(f"the topic of managed ledger {managed_ledger} has the full name of another")
    return managed_ledger
