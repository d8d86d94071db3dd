"""The outbox of brokers that mark, forwarded while none of them lives: as a broker does, by the library's sender.

A node is deleted once all that it names is gone from BookKeeper or has a confirmed mark. Killed anywhere, the next
drain does the rest: a mark that is sent again is found done by the sweep.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from bookwarden.clusters.pulsar.broker_marks import MarkingBrokers, Outbox, OutboxNode
from bookwarden.deletion.phase_one.mark import Marker
from bookwarden.deletion.ports import LedgerCatalog
from bookwarden.errors import FormatError, RefusedError
from bookwarden.ledgers.metadata import AbsentLedger
from bookwarden.ledgers.pending_deletion import LedgerType, PendingDeletion
from bookwarden.wire.broker_marks import decode_outbox_node
from bookwarden.wire.trash import TRASH_RECORDS, has_records

logger = logging.getLogger(__name__)
# A node of 64 KiB may have 20,000 ledgers; most have one.
_MARKS_AT_ONCE: Final = 10_000


@dataclass(frozen=True, slots=True)
class KeptNode:
    """A node that is still in the outbox after its turn."""

    path: str
    reason: str


@dataclass
class DrainReport:
    """The result of a drain, or of a plan: what it would do."""

    executed: bool  #: Not only planned.
    nodes: int = 0  #: Deleted, or to be deleted.
    gone: int = 0  #: Ledgers that BookKeeper does not have any more, so that they need no mark.
    marks: Counter[LedgerType] = field(default_factory=Counter)  #: Confirmed, or to be sent.
    #: Nodes whose drops went, or would go, into the trash: what brokers keep is not marked.
    trashed: int = 0
    kept: list[KeptNode] = field(default_factory=list)  #: Still in the outbox.


@dataclass(frozen=True, slots=True)
class _Content:
    """A node, and the marks of what it names."""

    found: OutboxNode
    marks: list[PendingDeletion]


class OutboxDrain:
    """Forwards what is left in the outbox, or with no ``marker`` only plans that."""

    def __init__(
        self, brokers: MarkingBrokers, outbox: Outbox, catalog: LedgerCatalog, marker: Marker | None = None
    ) -> None:
        self._brokers = brokers
        self._outbox = outbox
        self._catalog = catalog
        self._marker = marker

    def run(self) -> DrainReport:
        """Forward all folders.

        Raises RefusedError while a broker with the jar's line lives, which forwards them itself, StoreError, and
        PulsarError where nothing can be sent: what was done before is done.
        """
        report = DrainReport(self._marker is not None)
        for folder in self._outbox.folders():
            kept = len(report.kept)
            for nodes in self._outbox.read(folder):
                nodes = self._without_trashed(nodes, report)
                for contents in _groups(self._understood(folder, nodes, report)):
                    self._require_no_broker()
                    self._forward(contents, report)
            if self._marker is not None and len(report.kept) == kept:
                self._require_no_broker()
                self._outbox.delete_if_empty(folder)
        self._require_no_broker()
        return report

    def _require_no_broker(self) -> None:
        live = self._brokers.folders()
        if live:
            raise RefusedError(
                f"{', '.join(live)} below /bookwarden/broker-marks/brokers: a broker that marks lives, and forwards "
                "what is in the outbox; the node of a broker that was killed goes with its session"
            )

    def _without_trashed(self, nodes: Sequence[OutboxNode], report: DrainReport) -> list[OutboxNode]:
        """Move the nodes of which all is to be kept into the trash, as a broker does, and return the others."""
        trashed = [found for found in nodes if has_records(found.node.value)]
        if trashed and self._marker is not None:
            self._require_no_broker()
            for found in trashed:
                self._outbox.copy_below(TRASH_RECORDS, found)
            left = self._outbox.delete(trashed)
            report.kept += [KeptNode(path, "it is in the trash, and may still be here") for path in left]
            report.trashed -= len(left)
        report.trashed += len(trashed)
        return [found for found in nodes if found not in trashed]

    def _understood(self, folder: str, nodes: Sequence[OutboxNode], report: DrainReport) -> Iterator[_Content]:
        """Yield the nodes that can be read; one that cannot is kept."""
        host = folder.rpartition("-")[0].rpartition(":")[0]
        for found in nodes:
            try:
                marks = decode_outbox_node(found.node.value, f"dropped by broker {host}")
            except FormatError as error:
                report.kept.append(KeptNode(found.path, str(error)))
                continue
            yield _Content(found, marks)

    def _forward(self, contents: Sequence[_Content], report: DrainReport) -> None:
        gone = self._gone(contents)
        report.gone += len(gone)
        left = [[mark for mark in content.marks if not _is_of(mark, gone)] for content in contents]
        failures = self._send([mark for marks in left for mark in marks])
        done = []
        for content, marks in zip(contents, left, strict=True):
            results = [next(failures) for _ in marks]
            failed = [why for why in results if why is not None]
            if failed:
                reason = f"{len(failed)} of its {len(results)} marks were not confirmed: {failed[0]}"
                report.kept.append(KeptNode(content.found.path, reason))
            else:
                report.marks.update(mark.ledger_type for mark in marks)
                done.append(content.found)
        self._delete(done, report)

    def _gone(self, contents: Sequence[_Content]) -> frozenset[int]:
        """Return the ledgers that BookKeeper does not have; one of which that is not known may be there."""
        ids = sorted(
            {mark.ledger_id for content in contents for mark in content.marks if mark.ledger_type is LedgerType.LEDGER}
        )
        readings = self._catalog.read_many(ids) if ids else []
        return frozenset(
            reading.ledger_id for reading in readings if isinstance(reading, AbsentLedger) and not reading.unfinished
        )

    def _send(self, marks: Sequence[PendingDeletion]) -> Iterator[str | None]:
        """Send marks; return for each why it was not confirmed, None where it was. A plan sends none."""
        if self._marker is None or not marks:
            return iter([None] * len(marks))
        sent = self._marker.mark(marks).ledgers
        if len(sent) != len(marks):
            raise RefusedError("nothing may be marked: deletion.topic_two_phase_deletion_enabled is false")
        return iter([marked.failure for marked in sent])

    def _delete(self, done: Sequence[OutboxNode], report: DrainReport) -> None:
        report.nodes += len(done)
        if self._marker is None or not done:
            return
        left = self._outbox.delete(done)
        report.nodes -= len(left)
        report.kept += [KeptNode(path, "its marks are confirmed, and it may still be there") for path in left]
        logger.info("%d nodes of the outbox were forwarded", len(done) - len(left))


def _is_of(mark: PendingDeletion, ledgers: frozenset[int]) -> bool:
    return mark.ledger_type is LedgerType.LEDGER and mark.ledger_id in ledgers


def _groups(contents: Iterator[_Content]) -> Iterator[list[_Content]]:
    """Yield nodes together until they have many marks."""
    group: list[_Content] = []
    marks = 0
    for content in contents:
        group.append(content)
        marks += len(content.marks)
        if marks >= _MARKS_AT_ONCE:
            yield group
            group, marks = [], 0
    if group:
        yield group
