"""The sweep's driver process: session, metrics, supervisor, signals."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import FrameType
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from bookwarden.config import Settings
from bookwarden.context import MetadataContext, backlog_of, in_flight_of
from bookwarden.errors import NotFoundError, PulsarError, SparkError, StoppedFailingError
from bookwarden.ledgers.names import encode_local_name
from bookwarden.metastore.interface import MetadataStore
from bookwarden.pipelines.ledger_deletion import LedgerDeletion
from bookwarden.pipelines.metrics import SweepMetrics
from bookwarden.pipelines.own_jvm import OwnJvm, own_jvm
from bookwarden.pipelines.proven_roots import looked_at_again, prove_roots
from bookwarden.pipelines.supervisor import Patience, Pulse, Supervisor, attach
from bookwarden.pipelines.sweep_lock import SweepLock
from bookwarden.pipelines.task_beats import figures_of
from bookwarden.roots_context import require_all_roots

logger = logging.getLogger(__name__)
_INFLIGHT_SECONDS = 15.0
# A server ends sessions in steps of its own tick, and may not grant a time as short as we ask for.
_SESSION_GRACE_SECONDS = 10.0

# What the sweep needs of Spark, whoever starts it; an operator's own values win.
SPARK_DEFAULTS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.python.worker.reuse": "true",
    # Two attempts at the same task would race each other's deletes and send retries twice.
    "spark.speculation": "false",
    "spark.sql.streaming.minBatchesToRetain": "20",
    # Without messages this is the only sign of life; it must come more often than sweep.stall_seconds.
    "spark.sql.streaming.noDataProgressEventInterval": "1s",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.shuffle.partitions": "4",
}
_LOCAL_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.log.level": "WARN",
}
# On a local file system Spark's own choice starts programs (chmod, readlink) for each file of the checkpoint, of which
# a batch writes four: half the time of a small batch.
_LOCAL_CHECKPOINT = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}


def spark_properties(settings: Settings, *, local: bool) -> dict[str, str]:
    """Give the properties of the session: what the sweep needs, what suits where it runs, and the operator's own."""
    properties = {**SPARK_DEFAULTS, **(_LOCAL_DEFAULTS if local else {})}
    checkpoint = settings.sweep.checkpoint
    if checkpoint.startswith("file:") or (local and "://" not in checkpoint):
        properties.update(_LOCAL_CHECKPOINT)
    return {**properties, **settings.spark.conf}


@contextmanager
def running_session(
    settings: Settings,
    *,
    local: bool = False,
    application: str = "bookwarden-ledger-deletion",
    defaults: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """Run a Spark session for the block: spark-submit's own, or with `local` one that is started here.

    ``defaults`` are properties that the application wants otherwise than the sweep. A Spark that is started here leaves
    no process and no temporary file. Raises SparkError when Spark cannot be started.
    """
    with own_jvm() if local else nullcontext(OwnJvm(None)) as jvm:
        spark = _session(settings, local, application, {**jvm.properties, **(defaults or {})})
        try:
            jvm.started(spark)
            yield spark
        finally:
            end_session(spark)


def _session(settings: Settings, local: bool, application: str, defaults: Mapping[str, str]) -> SparkSession:
    builder = SparkSession.builder.appName(application)
    properties = {**spark_properties(settings, local=local), **defaults, **settings.spark.conf}
    for name, value in properties.items():
        builder = builder.config(name, value)
    if local:
        builder = builder.master(settings.spark.master)
        # The workers that Spark starts beside the driver must find this installation.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    try:
        return builder.getOrCreate()
    except (PySparkException, OSError, RuntimeError) as error:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SparkError(f"Spark does not start ({text}); it needs Java 17 or newer: check java -version") from error


def end_session(spark: SparkSession) -> None:
    """Stop Spark; one whose JVM was killed is stopped already."""
    _unless_gone(spark.stop)


def _unless_gone(act: Callable[[], object]) -> None:
    try:
        act()
    except Exception as error:  # noqa: BLE001 - py4j's and the socket's; the sweep's own error must be the one that is told
        logger.info("Spark is gone: %s", error)


@dataclass(frozen=True)
class SweepEnd:
    """How many pending deletions had each outcome, and whether everything that was due at the start is done."""

    counts: Counter[str]
    drained: bool


def run_sweep(spark: SparkSession, settings: Settings, *, once: bool = False) -> SweepEnd:
    """Sweep until SIGTERM or SIGINT; with `once` until everything that was due at the start is done.

    Raises SparkError when the query failed more often than the settings allow, StoppedFailingError when it was stopped
    while it failed, DataGoneError when messages were trimmed or skipped, RefusedError while another sweep of the
    subscription runs or once another Pulsar cluster shares the BookKeeper, and ConfigError where roots and BookKeeper
    do not belong together.
    """
    with MetadataContext(settings) as metadata:
        return _run_sweep(spark, settings, metadata, once=once)


def _run_sweep(spark: SparkSession, settings: Settings, metadata: MetadataContext, *, once: bool) -> SweepEnd:
    sweep = settings.sweep
    pulse = Pulse()
    attach(spark, pulse)
    metrics = SweepMetrics()
    metrics.show_migrations(metadata.migrations.standings)
    query = LedgerDeletion(spark, settings, pulse, metrics, moved_to=lambda: metadata.ledgers_moved_to)
    patience = Patience(
        # Between two triggers the query has nothing to say.
        stall=sweep.stall_seconds + sweep.trigger_seconds,
        max_failures=sweep.max_failures,
        failure_window=sweep.failure_window_seconds,
        backoff=sweep.backoff_seconds,
        max_backoff=sweep.max_backoff_seconds,
        stop_timeout=sweep.stop_timeout_seconds,
    )
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
            _stopped_by_signals(supervisor.stop),
            _published(settings, metrics),
        ):
            if sweep.dry_run:
                supervisor.run()
            else:
                prove_roots(settings, metadata, patience, supervisor.wait)
                with looked_at_again(lambda: require_all_roots(settings, metadata), supervisor.stop):
                    supervisor.run()
    finally:
        _unless_gone(lambda: spark.streams.removeListener(pulse))
    if supervisor.failing is not None:
        raise StoppedFailingError(
            f"stopped while batches failed, {_in_flight(settings)}; the last failure: {supervisor.failing}"
        )
    return SweepEnd(query.totals, supervisor.through)


def _in_flight(settings: Settings) -> str:
    try:
        return f"with {in_flight_of(settings).messages:,} pending deletions in flight"
    except (PulsarError, NotFoundError) as error:
        return f"and what is in flight cannot be seen ({error})"


@contextmanager
def _alone(settings: Settings, store: MetadataStore, stop: Callable[[], None]) -> Iterator[None]:
    """Hold the subscription's lock until the store is closed; a dry run, which takes nothing from it, needs none."""
    if settings.sweep.dry_run or not settings.sweep.lock:
        yield
        return
    deletion = settings.deletion
    name = encode_local_name(f"{deletion.topic} {deletion.subscription}")
    lock = SweepLock(store, f"{settings.sweep.lock.rstrip('/')}/{name}")
    lock.acquire(settings.metadata_store.session_timeout_seconds + _SESSION_GRACE_SECONDS)
    with lock.kept(stop):
        yield


@contextmanager
def _stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    def handle(number: int, _: FrameType | None) -> None:
        logger.info("%s: finishing the running batch", signal.Signals(number).name)
        stop()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _published(settings: Settings, metrics: SweepMetrics) -> Iterator[None]:
    if not settings.metrics.port:
        yield
        return
    with metrics.serving(settings.metrics.host, settings.metrics.port), _inflight_counted(settings, metrics):
        yield


@contextmanager
def _inflight_counted(settings: Settings, metrics: SweepMetrics) -> Iterator[None]:
    ended = threading.Event()

    def publish() -> None:
        while True:
            try:
                for topic, entries in backlog_of(settings).items():
                    metrics.set_inflight(topic, entries)
            except PulsarError as error:
                logger.warning("in-flight gauge: %s", error)
            if ended.wait(_INFLIGHT_SECONDS):
                return

    thread = threading.Thread(target=publish, name="inflight", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(5)
