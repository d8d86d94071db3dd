"""The kind of the ledgers in which delayed messages are indexed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bookwarden.ledgers.kinds.compacted import CompactedHolder, of_named_topic
from bookwarden.ledgers.kinds.cursor import SubscriptionsHolder, is_cursor, marked_cursor
from bookwarden.ledgers.kinds.holder import LedgerComponent, PlaceKind
from bookwarden.ledgers.managed_ledger import CursorInfo
from bookwarden.ledgers.names import TopicName, decode_local_name, encode_local_name

TOPIC = "pulsar/delayedIndexTopic"
CURSOR = "pulsar/delayedIndexCursor"
#: Key in the custom metadata of a bucket; `bucket_range` reads its value.
BUCKET_KEY = "pulsar/delayedIndexBucketKey"


@dataclass(frozen=True, slots=True, order=True)
class BucketHolder(SubscriptionsHolder):
    """The snapshots of a subscription's delayed messages, one ledger per bucket."""

    component = LedgerComponent.DELAYED_INDEX_BUCKET
    places = (PlaceKind.BUCKET,)
    label, ledgers_label = "delayed messages", "bucket of delayed messages"
    prefix = "buckets:"
    tag, tag_names = "delayed-index-bucket", (TOPIC, CURSOR)

    def tags(self) -> dict[str, str]:
        topic = TopicName.of_managed_ledger(self.managed_ledger)
        return {TOPIC: str(topic), CURSOR: decode_local_name(self.cursor)}

    @classmethod
    def of_tags(cls, tags: Mapping[str, str]) -> BucketHolder:
        return cls(TopicName.parse(tags[TOPIC]).managed_ledger, encode_local_name(tags[CURSOR]))

    @classmethod
    def of_mark(cls, topic_name: str, cursor_name: str | None, schema_id: str | None) -> BucketHolder:
        return cls(of_named_topic(topic_name), marked_cursor(cursor_name))

    def is_markable(self) -> bool:
        return is_cursor(self.cursor) and CompactedHolder(self.managed_ledger).is_markable()

    @staticmethod
    def ledgers_in(info: CursorInfo) -> frozenset[int]:
        return info.delayed_bucket_ids
