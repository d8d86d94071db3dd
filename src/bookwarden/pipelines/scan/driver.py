"""The orphan scan's driver process: session, signals, and advice for going on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from bookwarden.config import Settings
from bookwarden.pipelines.scan.operation import OrphanScan
from bookwarden.pipelines.scan.planning import ScanResult
from bookwarden.pipelines.scan.stage import Progress
from bookwarden.pipelines.session import QUICK_JVM, running_session
from bookwarden.signals import at_signals

# Adaptive execution merges small partitions, so that many cost little where there are few ledgers.
_DEFAULTS = {"spark.sql.shuffle.partitions": "64", "spark.sql.adaptive.enabled": "true"}
_CANCEL_SECONDS = 0.5


class ScanPaused(KeyboardInterrupt):
    """SIGINT or SIGTERM during a scan; the pieces read are kept."""


def run_scan(
    settings: Settings,
    *,
    snapshot: str | None = None,
    resume: str | None = None,
    progress: Progress = lambda *_: None,
    say: Callable[[str], None] = lambda _: None,
    local: bool = False,
) -> ScanResult:
    """Run a scan, or go on with one; with `local` on a Spark that is started here.

    ``say`` is called with the scan's id. Raises ScanPaused at SIGINT and SIGTERM, and the errors of OrphanScan.
    """
    with scan_session(settings, local=local) as spark:
        scan = OrphanScan(spark, settings, progress)
        scan_id = resume or scan.begin(snapshot)
        say(f"scan {scan_id}; if it is stopped, go on with: bookwarden orphans scan --resume {scan_id}")
        with paused_by_signals(spark, f"paused; go on with: bookwarden orphans scan --resume {scan_id}"):
            return scan.run(scan_id)


@contextmanager
def scan_session(
    settings: Settings, *, local: bool, application: str = "bookwarden-orphan-scan"
) -> Iterator[SparkSession]:
    """Open the Spark session of a scan; it ends with the body."""
    defaults = {**_DEFAULTS, **(QUICK_JVM if local else {})}
    with running_session(settings, local=local, application=application, defaults=defaults, ends_soon=True) as spark:
        yield spark


@contextmanager
def paused_by_signals(spark: SparkSession, text: str) -> Iterator[None]:
    """Cancel Spark's jobs at a signal, and raise ScanPaused for the error that follows; at a second signal at once.

    ``text`` is that of the error.
    """
    asked, ended = threading.Event(), threading.Event()
    paused = ScanPaused(text)

    def cancel() -> None:
        # Repeated, since the body may be between two jobs.
        while True:
            spark.sparkContext.cancelAllJobs()
            if ended.wait(_CANCEL_SECONDS):
                return

    def pause(_: signal.Signals) -> None:
        if asked.is_set():
            raise paused
        asked.set()
        # Not here: this thread waits for an answer of the JVM, and has no other connection to it.
        threading.Thread(target=cancel, name="scan-pause", daemon=True).start()

    try:
        with at_signals(pause):
            yield
    except Exception as error:
        if asked.is_set():
            raise paused from error
        raise
    finally:
        ended.set()
