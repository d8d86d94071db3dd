"""The sweep's driver process: lock, metrics, supervisor, signals.

It finds by itself what a running batch waits for, and the entries that block one: tasks return nothing before they end.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

from pyspark.sql import SparkSession

from bookwarden.background import in_background
from bookwarden.clusters.pulsar.broker_marks import Outbox
from bookwarden.clusters.pulsar.messages.switch_events import SWITCH_TOPIC
from bookwarden.clusters.pulsar.rest.topic_positions import EntriesBehind
from bookwarden.config import Settings
from bookwarden.errors import (
    BookwardenError,
    DataGoneError,
    FileError,
    FormatError,
    NotFoundError,
    PulsarError,
    RefusedError,
    StoppedFailingError,
    StoreError,
)
from bookwarden.ledgers.managed_ledger import Position
from bookwarden.ledgers.names import TopicName, encode_local_name
from bookwarden.ledgers.shared_doubts import DoubtCause, SharedDoubt
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.lock import StoreLock
from bookwarden.pipelines.metrics import SweepMetrics
from bookwarden.pipelines.session import unless_gone
from bookwarden.pipelines.streams.checkpoint_identity import (
    first_ledgers,
    identity_file_of,
    identity_of,
    require_own,
)
from bookwarden.pipelines.streams.checks import (
    holding,
    limits_of,
    looked_at_again,
    once_answered,
    prove_roots,
    stopped_by_signals,
)
from bookwarden.pipelines.streams.supervisor import Pulse, Supervisor, attach
from bookwarden.pipelines.streams.task_beats import figures_of
from bookwarden.pipelines.sweep.query import LedgerDeletion, Writers
from bookwarden.preflight import require_absolute_journal, require_sweeping
from bookwarden.trash.keeper import TrashKeeper
from bookwarden.trash.policy_keeper import PolicyKeeper
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.deletion import policy_keeper_of, trash_keeper_of
from bookwarden.wiring.deletion_topics import TwoPhaseTopics
from bookwarden.wiring.roots import roots_proof_of

logger = logging.getLogger(__name__)
_WATCH_SECONDS = 15.0


@dataclass(frozen=True)
class SweepEnd:
    """The end of a sweep: pending deletions by outcome, and whether all that were due at the start are done."""

    counts: Counter[str]
    drained: bool


def run_sweep(
    spark: SparkSession, settings: Settings, *, once: bool = False, on_swept: Callable[[int], object] | None = None
) -> SweepEnd:
    """Sweep until SIGTERM or SIGINT; with `once` until everything that was due at the start is done.

    ``on_swept`` is called after each batch with the number of marks that were swept so far.
    Raises SparkError when the query failed more often than the settings allow, StoppedFailingError when it was stopped
    while it failed, DataGoneError when messages were trimmed or skipped, with `once` SharedDoubtError where another
    sweep would wait for a doubt about very many marks to end, NotFoundError where a topic or its
    subscription is missing at the start, RefusedError for another cluster's checkpoint, while another sweep of the
    subscription runs, or once another Pulsar cluster shares the BookKeeper, and ConfigError where roots and BookKeeper
    do not belong together, or executors would each keep a journal where Spark removes it.
    """
    require_absolute_journal(settings.sweep, str(spark.sparkContext.master))
    with Cluster(settings) as cluster:
        return _run_sweep(spark, cluster, once=once, on_swept=on_swept)


def _run_sweep(
    spark: SparkSession,
    cluster: Cluster,
    *,
    once: bool,
    on_swept: Callable[[int], object] | None,
) -> SweepEnd:
    settings, topics = cluster.settings, cluster.deletion_topics
    sweep = settings.sweep
    pulse = Pulse()
    attach(spark, pulse)
    metrics = SweepMetrics()
    metrics.show_migrations(cluster.migrations.statuses)
    metrics.show_trash_rules(len(settings.trash.rules))
    writers = Writers(settings.metadata_store, cluster.bookkeeper.moved_to, cluster.bookkeeper.clusters.own_store_urls)
    query = LedgerDeletion(
        *(spark, settings, pulse, metrics),
        epoch=cluster.bookkeeper.clusters.epoch,
        writers=writers,
        on_swept=on_swept,
    )
    limits = limits_of(sweep, sweep.trigger_seconds)
    doubts = DoubtWatch(sweep.max_waiting_marks, cluster.references.shared_doubts, lambda: pulse.batch_seconds)
    supervisor = Supervisor(
        lambda: query.start(once=once),
        pulse,
        limits,
        once=once,
        on_failures=metrics.count_failures,
        migrations=cluster.migrations,
        is_outdated=lambda: query.is_outdated,
        progress=figures_of(spark),
        is_waiting=lambda: doubts.is_waiting,
    )
    try:
        with (
            _alone(settings, cluster.store, supervisor.stop),
            stopped_by_signals(supervisor.stop),
            _published(settings, metrics, topics, doubts, Outbox(cluster.store)),
        ):
            answered = partial(once_answered, limits=limits, wait=supervisor.wait, once=once)
            answered(partial(require_sweeping, cluster))
            answered(partial(_look_at_directives, cluster))
            if sweep.dry_run:
                metrics.show_ready()
                supervisor.run()
            else:
                require_checkpoint = partial(_require_own_checkpoint, spark, cluster)
                prove_roots(cluster, answered)
                answered(require_checkpoint)
                metrics.show_ready()
                looks = (
                    roots_proof_of(cluster).require_all_roots,
                    require_checkpoint,
                    partial(_look_at_dlq, cluster, metrics),
                )
                with (
                    looked_at_again(looks, supervisor.stop),
                    _trash_kept(cluster, metrics, partial(_why_behind, supervisor, doubts)),
                    _naming(sweep.checkpoint),
                ):
                    supervisor.run()
    finally:
        query.close()
        unless_gone(lambda: spark.streams.removeListener(pulse))
    if supervisor.failing is not None:
        raise StoppedFailingError(
            f"stopped while batches failed, {_in_flight(topics)}; the last failure: {supervisor.failing}"
        )
    return SweepEnd(query.totals, supervisor.through)


def _require_own_checkpoint(spark: SparkSession, cluster: Cluster) -> None:
    """Raise RefusedError where the checkpoint is another cluster's; else record whose it is, as it is known now."""
    deletion = cluster.settings.deletion
    firsts = first_ledgers(cluster, deletion.topic, deletion.retry_topic)
    found = replace(identity_of(cluster), first_ledgers=firsts)
    require_own(identity_file_of(spark, cluster.settings.sweep.checkpoint), found, "sweep.checkpoint")


def _look_at_dlq(cluster: Cluster, metrics: SweepMetrics) -> None:
    """Report a DLQ that keeps nothing; the tasks find out themselves, before they give a mark up."""
    deletion = cluster.settings.deletion
    why = cluster.topics.why_nothing_is_kept(deletion.dlq_topic, deletion.subscription)
    metrics.show_dlq(keeps=why is None)
    if why is not None:
        logger.error("no mark is given up, since its dead letter would not be kept; it waits instead: %s", why)


def _look_at_directives(cluster: Cluster) -> None:
    """Report switch directives that will not be seen: it costs nothing, since batches go by the registry.

    Raises PulsarAccessError where our role may not read their topic, before a batch fails for it.
    """
    why = cluster.topics.why_nothing_is_kept(SWITCH_TOPIC, cluster.settings.deletion.subscription)
    if why is not None and cluster.bookkeeper.clusters.epoch():
        logger.warning("switches of bookie clusters may have no rows in the outcome table: %s", why)


@contextmanager
def _naming(checkpoint: str) -> Iterator[None]:
    """Add the checkpoint to an error of the source, which does not know where its offsets are kept."""
    try:
        yield
    except DataGoneError as error:
        raise DataGoneError(f"{error}. The checkpoint is {checkpoint}: move it away to start without it") from error
    except FileError as error:
        # Java does not say where.
        text = str(error)
        raise FileError(f"{text}. The checkpoint is {checkpoint}" if "java." in text else text) from error


def _in_flight(topics: TwoPhaseTopics) -> str:
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
    lock = StoreLock(store, f"{settings.sweep.lock.rstrip('/')}/{name}")
    with holding(lock, settings.metadata_store, stop):
        yield


@contextmanager
def _published(
    settings: Settings, metrics: SweepMetrics, topics: TwoPhaseTopics, doubts: DoubtWatch, outbox: Outbox
) -> Iterator[None]:
    with _topics_watched(settings, topics, metrics, doubts, outbox), metrics.serving(settings.metrics):
        yield


def _on_retry_topic(settings: Settings, backlog: Mapping[str, EntriesBehind]) -> int:
    retry_topic = TopicName.parse(settings.deletion.retry_topic)
    found = ((TopicName.parse(topic), behind.entries) for topic, behind in backlog.items())
    return sum(entries for topic, entries in found if topic.base == retry_topic)


def _show_outbox(outbox: Outbox, metrics: SweepMetrics) -> None:
    try:
        size = outbox.size()
    except StoreError as error:
        logger.warning("the outbox of brokers that mark cannot be seen: %s", error)
        return
    metrics.set_outbox(size.nodes, size.size, size.oldest_s(time.time()))


def _why_behind(supervisor: Supervisor, doubts: DoubtWatch) -> str:
    """Return why the sweep does not get on; empty while it does."""
    if supervisor.failing:
        return "batches of the sweep fail"
    return "the sweep waits for a doubt about very many marks" if doubts.is_waiting else ""


@contextmanager
def _trash_kept(cluster: Cluster, metrics: SweepMetrics, why_behind: Callable[[], str]) -> Iterator[None]:
    """Expire the trash and renew its lease while the block runs, for which the sweep's lock is held."""
    keeper, policies = trash_keeper_of(cluster, why_behind), policy_keeper_of(cluster)

    def keep(ended: threading.Event) -> None:
        while True:
            _keep_trash(keeper, metrics)
            _keep_policies(keeper, policies)
            if ended.wait(_WATCH_SECONDS):
                return

    with in_background(keep, "trash", end_seconds=5):
        yield


def _keep_policies(keeper: TrashKeeper, policies: PolicyKeeper) -> None:
    try:
        keeper.keep_policies(policies)
    except BookwardenError as error:
        logger.warning("policies and permissions of topics are not kept now: %s", error)


def _keep_trash(keeper: TrashKeeper, metrics: SweepMetrics) -> None:
    try:
        state = keeper.run()
    except (StoreError, PulsarError, RefusedError) as error:
        logger.warning("nothing leaves the trash now, and its lease is not renewed: %s", error)
        return
    metrics.set_trash(state, time.time())


@contextmanager
def _topics_watched(
    settings: Settings, topics: TwoPhaseTopics, metrics: SweepMetrics, doubts: DoubtWatch, outbox: Outbox
) -> Iterator[None]:
    stuck = StuckWatch(topics.why_unreadable)

    def publish(ended: threading.Event) -> None:
        while True:
            try:
                backlog = topics.entries()
                metrics.set_backlog({topic: behind.entries for topic, behind in backlog.items()}, stuck.look(backlog))
                metrics.set_waiting(doubts.look(_on_retry_topic(settings, backlog)))
            except (PulsarError, NotFoundError, FormatError) as error:
                logger.warning("the backlog of the sweep's subscription cannot be seen: %s", error)
            except StoreError as error:
                logger.warning("whether the sweep waits for a doubt cannot be seen: %s", error)
            _show_outbox(outbox, metrics)
            if ended.wait(_WATCH_SECONDS):
                return

    with in_background(publish, "backlog", end_seconds=5):
        yield


# Nothing is read before: a batch ends much sooner, if it does not wait.
_BATCH_ASKED_AFTER_S: Final = 20.0


class DoubtWatch:
    """Reports for how long the running batch has waited for shared doubts, by cause.

    A batch waits if there is a doubt and the retry topic has ``limit`` messages. ``doubts`` finds all shared doubts,
    and ``batch_seconds`` returns for how long the batch has run, 0 while none runs.
    """

    def __init__(
        self,
        limit: int,
        doubts: Callable[[], Sequence[SharedDoubt]],
        batch_seconds: Callable[[], float],
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit = limit
        self._doubts = doubts
        self._batch_seconds = batch_seconds
        self._steady = steady
        self._since: dict[DoubtCause, float] = {}
        self._logged: set[str] = set()

    @property
    def is_waiting(self) -> bool:
        """Whether a batch runs and waits, by the latest look."""
        return bool(self._since) and self._batch_seconds() > _BATCH_ASKED_AFTER_S

    def look(self, on_retry_topic: int) -> dict[DoubtCause, float]:
        """Return the seconds for each cause, 0 where no batch waits for it; a doubt is logged when it is first found.

        ``on_retry_topic`` is the number of messages there. Raises StoreError.
        """
        may_wait = on_retry_topic >= self._limit and self._batch_seconds() > _BATCH_ASKED_AFTER_S
        found = self._doubts() if may_wait else ()
        now = self._steady()
        self._since = {doubt.cause: self._since.get(doubt.cause, now) for doubt in found}
        for doubt in found:
            if doubt.path not in self._logged:
                logger.warning(
                    "the batch waits until this is mended; "
                    "see docs/monitoring.md, 'A doubt that the sweep waits for': %s",
                    doubt,
                )
        if self._logged and not found:
            logger.info("no batch waits for a doubt any more")
        self._logged = {doubt.path for doubt in found}
        return {cause: now - self._since[cause] if cause in self._since else 0.0 for cause in DoubtCause}


# No broker is asked before: most entries that wait for less are not due, or in a long batch.
_ENTRY_ASKED_AFTER_S: Final = 60.0


class _FirstEntry(NamedTuple):
    position: Position
    since: float


class StuckWatch:
    """Reports for how long an entry that cannot be read has blocked each partition.

    ``why_unreadable`` reads from an entry on, and returns what keeps that from going; None if nothing does.
    """

    def __init__(
        self, why_unreadable: Callable[[str, Position], str | None], steady: Callable[[], float] = time.monotonic
    ) -> None:
        self._why_unreadable = why_unreadable
        self._steady = steady
        self._seen: dict[str, _FirstEntry] = {}
        self._reported: dict[str, Position] = {}

    def look(self, backlog: Mapping[str, EntriesBehind]) -> dict[str, float]:
        """Return the seconds for each partition, 0 where it gets on; the first look that finds one logs the entry."""
        return {topic: self._look(topic, behind.first) for topic, behind in backlog.items()}

    def _look(self, topic: str, first: Position | None) -> float:
        now, seen = self._steady(), self._seen.get(topic)
        if first is None or seen is None or seen.position != first:
            if self._reported.pop(topic, None) is not None:
                logger.info("%s: the sweep gets on", topic)
            self._seen.pop(topic, None)
            if first is not None:
                self._seen[topic] = _FirstEntry(first, now)
            return 0.0
        if now - seen.since < _ENTRY_ASKED_AFTER_S:
            return 0.0
        reason = self._why_unreadable(topic, first)
        if reason is None:
            return 0.0
        if self._reported.get(topic) != first:
            self._reported[topic] = first
            logger.warning(
                "%s: entry %s cannot be read (%s), and has blocked those behind it for %.0f s; see "
                "docs/monitoring.md, 'An entry that cannot be read'",
                *(topic, first, reason, now - seen.since),
            )
        return now - seen.since
