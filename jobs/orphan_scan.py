"""The orphan scan, for spark-submit: settings, session, scan, a plan in orphans.folder; changes nothing else.

spark-submit [--py-files or --archives as in docs/deploy.md] jobs/orphan_scan.py --config bookwarden.yaml
"""

from __future__ import annotations

import argparse
import logging
import sys

from bookwarden.config import load_settings
from bookwarden.errors import BookwardenError
from bookwarden.pipelines.scan.driver import run_scan

# As a shell tells it of a command that SIGINT ended.
_INTERRUPTED = 130


def main() -> int:
    """Scan, or go on with a scan; return the exit code: those of `bookwarden orphans scan`, in docs/cli.md."""
    arguments = argparse.ArgumentParser(description="Find the ledgers that nobody refers to, and plan what to do.")
    arguments.add_argument("--config", help="settings file; BOOKWARDEN_CONFIG unless given")
    arguments.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="override one setting")
    arguments.add_argument("--from", dest="snapshot", metavar="URL", help="read a snapshot: zk-snapshot:FILE")
    arguments.add_argument("--resume", metavar="SCAN", help="go on with a scan that was stopped")
    given = arguments.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        settings = load_settings(given.config, dict(item.partition("=")[::2] for item in given.set))
        result = run_scan(settings, snapshot=given.snapshot, resume=given.resume, say=logging.info)
    except BookwardenError as error:
        logging.error("%s", error)
        return error.exit_code
    except KeyboardInterrupt as paused:
        logging.error("%s", paused)
        return _INTERRUPTED
    logging.info("plan %s: %d orphans, %d missing", result.plan.plan_id, result.orphans, result.missing)
    return result.exit_code


if __name__ == "__main__":
    sys.exit(main())
