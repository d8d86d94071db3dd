"""Marks of ledgers that are given by their ids alone: whose they are is read from their custom metadata."""

from __future__ import annotations

from collections.abc import Sequence

from bookwarden.deletion.ports import LedgerCatalog
from bookwarden.errors import FormatError, NotFoundError, RefusedError
from bookwarden.ledgers.custom_metadata import describe_custom_metadata, identify_holder
from bookwarden.ledgers.holders import BucketHolder, CompactedHolder, CursorHolder, Holder, ManagedLedgerHolder
from bookwarden.ledgers.metadata import AbsentLedger, StoredLedger, UnreadableLedger
from bookwarden.ledgers.names import TopicName, decode_local_name
from bookwarden.ledgers.pending_deletion import LedgerComponent, LedgerType, PendingDeletion

_REASON = "marked by id"


def marks_of_ids(catalog: LedgerCatalog, ledger_ids: Sequence[int]) -> list[PendingDeletion]:
    """Make the mark of each ledger that BookKeeper has; if one of these cannot be marked, none is.

    Raises NotFoundError if it has none of them, FormatError for one whose metadata cannot be read, RefusedError for one
    that is not Pulsar's or of no kind that the sweep knows.
    """
    readings = catalog.read_many(list(dict.fromkeys(ledger_ids)))
    there = [reading for reading in readings if not isinstance(reading, AbsentLedger)]
    if not there:
        raise NotFoundError(f"{absent_ledgers([reading.ledger_id for reading in readings])}: nothing was marked")
    return [_mark(reading) for reading in there]


def absent_ledgers(ledger_ids: Sequence[int]) -> str:
    """Say that BookKeeper has not these ledgers."""
    return f"BookKeeper has no ledger {', '.join(str(ledger_id) for ledger_id in ledger_ids)}"


def mark_of_holder(ledger_id: int, holder: Holder, reason: str) -> PendingDeletion:
    """Make the mark of a holder's ledger in BookKeeper."""
    component, topic, cursor, schema_id = _fields(holder)
    return PendingDeletion(
        topic_name=topic,
        component=component,
        ledger_type=LedgerType.LEDGER,
        ledger_id=ledger_id,
        cursor_name=cursor,
        schema_id=schema_id,
        reason=reason,
    )


def _fields(holder: Holder) -> tuple[LedgerComponent, str, str | None, str | None]:
    # The managed ledger's own name: a topic's is ambiguous where its last part has a slash.
    if isinstance(holder, ManagedLedgerHolder):
        return LedgerComponent.MANAGED_LEDGER, holder.name, None, None
    if isinstance(holder, CursorHolder):
        return LedgerComponent.MANAGED_CURSOR, holder.managed_ledger, decode_local_name(holder.cursor), None
    if isinstance(holder, CompactedHolder):
        return LedgerComponent.COMPACTED_LEDGER, holder.managed_ledger, None, None
    if isinstance(holder, BucketHolder):
        return LedgerComponent.DELAYED_INDEX_BUCKET, holder.managed_ledger, decode_local_name(holder.cursor), None
    return LedgerComponent.SCHEMA_STORAGE, str(TopicName.of_schema(holder.schema_id)), None, holder.schema_id


def _mark(reading: StoredLedger | UnreadableLedger) -> PendingDeletion:
    if isinstance(reading, UnreadableLedger):
        raise FormatError(f"ledger {reading.ledger_id} cannot be read ({reading.reason}): nothing was marked")
    custom = reading.metadata.custom
    holder = identify_holder(custom)
    if holder is None:
        raise RefusedError(
            f"ledger {reading.ledger_id} is not one that the sweep deletes, its custom metadata says "
            f"{describe_custom_metadata(custom)}: nothing was marked"
        )
    return mark_of_holder(reading.ledger_id, holder, _REASON)
