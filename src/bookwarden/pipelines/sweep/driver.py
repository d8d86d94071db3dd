"""The sweep's driver process: lock, metrics, supervisor, signals."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import SparkSession

from bookwarden.background import in_background
from bookwarden.config import Settings
from bookwarden.errors import FormatError, NotFoundError, PulsarError, StoppedFailingError
from bookwarden.ledgers.names import encode_local_name
from bookwarden.metastore.interface import MetadataStore
from bookwarden.pipelines.metrics import SweepMetrics
from bookwarden.pipelines.session import unless_gone
from bookwarden.pipelines.streams.lock import StreamLock
from bookwarden.pipelines.streams.proven_roots import looked_at_again, prove_roots
from bookwarden.pipelines.streams.running import holding, patience_of, stopped_by_signals
from bookwarden.pipelines.streams.supervisor import Pulse, Supervisor, attach
from bookwarden.pipelines.streams.task_beats import figures_of
from bookwarden.pipelines.sweep.query import LedgerDeletion
from bookwarden.pipelines.sweep.stuck import StuckWatch
from bookwarden.pipelines.sweep.writers import Writers
from bookwarden.wiring.metadata import MetadataContext
from bookwarden.wiring.pulsar import TopicsContext
from bookwarden.wiring.roots import roots_proof_of

logger = logging.getLogger(__name__)
_WATCH_SECONDS = 15.0


@dataclass(frozen=True)
class SweepEnd:
    """The end of a sweep: pending deletions by outcome, and whether all that were due at the start are done."""

    counts: Counter[str]
    drained: bool


def run_sweep(spark: SparkSession, settings: Settings, *, once: bool = False) -> SweepEnd:
    """Sweep until SIGTERM or SIGINT; with `once` until everything that was due at the start is done.

    Raises SparkError when the query failed more often than the settings allow, StoppedFailingError when it was stopped
    while it failed, DataGoneError when messages were trimmed or skipped, RefusedError while another sweep of the
    subscription runs or once another Pulsar cluster shares the BookKeeper, and ConfigError where roots and BookKeeper
    do not belong together.
    """
    with MetadataContext(settings) as metadata, TopicsContext(settings, metadata.admin) as topics:
        return _run_sweep(spark, settings, metadata, topics, once=once)


def _run_sweep(
    spark: SparkSession, settings: Settings, metadata: MetadataContext, topics: TopicsContext, *, once: bool
) -> SweepEnd:
    sweep = settings.sweep
    pulse = Pulse()
    attach(spark, pulse)
    metrics = SweepMetrics()
    metrics.show_migrations(metadata.migrations.standings)
    writers = Writers(settings.metadata_store, metadata.ledgers_moved_to, metadata.bookie_clusters.own_store_urls)
    query = LedgerDeletion(spark, settings, pulse, metrics, writers=writers)
    patience = patience_of(sweep, sweep.trigger_seconds)
    supervisor = Supervisor(
        lambda: query.start(once=once),
        pulse,
        patience,
        once=once,
        on_failures=metrics.count_failures,
        migrations=metadata.migrations,
        is_outdated=lambda: query.is_outdated,
        progress=figures_of(spark),
    )
    try:
        with (
            _alone(settings, metadata.store, supervisor.stop),
            stopped_by_signals(supervisor.stop),
            _published(settings, metrics, topics),
        ):
            if sweep.dry_run:
                supervisor.run()
            else:
                prove_roots(settings, metadata, patience, supervisor.wait)
                with looked_at_again(
                    roots_proof_of(settings.metadata_store, metadata).require_all_roots, supervisor.stop
                ):
                    supervisor.run()
    finally:
        unless_gone(lambda: spark.streams.removeListener(pulse))
    if supervisor.failing is not None:
        raise StoppedFailingError(
            f"stopped while batches failed, {_in_flight(topics)}; the last failure: {supervisor.failing}"
        )
    return SweepEnd(query.totals, supervisor.through)


def _in_flight(topics: TopicsContext) -> str:
    try:
        return f"with {topics.in_flight().messages:,} pending deletions in flight"
    except (PulsarError, NotFoundError) as error:
        return f"and what is in flight cannot be seen ({error})"


@contextmanager
def _alone(settings: Settings, store: MetadataStore, stop: Callable[[], None]) -> Iterator[None]:
    """Hold the subscription's lock until the store is closed; a dry run, which acknowledges nothing, needs none."""
    if settings.sweep.dry_run or not settings.sweep.lock:
        yield
        return
    deletion = settings.deletion
    name = encode_local_name(f"{deletion.topic} {deletion.subscription}")
    lock = StreamLock(store, f"{settings.sweep.lock.rstrip('/')}/{name}")
    with holding(lock, settings.metadata_store, stop):
        yield


@contextmanager
def _published(settings: Settings, metrics: SweepMetrics, topics: TopicsContext) -> Iterator[None]:
    with _topics_watched(topics, metrics):
        if not settings.metrics.port:
            yield
            return
        with metrics.serving(settings.metrics.host, settings.metrics.port):
            yield


@contextmanager
def _topics_watched(topics: TopicsContext, metrics: SweepMetrics) -> Iterator[None]:
    stuck = StuckWatch(topics.why_unreadable)

    def publish(ended: threading.Event) -> None:
        while True:
            try:
                backlog = topics.entries()
                metrics.set_backlog({topic: behind.entries for topic, behind in backlog.items()}, stuck.look(backlog))
            except (PulsarError, NotFoundError, FormatError) as error:
                logger.warning("the backlog of the sweep's subscription cannot be seen: %s", error)
            if ended.wait(_WATCH_SECONDS):
                return

    with in_background(publish, "backlog", end_seconds=5):
        yield
