"""The end of records in the trash: their marks are sent, then they are taken out, by expiry and `trash purge` alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from bookwarden.deletion.phase_one.mark import Marker
from bookwarden.deletion.ports import LedgerCatalog
from bookwarden.errors import RefusedError
from bookwarden.ledgers.metadata import AbsentLedger
from bookwarden.ledgers.pending_deletion import LedgerType
from bookwarden.trash.generations import FoundRecord
from bookwarden.trash.records import TrashRecords

# Of 64 KiB each, at most.
_RECORDS_AT_ONCE: Final = 500


@dataclass
class ReleaseReport:
    """The records that were let go of, or with ``executed`` False would be."""

    executed: bool
    records: int = 0
    gone: int = 0  #: Ledgers that BookKeeper does not have any more, so that they need no mark.
    marks: Counter[LedgerType] = field(default_factory=Counter)  #: Confirmed, or to be sent.
    kept: dict[str, str] = field(default_factory=dict)  #: Nodes whose records stay, and why.


def release(
    records: TrashRecords,
    catalog: LedgerCatalog,
    marker: Marker | None,
    found: Iterable[FoundRecord],
    reason: str,
) -> ReleaseReport:
    """Send the marks of these records, and take out those of which all are confirmed; without a marker only count.

    Killed anywhere it can be run again: a mark that is sent twice is found done by the sweep. Raises StoreError, and
    PulsarError where nothing can be sent: what was done before is done.
    """
    report = ReleaseReport(marker is not None)
    for some in _some_at_a_time(found):
        _release(records, catalog, marker, some, reason, report)
    return report


def _release(
    records: TrashRecords,
    catalog: LedgerCatalog,
    marker: Marker | None,
    found: Sequence[FoundRecord],
    reason: str,
    report: ReleaseReport,
) -> None:
    ids = sorted(frozenset().union(*(one.record.ledger_ids for one in found)))
    gone = {
        reading.ledger_id
        for reading in (catalog.read_many(ids) if ids else [])
        if isinstance(reading, AbsentLedger) and not reading.unfinished
    }
    marks = [[mark for mark in one.record.marks(reason) if mark.ledger_id not in gone] for one in found]
    wanted = [mark for of_record in marks for mark in of_record]
    failures: list[str | None] = [None] * len(wanted)
    if marker is not None and wanted:
        sent = marker.mark(wanted).ledgers
        if len(sent) != len(wanted):
            raise RefusedError("nothing may be marked: deletion.topic_two_phase_deletion_enabled is false")
        failures = [marked.failure for marked in sent]
    results = iter(failures)
    done: list[FoundRecord] = []
    for one, of_record in zip(found, marks, strict=True):
        failed = [why for why in [next(results) for _ in of_record] if why is not None]
        if failed:
            report.kept[one.path] = f"{len(failed)} of its marks were not confirmed: {failed[0]}"
        else:
            done.append(one)
            report.marks.update(mark.ledger_type for mark in of_record)
    report.gone += len(gone)
    report.records += len(done)
    if marker is not None:
        for path in records.take_out(done):
            report.kept[path] = "its marks are confirmed, and it is written all the time"


def _some_at_a_time(found: Iterable[FoundRecord]) -> Iterator[list[FoundRecord]]:
    source = iter(found)
    while some := list(islice(source, _RECORDS_AT_ONCE)):
        yield some
