"""Phase one's first step: pending deletions are sent before anything leaves the metadata."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from bookwarden.deletion.ports import MarkSender
from bookwarden.errors import MalformedMarkError
from bookwarden.ledgers.pending_deletion import MarkedLedger, MarkReport, PendingDeletion


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
