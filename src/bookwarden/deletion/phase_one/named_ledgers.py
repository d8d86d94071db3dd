"""Marks of ledgers that are given by their ids alone; their holders are read from their custom metadata."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from bookwarden.clusters.pulsar.references.live import MetadataReferences
from bookwarden.deletion.ports import LedgerCatalog
from bookwarden.errors import FormatError, NotFoundError, RefusedError
from bookwarden.ledgers.custom_metadata import describe_custom_metadata, identify_holder
from bookwarden.ledgers.kinds import LedgerComponent
from bookwarden.ledgers.list_gaps import ListStatus, has_entries, list_status_of
from bookwarden.ledgers.live_references import LiveReferences
from bookwarden.ledgers.metadata import AbsentLedger, StoredLedger, UnreadableLedger
from bookwarden.ledgers.pending_deletion import PendingDeletion, Waiver, mark_of_holder

_REASON = "marked by id"
_LIST = {
    ListStatus.INSIDE: "and lists older ledgers without it, which no trim does",
    ListStatus.OF_NO_LIST: "and lists no ledger at all, which no trim does",
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
    """Report that BookKeeper does not have these ledgers."""
    return f"BookKeeper has no ledger {', '.join(str(ledger_id) for ledger_id in ledger_ids)}"


def waive_the_list(marks: Iterable[PendingDeletion]) -> list[PendingDeletion]:
    """Make the marks waive their topics' lists as a reason to keep the ledgers."""
    return [replace(mark, waives=frozenset({Waiver.INSIDE_LIST, Waiver.EMPTIED})) for mark in marks]


def refuse_holes(marks: Sequence[PendingDeletion], catalog: LedgerCatalog, references: MetadataReferences) -> None:
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
        status = list_status_of(mark.ledger_id, named.first_listed, has_entries(reading.metadata))
        if status in (ListStatus.INSIDE, ListStatus.OF_NO_LIST):
            raise RefusedError(
                f"ledger {mark.ledger_id} has entries, and {mark.holder()} exists {_LIST[status]}: a write of the "
                "topic's node lost it, and with it messages that were acknowledged. Nothing was marked: see "
                "docs/orphans.md, and add --inside-list to delete it for good"
            )


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
