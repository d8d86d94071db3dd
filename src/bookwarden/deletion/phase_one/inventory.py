"""The pending deletions for what a topic, a cursor or a schema holds: pure, from values that were read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bookwarden.ledgers.managed_ledger import LedgerInfo, OffloadInfo, OffloadSegment, VersionedCursor, VersionedSchema
from bookwarden.ledgers.names import TopicName, decode_local_name
from bookwarden.ledgers.offloaded_copies import LEGACY_SEGMENT
from bookwarden.ledgers.pending_deletion import LedgerComponent, LedgerType, OffloadContext, PendingDeletion


def marks_of_ledgers(topic: TopicName, ledgers: Iterable[LedgerInfo], reason: str) -> list[PendingDeletion]:
    """Mark each copy of each ledger: the bookies', and the offloaded one if there may be one.

    The bookies' also where the list says that it was deleted (bookkeeperDeleted): that is written before the delete,
    and the broker deletes such a ledger never again.
    """
    marks = []
    for ledger in ledgers:
        marks.append(_mark(topic, LedgerType.LEDGER, ledger.ledger_id, reason))
        for context in _contexts(ledger.offload):
            marks.append(_mark(topic, LedgerType.OFFLOAD_LEDGER, ledger.ledger_id, reason, context))
    return marks


def marks_of_cursors(topic: TopicName, cursors: Mapping[str, VersionedCursor], reason: str) -> list[PendingDeletion]:
    """Mark the ledger of each cursor that has one, and its buckets of delayed messages; the names are encoded."""
    marks = []
    for name in sorted(cursors):
        info, cursor = cursors[name].info, decode_local_name(name)
        if info.cursors_ledger_id is not None and info.cursors_ledger_id >= 0:
            marks.append(_cursor_mark(topic, LedgerComponent.MANAGED_CURSOR, info.cursors_ledger_id, cursor, reason))
        for ledger_id in sorted(info.delayed_bucket_ids):
            marks.append(_cursor_mark(topic, LedgerComponent.DELAYED_INDEX_BUCKET, ledger_id, cursor, reason))
    return marks


def marks_of_compacted(topic: TopicName, ledger_ids: Iterable[int], reason: str) -> list[PendingDeletion]:
    """Mark compacted ledgers of the topic."""
    return [
        PendingDeletion(
            topic_name=str(topic),
            component=LedgerComponent.COMPACTED_LEDGER,
            ledger_type=LedgerType.LEDGER,
            ledger_id=ledger_id,
            reason=reason,
        )
        for ledger_id in sorted(ledger_ids)
    ]


def marks_of_schema(topic: TopicName, schema: VersionedSchema | None, reason: str) -> list[PendingDeletion]:
    """Mark the ledgers of all versions of the topic's schema."""
    return [
        PendingDeletion(
            topic_name=str(topic.base),
            component=LedgerComponent.SCHEMA_STORAGE,
            ledger_type=LedgerType.LEDGER,
            ledger_id=ledger_id,
            schema_id=topic.schema_id,
            reason=reason,
        )
        for ledger_id in sorted(schema.locator.ledger_ids if schema else ())
    ]


def _mark(
    topic: TopicName, kind: LedgerType, ledger_id: int, reason: str, context: OffloadContext | None = None
) -> PendingDeletion:
    return PendingDeletion(
        topic_name=str(topic),
        component=LedgerComponent.MANAGED_LEDGER,
        ledger_type=kind,
        ledger_id=ledger_id,
        offload_context=context,
        reason=reason,
    )


def _cursor_mark(
    topic: TopicName, component: LedgerComponent, ledger_id: int, cursor: str, reason: str
) -> PendingDeletion:
    return PendingDeletion(
        topic_name=str(topic),
        component=component,
        ledger_type=LedgerType.LEDGER,
        ledger_id=ledger_id,
        cursor_name=cursor,
        reason=reason,
    )


def _contexts(offload: OffloadInfo | None) -> list[OffloadContext]:
    """Say where each offloaded copy lies: that of the whole ledger, and the segments of the former streaming offload.

    An attempt that is not complete has a UUID too, and may have left objects; without a UUID nothing was begun.
    """
    if offload is None:
        return []
    copies: list[OffloadInfo | OffloadSegment] = [offload, *offload.segments]
    return [_context(copy) for copy in copies if copy.uid_msb != 0 or copy.uid_lsb != 0]


def _context(copy: OffloadInfo | OffloadSegment) -> OffloadContext:
    metadata = dict(copy.driver_metadata)
    if isinstance(copy, OffloadSegment):
        metadata[LEGACY_SEGMENT] = "true"
    return OffloadContext(copy.uid_msb, copy.uid_lsb, copy.driver_name, metadata)
