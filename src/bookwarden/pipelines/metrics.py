"""Prometheus metrics of both phases: PIP-186's list, and more for operators (docs/metrics.md)."""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from bookwarden.config import MetricsSettings
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.ledgers.pending_deletion import LedgerType, MarkReport
from bookwarden.ledgers.shared_doubts import DoubtCause
from bookwarden.metastore.following.phases import ParticipantState
from bookwarden.metastore.following.progress import MigrationStatus
from bookwarden.metrics.endpoint import serving
from bookwarden.metrics.instruments import counter, counter_family, gauge, gauge_family, histogram
from bookwarden.trash.keeper import TrashState

_KINDS = tuple(kind.value for kind in LedgerType)
# The ledger type of messages that could not be decoded.
_UNKNOWN = "unknown"
_SENT = "bookwarden_pending_deletions_sent_total"
_DESTINATION = {
    Outcome.RETRY.value: "retry",
    Outcome.DELAYED.value: "retry",
    Outcome.WAITING.value: "retry",
    Outcome.GAVE_UP.value: "dlq",
    Outcome.MALFORMED.value: "dlq",
    Outcome.POISONOUS.value: "dlq",
    Outcome.INSIDE_LIST.value: "dlq",
    Outcome.DAMAGED_HOLDER.value: "dlq",
}
_BATCH_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_OUTBOX = (
    "bookwarden_inflight_outbox_nodes",
    "bookwarden_inflight_outbox_bytes",
    "bookwarden_inflight_outbox_oldest_seconds",
)
_TRASH = (
    "bookwarden_trash_records",
    "bookwarden_trash_bytes",
    "bookwarden_trash_oldest_seconds",
    "bookwarden_trash_missing_disk_bytes",
    "bookwarden_trash_overdue_seconds",
)
_FAILED = (Outcome.RETRY.value, Outcome.GAVE_UP.value, Outcome.POISONOUS.value)


class _MigrationCollector(Collector):
    """Status of each metadata store in a migration, by URL."""

    def __init__(self, statuses: Callable[[], Mapping[str, MigrationStatus]]) -> None:
        self._statuses = statuses

    def collect(self) -> Iterator[Metric]:
        """Yield the state with each store, and for how long a migration of it kept the driver from writing."""
        statuses = self._statuses()
        yield gauge_family(
            "bookwarden_metadata_migration_state",
            (
                ((url, each.value), float(each is status.state))
                for url, status in statuses.items()
                for each in ParticipantState
            ),
        )
        yield counter_family(
            "bookwarden_metadata_migration_blocked_seconds_total",
            (((url,), status.blocked_s) for url, status in statuses.items()),
        )


class MarkMetrics:
    """Counters of phase one, for the registry of the process that marks; pass `count` to a Marker as ``on_report``."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._sent = counter(_SENT, registry)
        self._failed = counter("bookwarden_marks_failed_total", registry)
        for kind in _KINDS:
            self._sent.labels(kind, "deletion")
            self._failed.labels(kind)

    def count(self, report: MarkReport) -> None:
        """Add the results of the marks of one call."""
        tally = Tally((ledger.mark.ledger_type.value, ledger.sent) for ledger in report.ledgers)
        for (kind, sent), number in tally.items():
            (self._sent.labels(kind, "deletion") if sent else self._failed.labels(kind)).inc(number)


class QueryMetrics:
    """Counters of a streaming query's driver, whatever it does; every series exists from the start."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self._batch = histogram("bookwarden_batch_seconds", self.registry, _BATCH_SECONDS)
        self._last_batch = gauge("bookwarden_last_batch_timestamp_seconds", self.registry)
        self._restarts = counter("bookwarden_query_restarts_total", self.registry)
        self._failures = gauge("bookwarden_query_consecutive_failures", self.registry)
        self._unready = "the checks before the first batch are not through"

    def count_seconds(self, seconds: float) -> None:
        """Note that a batch was finished, and the time it took."""
        self._batch.observe(seconds)
        self._last_batch.set_to_current_time()

    def count_failures(self, in_a_row: int) -> None:
        """Note a restart after a number of failures in a row, or with 0 that the query makes progress again."""
        self._failures.set(in_a_row)
        self._unready = f"{in_a_row} failures of the query in a row: the log says why" if in_a_row else ""
        if in_a_row:
            self._restarts.inc()

    def show_ready(self) -> None:
        """Note that the checks before the first batch are through."""
        self._unready = ""

    def show_migrations(self, statuses: Callable[[], Mapping[str, MigrationStatus]]) -> None:
        """Publish the status with each metadata store that Pulsar may move, read at each request."""
        self.registry.register(_MigrationCollector(statuses))

    @contextmanager
    def serving(self, settings: MetricsSettings) -> Iterator[None]:
        """Keep the endpoint open for the body, if there is to be one; ConfigError when the address is not available."""
        if not settings.port:
            yield
            return
        with serving(settings.host, settings.port, self.registry, lambda: self._unready):
            yield


class SweepMetrics(QueryMetrics):
    """Counters over finished batches, so that a replayed batch counts once; every series exists from the start.

    ``ledger_type`` is LEDGER or OFFLOAD_LEDGER, and unknown for messages that could not be decoded.
    """

    def __init__(self) -> None:
        super().__init__()
        self._sent = counter(_SENT, self.registry)
        self._received = counter("bookwarden_pending_deletions_received_total", self.registry)
        self._deleted = counter("bookwarden_ledgers_deleted_total", self.registry)
        self._failed = counter("bookwarden_ledger_deletions_failed_total", self.registry)
        self._acked = counter("bookwarden_pending_deletions_acked_total", self.registry)
        self._max_retry = counter("bookwarden_pending_deletions_max_retry_total", self.registry)
        self._outcomes = counter("bookwarden_outcomes_total", self.registry)
        self._bytes = counter("bookwarden_ledger_bytes_deleted_total", self.registry)
        self._inflight = gauge("bookwarden_inflight_entries", self.registry)
        self._outbox = [gauge(name, self.registry) for name in _OUTBOX]
        self._trash_rules = gauge("bookwarden_trash_rules", self.registry)
        self._trash = [gauge(name, self.registry) for name in _TRASH]
        self._lease_until_ms = 0
        lease = gauge("bookwarden_trash_lease_seconds", self.registry)
        # It runs out also while the store cannot be read.
        lease.set_function(lambda: max(0.0, self._lease_until_ms / 1000 - time.time()))
        self._dlq_keeps_nothing = gauge("bookwarden_dlq_keeps_nothing", self.registry)
        self._stuck = gauge("bookwarden_source_stuck_seconds", self.registry)
        self._waiting = gauge("bookwarden_sweep_waiting_seconds", self.registry)
        self._show_zeros()

    def _show_zeros(self) -> None:
        # A rate over a series that begins with its first count misses that count.
        for each in (self._received, self._acked, self._failed):
            each.labels(_UNKNOWN)
        for kind in _KINDS:
            for each in (self._received, self._deleted, self._failed, self._acked, self._max_retry):
                each.labels(kind)
            for outcome in Outcome:
                if outcome is not Outcome.MALFORMED:
                    self._outcomes.labels(outcome.value, kind)
            for destination in ("retry", "dlq"):
                self._sent.labels(kind, destination)
        for cause in DoubtCause:
            self._waiting.labels(cause.value)
        for outcome in (Outcome.MALFORMED, Outcome.POISONOUS):
            self._outcomes.labels(outcome.value, _UNKNOWN)
        self._sent.labels(_UNKNOWN, "dlq")

    def count_batch(
        self, counts: Iterable[tuple[str, str, int, int]], seconds: float, *, dry_run: bool = False
    ) -> None:
        """Add a finished batch: (outcome, ledger type, number, bytes) rows and the time it took.

        A dry run only counts what it receives and decides.
        """
        for outcome, ledger_type, number, size in counts:
            kind = ledger_type or _UNKNOWN
            self._received.labels(kind).inc(number)
            self._outcomes.labels(outcome, kind).inc(number)
            if not dry_run:
                self._count_done(outcome, kind, number, size)
        self.count_seconds(seconds)

    def _count_done(self, outcome: str, kind: str, number: int, size: int) -> None:
        self._acked.labels(kind).inc(number)
        if outcome == Outcome.DELETED.value:
            self._deleted.labels(kind).inc(number)
            self._bytes.inc(size)
        if outcome in _FAILED:
            self._failed.labels(kind).inc(number)
        if outcome == Outcome.GAVE_UP.value:
            self._max_retry.labels(kind).inc(number)
        if outcome in _DESTINATION:
            self._sent.labels(kind, _DESTINATION[outcome]).inc(number)

    def show_dlq(self, *, keeps: bool) -> None:
        """Publish whether the DLQ keeps dead letters."""
        self._dlq_keeps_nothing.set(0.0 if keeps else 1.0)

    def set_waiting(self, seconds: Mapping[DoubtCause, float]) -> None:
        """Publish for how long the running batch has waited, by cause."""
        for cause, waited in seconds.items():
            self._waiting.labels(cause.value).set(waited)

    def show_trash_rules(self, number: int) -> None:
        """Publish how many rules of the trash there are."""
        self._trash_rules.set(number)

    def set_trash(self, state: TrashState, now_s: float) -> None:
        """Publish what is in the trash, how long brokers keep what they drop from now on, and what may end that."""
        self._lease_until_ms, conditions = state.lease_until_ms, state.conditions
        values = (state.records, state.size, state.oldest_s(now_s), conditions.missing_bytes, conditions.overdue_s)
        for shown, value in zip(self._trash, values, strict=True):
            shown.set(value)

    def set_outbox(self, nodes: int, size: int, oldest_s: float) -> None:
        """Publish what waits in the outbox of brokers that mark: nodes, bytes, and the age of the oldest."""
        for shown, value in zip(self._outbox, (nodes, size, oldest_s), strict=True):
            shown.set(value)

    def set_backlog(self, entries: Mapping[str, int], stuck_s: Mapping[str, float]) -> None:
        """Publish the backlog of each partition, and for how long it stands at an entry."""
        for topic, count in entries.items():
            self._inflight.labels(topic).set(count)
        for topic, seconds in stuck_s.items():
            self._stuck.labels(topic).set(seconds)
