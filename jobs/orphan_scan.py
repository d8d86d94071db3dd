"""The orphan scan, for spark-submit: settings, session, scan, a plan in orphans.folder; changes nothing else.

spark-submit [--py-files or --archives as in docs/deploy.md] jobs/orphan_scan.py --config bookwarden.yaml
"""

from __future__ import annotations

import logging
import sys

from bookwarden.config import Settings
from bookwarden.metrics.findings import of_scan
from bookwarden.metrics.names import Program
from bookwarden.metrics.runs import published_run
from bookwarden.pipelines.scan.driver import run_scan
from bookwarden.pipelines.submitted import arguments_of, run_submitted


def main() -> int:
    """Scan, or go on with a scan; return the exit code: those of `bookwarden orphans scan`, in docs/cli.md."""
    arguments = arguments_of("Find the ledgers that nothing refers to, and plan what to do.")
    arguments.add_argument("--from", dest="snapshot", metavar="URL", help="read a snapshot: zk-snapshot:FILE")
    arguments.add_argument("--resume", metavar="SCAN", help="go on with a scan that was stopped")
    given = arguments.parse_args()

    def work(settings: Settings) -> int:
        with published_run(settings.metrics, Program.SCAN) as run:
            result = run_scan(settings, snapshot=given.snapshot, resume=given.resume, say=logging.info)
            logging.info("plan %s: %d orphans, %d missing", result.plan.plan_id, result.orphans, result.missing)
            run.show(of_scan(result.plan, result.summary), result.exit_code)
        return result.exit_code

    return run_submitted(given, work)


if __name__ == "__main__":
    sys.exit(main())
