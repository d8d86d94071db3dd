"""The end of records in the trash, by expiry, purge and restore alike: marks are sent, then they are taken out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bookwarden.clusters.pulsar.trash import TrashNodes
from bookwarden.deletion.phase_one.mark import Marker
from bookwarden.deletion.ports import LedgerCatalog
from bookwarden.errors import RefusedError
from bookwarden.ledgers.metadata import AbsentLedger
from bookwarden.ledgers.pending_deletion import LedgerType
from bookwarden.ledgers.trash import TrashRecord

_LEDGERS_AT_ONCE: Final = 10_000
#: A node of the trash, and records of it.
OfNode = tuple[str, Sequence[TrashRecord]]


@dataclass
class ReleaseReport:
    """The records that were let go of, or with ``executed`` False would be."""

    executed: bool
    records: int = 0
    gone: int = 0  #: Ledgers that BookKeeper does not have any more, so that they need no mark.
    marks: Counter[LedgerType] = field(default_factory=Counter)  #: Confirmed, or to be sent.
    kept: dict[str, str] = field(default_factory=dict)  #: Nodes whose records stay, and why.


def release(
    nodes: TrashNodes[Any],
    marker: Marker | None,
    due: Iterable[OfNode],
    reason: str,
    catalog: LedgerCatalog | None = None,
    named: Collection[int] = frozenset(),
) -> ReleaseReport:
    """Send the marks of these records, and take out those of which all are confirmed; without a marker only count.

    Not marked are ledgers that nodes name again, and with a catalog what BookKeeper does not have any more. Killed
    anywhere it can be run again: a mark that is sent twice is found done by the sweep.

    Raises StoreError, PulsarError where nothing can be sent, and RefusedError where nothing may be marked: what was
    done before is done.
    """
    report = ReleaseReport(marker is not None)
    for some in _some_at_a_time(due):
        _release(nodes, marker, some, reason, catalog, named, report)
    return report


def _release(
    nodes: TrashNodes[Any],
    marker: Marker | None,
    due: Sequence[OfNode],
    reason: str,
    catalog: LedgerCatalog | None,
    named: Collection[int],
    report: ReleaseReport,
) -> None:
    ids = sorted({one for _, records in due for record in records for one in record.ledger_ids if one not in named})
    gone = {
        reading.ledger_id
        for reading in (catalog.read_many(ids) if ids and catalog is not None else [])
        if isinstance(reading, AbsentLedger) and not reading.unfinished
    }
    marks = [
        [
            [mark for mark in record.marks(reason) if mark.ledger_id not in gone and mark.ledger_id not in named]
            for record in records
        ]
        for _, records in due
    ]
    wanted = [mark for of_node in marks for of_record in of_node for mark in of_record]
    failures: list[str | None] = [None] * len(wanted)
    if marker is not None and wanted:
        sent = marker.mark(wanted).ledgers
        if len(sent) != len(wanted):
            raise RefusedError("nothing may be marked: deletion.topic_two_phase_deletion_enabled is false")
        failures = [marked.failure for marked in sent]
    results = iter(failures)
    report.gone += len(gone)
    for (path, records), of_node in zip(due, marks, strict=True):
        done: list[TrashRecord] = []
        for record, of_record in zip(records, of_node, strict=True):
            failed = [why for why in [next(results) for _ in of_record] if why is not None]
            if failed:
                report.kept[path] = f"{len(failed)} marks of {record.managed_ledger} were not confirmed: {failed[0]}"
            else:
                done.append(record)
                report.marks.update(mark.ledger_type for mark in of_record)
        if done and marker is not None and not nodes.take_out(path, done):
            report.kept[path] = "its marks are confirmed, and it is written all the time"
        else:
            report.records += len(done)


def _some_at_a_time(due: Iterable[OfNode]) -> Iterator[list[OfNode]]:
    some: list[OfNode] = []
    count = 0
    for path, records in due:
        some.append((path, records))
        count += sum(len(record.ledger_ids) for record in records)
        if count >= _LEDGERS_AT_ONCE:
            yield some
            some, count = [], 0
    yield some
