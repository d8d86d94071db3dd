"""The driver process of following: state, lock, metrics, supervisor, signals."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from pyspark.sql import SparkSession

from bookwarden.config import Settings
from bookwarden.errors import ConfigError, StoppedFailingError
from bookwarden.follow.table import FollowedNodes
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.lock import StoreLock
from bookwarden.pipelines.follow.metrics import FollowMetrics
from bookwarden.pipelines.follow.query import FollowRecord, ReferenceChanges
from bookwarden.pipelines.follow.state import KeptState, find_roots
from bookwarden.pipelines.metadata_source.columns import read_now
from bookwarden.pipelines.session import QUICK_JVM, running_session, unless_gone
from bookwarden.pipelines.streams.checkpoint_identity import FolderIdentityFile, identity_of, require_own
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
from bookwarden.preflight import require_marking
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.following import dropped_ledgers_of
from bookwarden.wiring.roots import roots_proof_of

logger = logging.getLogger(__name__)
# How long an idle query waits between two triggers, in addition to their interval.
_IDLE_SECONDS = 10.0


@dataclass(frozen=True)
class FollowEnd:
    """The end of following: what was looked at, by outcome, and how it stands."""

    counts: Counter[str]
    nodes: int  #: Known.
    pending: int  #: Dropped, and not looked at yet.
    through: bool  #: With ``once``: whether all that was due is done.


@contextmanager
def follow_session(settings: Settings) -> Iterator[SparkSession]:
    """Run a Spark session of its own for the block, on this machine."""
    with running_session(settings, local=True, application="bookwarden-reference-changes", defaults=QUICK_JVM) as spark:
        yield spark


class _Comparison:
    """One comparison in this process, in the place of a query and its supervisor."""

    failing = None

    def __init__(self, compare: Callable[[threading.Event], bool]) -> None:
        self._compare = compare
        self._ended = threading.Event()
        self.through = False

    def run(self) -> None:
        self.through = self._compare(self._ended)

    def stop(self) -> None:
        self._ended.set()

    def wait(self, seconds: float) -> bool:
        return self._ended.wait(seconds)


def run_follow(spark: SparkSession | None, settings: Settings, *, once: bool = False) -> FollowEnd:
    """Follow until SIGTERM or SIGINT; with `once` until the present was compared and what is due was looked at.

    Without Spark, which `once` can be, this process itself reads the nodes, and a store that does not answer ends it.

    Raises SparkError when the query failed more often than the settings allow, StoppedFailingError when it was stopped
    while it failed, FormatError for a damaged state, NotFoundError where the deletion topic would keep no marks,
    RefusedError for another cluster's state, or one of other metadata roots alone, while another one runs, or once
    another Pulsar cluster shares the BookKeeper, and ConfigError where roots and BookKeeper do not belong together or
    marks are turned off.
    """
    if not settings.deletion.topic_two_phase_deletion_enabled and not settings.follow.dry_run:
        raise ConfigError(
            "deletion.topic_two_phase_deletion_enabled is false, so nothing may be marked: set it, or use --dry-run"
        )
    with Cluster(settings) as cluster:
        return _run(spark, cluster, once=once)


def _run(spark: SparkSession | None, cluster: Cluster, *, once: bool) -> FollowEnd:
    settings = cluster.settings
    follow, metrics, pulse = settings.follow, FollowMetrics(), Pulse()
    metrics.show_migrations(cluster.migrations.statuses)
    state = KeptState(follow.checkpoint)
    limits = limits_of(settings.sweep, follow.trigger_seconds + _IDLE_SECONDS)
    if spark is not None:
        attach(spark, pulse)
    try:
        supervisor: Supervisor | _Comparison
        query: ReferenceChanges
        nodes = FollowedNodes(int(follow.grace_seconds * 1000))
        record = FollowRecord(settings, nodes, None if follow.dry_run else state, pulse.beat)
        dropped = dropped_ledgers_of(
            *(cluster, nodes, partial(read_now, cluster.stores), record.keep), on_report=metrics.count_marks
        )
        if spark is None:
            supervisor = _Comparison(lambda ended: query.compare(ended))
        else:
            supervisor = Supervisor(
                lambda: query.start(once=once),
                pulse,
                limits,
                once=once,
                on_failures=metrics.count_failures,
                migrations=cluster.migrations,
                progress=figures_of(spark),
            )
        with (
            _alone(settings, cluster.store, supervisor.stop),
            stopped_by_signals(supervisor.stop),
            metrics.serving(settings.metrics),
        ):
            query = ReferenceChanges(spark, settings, pulse, metrics, dropped)
            if not follow.dry_run:
                answered = partial(once_answered, limits=limits, wait=supervisor.wait, once=once)
                answered(partial(require_marking, cluster))
                prove_roots(cluster, answered)
                file = FolderIdentityFile(follow.checkpoint, begun=state.is_begun())
                answered(lambda: require_own(file, identity_of(cluster), "follow.checkpoint"))
                state.take_over()
            once_answered(
                partial(load_state, state, nodes, cluster.stores, follow.checkpoint),
                limits,
                supervisor.wait,
                once=once,
            )
            dropped.resume()
            metrics.show_ready()
            looks = (roots_proof_of(cluster).require_all_roots,)
            with looked_at_again(looks, supervisor.stop):
                supervisor.run()
            if once and supervisor.through:
                query.finish_due()
    finally:
        if spark is not None:
            unless_gone(partial(spark.streams.removeListener, pulse))
    if supervisor.failing is not None:
        raise StoppedFailingError(f"stopped while batches failed; the last failure: {supervisor.failing}")
    return FollowEnd(query.totals, len(nodes), len(nodes.timers), supervisor.through)


def load_state(state: KeptState, nodes: FollowedNodes, stores: Mapping[str, MetadataStore], checkpoint: str) -> None:
    """Read the state of the roots, by whatever URL they were kept; raises as `find_roots`."""
    kept = state.roots(stores)
    found = find_roots(kept, stores, partial(read_now, stores))
    for before, root in kept.items():
        if before not in found:
            logger.warning(
                "%s is no longer followed, since metadata_store.urls does not name it: %d dropped ledgers of it, which "
                "were still to be looked at, are left out, and found by the orphan scan alone",
                *(before, len(root.timers)),
            )
        elif found[before] != before:
            logger.info("%s is what %s was: it is followed on", found[before], before)
    if state.load(nodes, found):
        logger.info("%d nodes and %d dropped ledgers are known from before", len(nodes), len(nodes.timers))
    else:
        logger.warning(
            "%s has no state: what is named now is followed from here on; what was dropped before is found by the "
            "orphan scan alone",
            checkpoint,
        )


@contextmanager
def _alone(settings: Settings, store: MetadataStore, stop: Callable[[], None]) -> Iterator[None]:
    """Hold the lock until the store is closed; a dry run, which keeps nothing, needs none."""
    follow = settings.follow
    if follow.dry_run or not follow.lock:
        yield
        return
    lock = StoreLock(store, follow.lock.rstrip("/"), what="follow")
    with holding(lock, settings.metadata_store, stop):
        yield
