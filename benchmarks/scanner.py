"""The process that a benchmark lets scan: `python -m benchmarks.scanner SETTINGS_FILE`.

It starts Spark, reports `{"ready": true}`, and takes orders on its standard input: `scan URL` scans a snapshot, `scan`
alone the live stores; `disk URL` adds up the disk use of a snapshot. It reports the seconds, and what was found. The
end of the input ends it.
"""

from __future__ import annotations

import json
import logging
import sys
import time

from pyspark.sql import SparkSession

from bookwarden.config import Settings, load_settings
from bookwarden.pipelines.disk.operation import DiskAccount
from bookwarden.pipelines.scan.driver import scan_session
from bookwarden.pipelines.scan.operation import OrphanScan


def main(settings_file: str) -> None:
    """Carry out orders until the input ends."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    settings = load_settings(settings_file)
    with scan_session(settings, local=True) as spark:
        _report({"ready": True})
        for order in sys.stdin:
            kind, _, url = order.strip().partition(" ")
            _report(_disk(spark, settings, url) if kind == "disk" else _scan(spark, settings, url or None))


def _scan(spark: SparkSession, settings: Settings, snapshot: str | None) -> dict[str, object]:
    ended: dict[str, float] = {}

    def note(stage: str, done: int, total: int) -> None:
        if done == total:
            ended[stage] = time.monotonic()

    started = time.monotonic()
    scan = OrphanScan(spark, settings, note)
    scan_id = scan.begin(snapshot)
    ended["begin"] = time.monotonic()
    result = scan.run(scan_id)
    seconds = time.monotonic() - started
    stages, before = {}, started
    for stage, at in sorted(ended.items(), key=lambda item: item[1]):
        stages[stage], before = at - before, at
    return {"seconds": seconds, "ledgers": result.summary.ledgers, "orphans": result.orphans, "stages": stages}


def _disk(spark: SparkSession, settings: Settings, snapshot: str) -> dict[str, object]:
    started = time.monotonic()
    found = DiskAccount(spark, settings).measure("tenant", 20, snapshot=snapshot)
    return {"seconds": time.monotonic() - started, "ledgers": found.total.ledgers}


def _report(fields: dict[str, object]) -> None:
    print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
