"""Prometheus metrics of following what brokers drop (docs/metrics.md)."""

from __future__ import annotations

from bookwarden.follow.drops import DropCause
from bookwarden.follow.following import FollowTally
from bookwarden.ledgers.outcomes import DropOutcome
from bookwarden.ledgers.pending_deletion import MarkReport
from bookwarden.metrics.instruments import counter, gauge
from bookwarden.metrics.names import DROP_PLACES
from bookwarden.pipelines.metrics import MarkMetrics, QueryMetrics


class FollowMetrics(QueryMetrics):
    """Counters over finished batches; every series exists from the start."""

    def __init__(self) -> None:
        super().__init__()
        self._marks = MarkMetrics(self.registry)
        self._dropped = counter("bookwarden_follow_dropped_total", self.registry)
        self._still_there = counter("bookwarden_follow_still_there_total", self.registry)
        self._outcomes = counter("bookwarden_follow_outcomes_total", self.registry)
        self._doubles = counter("bookwarden_follow_doubles_total", self.registry)
        self._nodes = gauge("bookwarden_follow_nodes", self.registry)
        self._pending = gauge("bookwarden_follow_pending", self.registry)
        self._lag = gauge("bookwarden_follow_lag_seconds", self.registry)
        self._problems = counter("bookwarden_follow_unreadable_nodes_total", self.registry)
        for place in DROP_PLACES:
            for cause in DropCause:
                self._dropped.labels(place.value, cause.value)
                self._still_there.labels(place.value, cause.value)
        for outcome in DropOutcome:
            self._outcomes.labels(outcome.value)

    def count_marks(self, report: MarkReport) -> None:
        """Add the marks of one call."""
        self._marks.count(report)

    def count(self, tally: FollowTally, nodes: int, pending: int, seconds: float) -> None:
        """Add a finished batch."""
        for (place, cause), number in tally.dropped.items():
            self._dropped.labels(place.value, cause.value).inc(number)
        for (place, cause), number in tally.still_there.items():
            self._still_there.labels(place.value, cause.value).inc(number)
        for outcome, number in tally.outcomes.items():
            self._outcomes.labels(outcome.value).inc(number)
        self._doubles.inc(tally.doubles)
        self._problems.inc(tally.problems)
        self._nodes.set(nodes)
        self._pending.set(pending)
        if tally.nodes:
            self._lag.set(max(tally.lag_s, 0.0))
        self.count_seconds(seconds)
