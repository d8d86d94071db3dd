"""The Spark session of every application here: its properties, its start and its end."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from bookwarden.config import Settings
from bookwarden.errors import SparkError
from bookwarden.pipelines.class_archive import archive_for
from bookwarden.pipelines.own_jvm import OwnJvm, own_jvm

logger = logging.getLogger(__name__)

# Properties that the sweep needs, however Spark is started; an operator's own values win.
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
}
# On a local file system Spark's own choice starts programs (chmod, readlink) for each file of the checkpoint, of which
# a batch writes four: half the time of a small batch.
_LOCAL_CHECKPOINT = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}


def spark_properties(settings: Settings, *, local: bool) -> dict[str, str]:
    """Return the properties of the session: the sweep's, the ones for where it runs, and the operator's own."""
    properties = {**SPARK_DEFAULTS, **(_LOCAL_DEFAULTS if local else {})}
    checkpoint = settings.sweep.checkpoint
    if checkpoint.startswith("file:") or (local and "://" not in checkpoint):
        properties.update(_LOCAL_CHECKPOINT)
    return {**properties, **settings.spark.conf}


# Where the work is done in Python, or soon done: a JVM would spend more on compiling its code well than it gains.
QUICK_JVM = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


@contextmanager
def running_session(
    settings: Settings,
    *,
    local: bool = False,
    application: str = "bookwarden-ledger-deletion",
    defaults: Mapping[str, str] | None = None,
    ends_soon: bool = False,
) -> Iterator[SparkSession]:
    """Run a Spark session for the block: spark-submit's own, or with `local` one that is started here.

    ``defaults`` are properties of the application, in place of the sweep's. ``ends_soon``: its JVM uses an archive of
    its classes, or makes one at its end. A Spark started here leaves no process and no temporary file; a session that
    this process has already is taken, and goes on. Raises SparkError when Spark cannot be started.
    """
    is_running = SparkSession.getActiveSession() is not None
    with _own_jvm(settings, application, ends_soon) if local else nullcontext(OwnJvm(None)) as jvm:
        spark = _session(settings, jvm, application, {**jvm.properties, **(defaults or {})}, local=local)
        try:
            jvm.started(spark)
            yield spark
        finally:
            if not is_running:
                end_session(spark)


def _own_jvm(settings: Settings, application: str, ends_soon: bool) -> AbstractContextManager[OwnJvm]:
    is_archived = ends_soon and settings.spark.class_archives
    return own_jvm(archive_for(application, conf=settings.spark.conf) if is_archived else None)


def _session(
    settings: Settings, jvm: OwnJvm, application: str, defaults: Mapping[str, str], *, local: bool
) -> SparkSession:
    properties = {
        "spark.app.name": application,
        **spark_properties(settings, local=local),
        **defaults,
        **settings.spark.conf,
    }
    if local and "SPARK_HOME" not in os.environ:
        properties = {"spark.python.daemon.module": "bookwarden.pipelines.quick_daemon", **properties}
    if local:
        properties["spark.master"] = settings.spark.master
        # The workers that Spark starts next to the driver must find this installation.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder
    for name, value in properties.items():
        builder = builder.config(name, value)
    try:
        jvm.launch(properties)
        return builder.getOrCreate()
    except Py4JJavaError as error:
        # It can be asked as long as the JVM runs, which ends with the block; so its text is taken now, and not chained.
        said = str(error.java_exception.toString()).partition("\n")[0]
        raise SparkError(f"Spark does not start with these settings (spark.conf): {said}") from None
    except (Py4JError, PySparkException, OSError, RuntimeError) as error:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        if jvm.output is not None and jvm.output.last:
            text = jvm.output.last
        raise SparkError(f"Spark does not start ({text}); it needs Java 17 or newer: check java -version") from error


def end_session(spark: SparkSession) -> None:
    """Stop Spark; one whose JVM was killed is stopped already."""
    unless_gone(spark.stop)


def unless_gone(act: Callable[[], object]) -> None:
    """Call ``act`` on Spark; log its failure, which means that the JVM was killed and nothing is left to do."""
    try:
        act()
    except Exception as error:  # noqa: BLE001 - py4j's and the socket's; the sweep's own error must be reported
        logger.info("Spark is gone: %s", error)
