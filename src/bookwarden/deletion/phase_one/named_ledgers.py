"""Marks of ledgers that are given by their ids alone: whose they are is read from their custom metadata."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from bookwarden.deletion.ports import LedgerCatalog, ReferenceReader
from bookwarden.errors import FormatError, NotFoundError, RefusedError
from bookwarden.ledgers.custom_metadata import describe_custom_metadata, identify_holder
from bookwarden.ledgers.holders import (
    BucketHolder,
    CompactedHolder,
    CursorHolder,
    Holder,
    LiveReferences,
    ManagedLedgerHolder,
)
from bookwarden.ledgers.holes import Standing, has_entries, standing_of
from bookwarden.ledgers.metadata import AbsentLedger, StoredLedger, UnreadableLedger
from bookwarden.ledgers.names import TopicName, decode_local_name
from bookwarden.ledgers.pending_deletion import LedgerComponent, LedgerType, PendingDeletion, Waiver

_REASON = "marked by id"
_LIST = {
    Standing.INSIDE: "and lists older ledgers without it, which no trim does",
    Standing.OF_NO_LIST: "and lists no ledger at all, which no trim does",
}


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


def waive_the_list(marks: Iterable[PendingDeletion]) -> list[PendingDeletion]:
    """Make the marks such that what their topics' lists say is no reason to keep the ledgers."""
    return [replace(mark, waives=frozenset(Waiver)) for mark in marks]


def refuse_holes(marks: Sequence[PendingDeletion], catalog: LedgerCatalog, references: ReferenceReader) -> None:
    """Raise RefusedError for a ledger with entries that its topic's list lacks, though no trim can have taken it."""
    data = [mark for mark in marks if mark.component is LedgerComponent.MANAGED_LEDGER]
    readings = catalog.read_many([mark.ledger_id for mark in data])
    stored = [(mark, one) for mark, one in zip(data, readings, strict=True) if isinstance(one, StoredLedger)]
    if not stored:
        return
    found = references.read([mark.holder() for mark, _ in stored])
    for mark, reading in stored:
        named = found[mark.holder()]
        if not isinstance(named, LiveReferences) or named.names(mark.ledger_id):
            continue
        standing = standing_of(mark.ledger_id, named.first_listed, has_entries(reading.metadata))
        if standing in (Standing.INSIDE, Standing.OF_NO_LIST):
            raise RefusedError(
                f"ledger {mark.ledger_id} has entries, and {mark.holder()} exists {_LIST[standing]}: a write of the "
                "topic's node lost it, and with it messages that were acknowledged. Nothing was marked: see "
                "docs/orphans.md, and add --inside-list to delete it for good"
            )


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
