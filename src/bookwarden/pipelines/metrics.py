"""Prometheus metrics of both phases: PIP-186's list, and more for operators (docs/metrics.md)."""

from __future__ import annotations

import logging
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    start_http_server,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from bookwarden.errors import ConfigError
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.ledgers.pending_deletion import LedgerType, MarkReport
from bookwarden.ledgers.shared_doubts import DoubtCause
from bookwarden.metastore.following.phases import ParticipantState
from bookwarden.metastore.following.progress import MigrationStatus
from bookwarden.trash.keeper import TrashState

logger = logging.getLogger(__name__)
_KINDS = tuple(kind.value for kind in LedgerType)
# The ledger type of messages that could not be decoded.
_UNKNOWN = "unknown"
_SENT = "bookwarden_pending_deletions_sent", "Confirmed by the broker: marks, retries and dead letters."
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
_FAILED = (Outcome.RETRY.value, Outcome.GAVE_UP.value, Outcome.POISONOUS.value)


class _MigrationCollector(Collector):
    """Status of each metadata store in a migration, by URL."""

    def __init__(self, statuses: Callable[[], Mapping[str, MigrationStatus]]) -> None:
        self._statuses = statuses

    def collect(self) -> Iterator[Metric]:
        state = GaugeMetricFamily(
            "bookwarden_metadata_migration_state",
            "Where the sweep's driver stands in a migration of a metadata store: 1 for the state it is in.",
            labels=["store", "state"],
        )
        blocked = CounterMetricFamily(
            "bookwarden_metadata_migration_blocked_seconds",
            "For how long migrations of a metadata store kept the sweep from writing.",
            labels=["store"],
        )
        for url, status in self._statuses().items():
            for each in ParticipantState:
                state.add_metric([url, each.value], float(each is status.state))
            blocked.add_metric([url], status.blocked_s)
        yield from (state, blocked)


class MarkMetrics:
    """Counters of phase one, for the registry of the process that marks; pass `count` to a Marker as ``on_report``."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._sent = Counter(*_SENT, ["ledger_type", "destination"], registry=registry)
        self._failed = Counter(
            "bookwarden_marks_failed",
            "Marks that were not confirmed; their ledgers stay.",
            ["ledger_type"],
            registry=registry,
        )
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
        self._batch = Histogram(
            "bookwarden_batch_seconds",
            "Time from the start of a batch to its outcome rows.",
            registry=self.registry,
            buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300),
        )
        self._last_batch = Gauge(
            "bookwarden_last_batch_timestamp_seconds",
            "When the last batch was finished; 0 before the first.",
            registry=self.registry,
        )
        self._restarts = Counter(
            "bookwarden_query_restarts", "Restarts of the query after a failure or stall.", registry=self.registry
        )
        self._failures = Gauge(
            "bookwarden_query_consecutive_failures",
            "Failures and stalls of the query since it last got on; 0 while it does.",
            registry=self.registry,
        )

    def count_seconds(self, seconds: float) -> None:
        """Note that a batch was finished, and the time it took."""
        self._batch.observe(seconds)
        self._last_batch.set_to_current_time()

    def count_failures(self, in_a_row: int) -> None:
        """Note a restart after a number of failures in a row, or with 0 that the query makes progress again."""
        self._failures.set(in_a_row)
        if in_a_row:
            self._restarts.inc()

    def show_migrations(self, statuses: Callable[[], Mapping[str, MigrationStatus]]) -> None:
        """Publish the status with each metadata store that Pulsar may move, read at each request."""
        self.registry.register(_MigrationCollector(statuses))

    @contextmanager
    def serving(self, host: str, port: int) -> Iterator[None]:
        """Keep the endpoint open for the body; raises ConfigError when the address is not available."""
        try:
            server, thread = start_http_server(port, addr=host, registry=self.registry)
        except OSError as error:
            raise ConfigError(
                f"metrics endpoint {host}:{port} cannot be opened ({error.strerror}): set metrics.host and metrics.port"
            ) from error
        logger.info("metrics at http://%s:%d/metrics", host, port)
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


class SweepMetrics(QueryMetrics):
    """Counters over finished batches, so that a replayed batch counts once; every series exists from the start.

    ``ledger_type`` is LEDGER or OFFLOAD_LEDGER, and unknown for messages that could not be decoded.
    """

    def __init__(self) -> None:
        super().__init__()
        self._sent = Counter(*_SENT, ["ledger_type", "destination"], registry=self.registry)
        self._received = self._by_kind("pending_deletions_received", "Taken from the deletion topics.")
        self._deleted = self._by_kind("ledgers_deleted", "Deleted by the sweep.")
        self._failed = self._by_kind("ledger_deletions_failed", "Tried without success, to be retried or given up.")
        self._acked = self._by_kind("pending_deletions_acked", "Finished, so that the subscription may pass them.")
        self._max_retry = self._by_kind("pending_deletions_max_retry", "Given up at the highest retry count.")
        self._outcomes = Counter(
            "bookwarden_outcomes", "Pending deletions by outcome.", ["outcome", "ledger_type"], registry=self.registry
        )
        self._bytes = Counter(
            "bookwarden_ledger_bytes_deleted", "Length of the deleted ledgers, in bytes.", registry=self.registry
        )
        self._inflight = Gauge(
            "bookwarden_inflight_entries",
            "Backlog of the sweep's subscription, in broker entries; 0 means that nothing is in flight.",
            ["topic"],
            registry=self.registry,
        )
        self._outbox = {
            name: Gauge(f"bookwarden_inflight_outbox_{name}", text, registry=self.registry)
            for name, text in (
                ("nodes", "Nodes in the outbox of all brokers that mark."),
                ("bytes", "Bytes in the outbox of all brokers that mark."),
                ("oldest_seconds", "Age of the oldest node of that outbox; 0 if there is none."),
            )
        }
        self._trash = {
            name: Gauge(f"bookwarden_trash_{name}", text, registry=self.registry)
            for name, text in (
                ("records", "Records in the trash: deleted nodes, and ledgers that left a list together."),
                ("bytes", "Bytes of the ledgers in the trash, as their topics counted them: one copy."),
                ("oldest_seconds", "Age of the oldest record in the trash; 0 if there is none."),
                (
                    "missing_disk_bytes",
                    "Bytes that bookies lack for trash.min_free_disk_ratio.",
                ),
                ("overdue_seconds", "Seconds since the oldest mark in flight was due; read for the lease."),
            )
        }
        self._lease_until_ms = 0
        lease = Gauge(
            "bookwarden_trash_lease_seconds",
            "Seconds for which brokers go on keeping what they drop if this sweep does not renew the lease.",
            registry=self.registry,
        )
        # It runs out also while the store cannot be read.
        lease.set_function(lambda: max(0.0, self._lease_until_ms / 1000 - time.time()))
        self._dlq_keeps_nothing = Gauge(
            "bookwarden_dlq_keeps_nothing",
            "1 while the DLQ lacks its topic or subscription, so that marks wait instead of being given up.",
            registry=self.registry,
        )
        self._stuck = Gauge(
            "bookwarden_source_stuck_seconds",
            "For how long a partition stands at an entry that cannot be read; the log names it.",
            ["topic"],
            registry=self.registry,
        )
        self._waiting = Gauge(
            "bookwarden_sweep_waiting_seconds",
            "For how long the running batch has waited for a doubt about very many marks; the log names the node.",
            ["cause"],
            registry=self.registry,
        )
        self._show_zeros()

    def _by_kind(self, name: str, text: str) -> Counter:
        return Counter(f"bookwarden_{name}", text, ["ledger_type"], registry=self.registry)

    def _show_zeros(self) -> None:
        # A rate over a series that begins with its first count misses that count.
        for counter in (self._received, self._acked, self._failed):
            counter.labels(_UNKNOWN)
        for kind in _KINDS:
            for counter in (self._received, self._deleted, self._failed, self._acked, self._max_retry):
                counter.labels(kind)
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

    def set_trash(self, state: TrashState, now_s: float) -> None:
        """Publish what is in the trash, how long brokers keep what they drop from now on, and what may end that."""
        self._lease_until_ms, conditions = state.lease_until_ms, state.conditions
        values = (state.records, state.size, state.oldest_s(now_s), conditions.missing_bytes, conditions.overdue_s)
        for name, value in zip(self._trash, values, strict=True):
            self._trash[name].set(value)

    def set_outbox(self, nodes: int, size: int, oldest_s: float) -> None:
        """Publish what waits in the outbox of brokers that mark: nodes, bytes, and the age of the oldest."""
        for name, value in (("nodes", nodes), ("bytes", size), ("oldest_seconds", oldest_s)):
            self._outbox[name].set(value)

    def set_backlog(self, entries: Mapping[str, int], stuck_s: Mapping[str, float]) -> None:
        """Publish the backlog of each partition, and for how long it stands at an entry."""
        for topic, count in entries.items():
            self._inflight.labels(topic).set(count)
        for topic, seconds in stuck_s.items():
            self._stuck.labels(topic).set(seconds)
