"""The pending deletions for all ledgers of a topic, a cursor or a schema: pure, from values that were read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bookwarden.ledgers.kinds import CompactedHolder, Holder, ManagedLedgerHolder, SchemaHolder, holders_of_cursor
from bookwarden.ledgers.managed_ledger import LedgerInfo, VersionedCursor, VersionedSchema
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.pending_deletion import LedgerType, OffloadContext, PendingDeletion, contexts_of


def marks_of_ledgers(topic: TopicName, ledgers: Iterable[LedgerInfo], reason: str) -> list[PendingDeletion]:
    """Mark each copy of each ledger: the bookies', and the offloaded one if there may be one.

    The bookies' also where the list says that it was deleted (bookkeeperDeleted): that is written before the delete,
    which the broker never tries again.
    """
    marks, holder = [], ManagedLedgerHolder(topic.managed_ledger)
    for ledger in ledgers:
        marks.append(_mark(topic, holder, ledger.ledger_id, reason))
        for context in contexts_of(ledger.offload):
            marks.append(_mark(topic, holder, ledger.ledger_id, reason, context))
    return marks


def marks_of_cursors(topic: TopicName, cursors: Mapping[str, VersionedCursor], reason: str) -> list[PendingDeletion]:
    """Mark all ledgers that the node of each cursor names; the names are encoded."""
    return [
        _mark(topic, holder, ledger_id, reason)
        for name in sorted(cursors)
        for holder in holders_of_cursor(topic.managed_ledger, name)
        for ledger_id in sorted(holder.ledgers_in(cursors[name].info))
        if ledger_id >= 0
    ]


def marks_of_compacted(topic: TopicName, ledger_ids: Iterable[int], reason: str) -> list[PendingDeletion]:
    """Mark compacted ledgers of the topic."""
    holder = CompactedHolder(topic.managed_ledger)
    return [_mark(topic, holder, ledger_id, reason) for ledger_id in sorted(ledger_ids)]


def marks_of_schema(topic: TopicName, schema: VersionedSchema | None, reason: str) -> list[PendingDeletion]:
    """Mark the ledgers of all versions of the topic's schema."""
    holder, ledger_ids = SchemaHolder(topic.schema_id), schema.locator.ledger_ids if schema else ()
    return [_mark(topic.base, holder, ledger_id, reason) for ledger_id in sorted(ledger_ids)]


def _mark(
    topic: TopicName, holder: Holder, ledger_id: int, reason: str, copy: OffloadContext | None = None
) -> PendingDeletion:
    """Make the mark of a holder's ledger, or of an offloaded copy, which calls the topic by its full name."""
    _, cursor_name, schema_id = holder.mark_fields()
    kind = LedgerType.LEDGER if copy is None else LedgerType.OFFLOAD_LEDGER
    return PendingDeletion(str(topic), holder.component, kind, ledger_id, cursor_name, schema_id, copy, reason=reason)
