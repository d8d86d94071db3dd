"""Phase one's first step: pending deletions of all ledgers are made, and sent before anything leaves the metadata."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from bookwarden.deletion.ports import MarkSender
from bookwarden.errors import MalformedMarkError
from bookwarden.ledgers.kinds import CompactedHolder, Holder, ManagedLedgerHolder, SchemaHolder, holders_of_cursor
from bookwarden.ledgers.managed_ledger import LedgerInfo, VersionedCursor, VersionedSchema
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.pending_deletion import (
    LedgerType,
    MarkedLedger,
    MarkReport,
    OffloadContext,
    PendingDeletion,
    contexts_of,
)


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


class Marker:
    """Marks ledgers for deletion; with ``enabled`` False (topic_two_phase_deletion_enabled) it marks none.

    ``on_report`` is called with each report, for metrics (`pipelines.metrics.MarkMetrics`).
    """

    def __init__(
        self,
        sender: MarkSender,
        *,
        enabled: bool = True,
        clock: Callable[[], float] = time.time,
        on_report: Callable[[MarkReport], None] = lambda _: None,
    ) -> None:
        self._sender = sender
        self._clock = clock
        self._on_report = on_report
        self.enabled = enabled

    def mark(self, marks: Sequence[PendingDeletion]) -> MarkReport:
        """Send all and wait until each is confirmed or has failed; the order is kept for each holder.

        A mark that is not valid, or whose send fails, is reported and does not keep the others. Raises PulsarError
        when the deletion topic cannot be reached at all: then nothing was sent.
        """
        if not self.enabled:
            return MarkReport()
        now_ms = int(self._clock() * 1000)
        stamped = [mark if mark.marked_at else mark.stamped(now_ms) for mark in marks]
        problems = [_problem(mark) for mark in stamped]
        sound = [mark for mark, problem in zip(stamped, problems, strict=True) if problem is None]
        results = iter(self._sender.send_all(sound))
        report = MarkReport(
            tuple(
                MarkedLedger(mark, next(results) if problem is None else problem)
                for mark, problem in zip(stamped, problems, strict=True)
            )
        )
        self._on_report(report)
        return report


def _problem(mark: PendingDeletion) -> str | None:
    try:
        mark.validate()
    except MalformedMarkError as error:
        return str(error)
    return None
