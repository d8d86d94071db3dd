"""Prometheus metrics of following what brokers drop (docs/metrics.md)."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

from bookwarden.follow.drops import DropCause
from bookwarden.follow.following import FollowTally
from bookwarden.ledgers.kinds import KINDS, PlaceKind
from bookwarden.ledgers.outcomes import DropOutcome
from bookwarden.ledgers.pending_deletion import MarkReport
from bookwarden.pipelines.metrics import MarkMetrics, QueryMetrics

_PLACES = tuple(dict.fromkeys(place for kind in KINDS for place in kind.places if place is not PlaceKind.COMPACTED_NOW))


class FollowMetrics(QueryMetrics):
    """Counters over finished batches; every series exists from the start."""

    def __init__(self) -> None:
        super().__init__()
        self._marks = MarkMetrics(self.registry)
        self._dropped = Counter(
            "bookwarden_follow_dropped",
            "Ledgers and copies that left their last node, looked at after the time of grace.",
            ["kind", "cause"],
            registry=self.registry,
        )
        self._still_there = Counter(
            "bookwarden_follow_still_there",
            "Those of them that were not gone.",
            ["kind", "cause"],
            registry=self.registry,
        )
        self._outcomes = Counter(
            "bookwarden_follow_outcomes", "What was dropped, by outcome.", ["outcome"], registry=self.registry
        )
        self._doubles = Counter(
            "bookwarden_follow_doubles",
            "Marks of what a broker that marks had in its outbox, or on the deletion topics, already.",
            registry=self.registry,
        )
        self._nodes = Gauge("bookwarden_follow_nodes", "Nodes whose ledgers are known.", registry=self.registry)
        self._pending = Gauge(
            "bookwarden_follow_pending", "Dropped ledgers and copies that will be looked at.", registry=self.registry
        )
        self._lag = Gauge(
            "bookwarden_follow_lag_seconds",
            "Age of the oldest change of the last batch that had any.",
            registry=self.registry,
        )
        self._problems = Counter(
            "bookwarden_follow_unreadable_nodes", "Readings of nodes that said nothing.", registry=self.registry
        )
        for place in _PLACES:
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
