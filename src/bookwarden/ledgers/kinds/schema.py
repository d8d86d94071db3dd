"""The kind of the ledgers in which schemas are stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bookwarden.ledgers.kinds.holder import Holder, LedgerComponent, MarkFields, PlaceKind
from bookwarden.ledgers.kinds.managed_ledger import marked_topic
from bookwarden.ledgers.names import TopicName

SCHEMA_ID = "pulsar/schemaId"


@dataclass(frozen=True, slots=True, order=True)
class SchemaHolder(Holder):
    """The schema of a topic; ``schema_id`` is ``tenant/namespace/encoded``, shared by all partitions."""

    component = LedgerComponent.SCHEMA_STORAGE
    places = (PlaceKind.SCHEMA,)
    label, ledgers_label = "schema", "schema"
    prefix, names_below = "schema:", 1
    tag, tag_names = "schema", (SCHEMA_ID,)

    schema_id: str

    def __str__(self) -> str:
        return f"schema:{self.schema_id}"

    @classmethod
    def of_text(cls, text: str) -> SchemaHolder | None:
        return cls(text[len(cls.prefix) :]) if text.startswith(cls.prefix) else None

    @property
    def topic(self) -> str:
        namespace, _, name = self.schema_id.rpartition("/")
        return f"{namespace}/persistent/{name}"

    def tags(self) -> dict[str, str]:
        return {SCHEMA_ID: self.schema_id}

    @classmethod
    def of_tags(cls, tags: Mapping[str, str]) -> SchemaHolder:
        return cls(tags[SCHEMA_ID])

    def mark_fields(self) -> MarkFields:
        return str(TopicName.of_schema(self.schema_id)), None, self.schema_id

    @classmethod
    def of_mark(cls, topic_name: str, cursor_name: str | None, schema_id: str | None) -> SchemaHolder:
        # Pulsar's own code has a number there instead.
        if schema_id and "/" in schema_id:
            TopicName.of_schema(schema_id)
            return cls(schema_id)
        return cls(marked_topic(topic_name).schema_id)
