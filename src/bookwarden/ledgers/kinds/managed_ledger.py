"""The kind of the data ledgers of a topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from bookwarden.errors import FormatError
from bookwarden.ledgers.kinds.holder import Holder, LedgerComponent, MarkFields, PlaceKind
from bookwarden.ledgers.names import TopicName

MANAGED_LEDGER = "pulsar/managed-ledger"


@dataclass(frozen=True, slots=True, order=True)
class ManagedLedgerHolder(Holder):
    """A topic's managed ledger; ``name`` is ``tenant/namespace/persistent/encoded``."""

    component = LedgerComponent.MANAGED_LEDGER
    places = (PlaceKind.MANAGED_LEDGER, PlaceKind.SHADOW_TOPIC)
    label, ledgers_label = "topic", "data"
    names_below = 2
    tag, tag_names = "managed-ledger", (MANAGED_LEDGER,)

    name: str

    def __str__(self) -> str:
        return self.name

    @classmethod
    def of_text(cls, text: str) -> ManagedLedgerHolder:
        return cls(text)

    @property
    def topic(self) -> str:
        return self.name

    def tags(self) -> dict[str, str]:
        return {MANAGED_LEDGER: self.name}

    @classmethod
    def of_tags(cls, tags: Mapping[str, str]) -> ManagedLedgerHolder:
        return cls(tags[MANAGED_LEDGER])

    def mark_fields(self) -> MarkFields:
        return self.name, None, None

    @classmethod
    def of_mark(cls, topic_name: str, cursor_name: str | None, schema_id: str | None) -> ManagedLedgerHolder:
        return marked_managed_ledger(topic_name)


# The marks of one topic come together; parsing its name for each would cost more than decoding them.
@lru_cache(maxsize=8192)
def marked_managed_ledger(topic_name: str) -> ManagedLedgerHolder:
    """Return the managed ledger of a mark's topic, which is named in full or by its managed ledger.

    Raises FormatError if there is none.
    """
    return ManagedLedgerHolder(marked_topic(topic_name).managed_ledger)


def marked_topic(topic_name: str) -> TopicName:
    """Read a mark's topic; FormatError as for marked_managed_ledger."""
    if not topic_name:
        raise FormatError("topicName is missing")
    if "://" not in topic_name and topic_name.count("/") >= 3:
        topic = TopicName.of_managed_ledger(topic_name)
    else:
        topic = TopicName.parse(topic_name)
    if topic.domain != "persistent":
        raise FormatError(f"topic {topic_name!r} has no ledgers, since it is {topic.domain}")
    return topic
