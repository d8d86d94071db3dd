"""The orphan scan's driver process: session, signals, and what to do to go on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from pyspark.sql import SparkSession

from bookwarden.config import Settings
from bookwarden.pipelines.orphan_scan import OrphanScan
from bookwarden.pipelines.scan_planning import ScanResult
from bookwarden.pipelines.scan_stage import Progress
from bookwarden.pipelines.sweep_driver import end_session, session

# Adaptive execution puts small partitions together, so that many cost little where the ledgers are few.
_DEFAULTS = {"spark.sql.shuffle.partitions": "64", "spark.sql.adaptive.enabled": "true"}


class ScanPaused(KeyboardInterrupt):
    """SIGINT or SIGTERM while a scan ran; what was read is kept."""


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

    ``say`` is told the scan's id. Raises ScanPaused at SIGINT and SIGTERM, and what OrphanScan raises.
    """
    spark = session(settings, local=local, application="bookwarden-orphan-scan", defaults=_DEFAULTS)
    try:
        scan = OrphanScan(spark, settings, progress)
        scan_id = resume or scan.begin(snapshot)
        say(f"scan {scan_id}; if it is stopped, go on with: bookwarden orphans scan --resume {scan_id}")
        with _paused_by_signals(spark, scan_id):
            return scan.run(scan_id)
    finally:
        end_session(spark)


@contextmanager
def _paused_by_signals(spark: SparkSession, scan_id: str) -> Iterator[None]:
    def pause(_: int, __: FrameType | None) -> None:
        spark.sparkContext.cancelAllJobs()
        raise ScanPaused(f"paused; go on with: bookwarden orphans scan --resume {scan_id}")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {number: signal.signal(number, pause) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
