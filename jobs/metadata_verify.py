"""The verification of a migrated metadata store, for spark-submit: settings, session, comparison; changes nothing.

spark-submit [--py-files or --archives as in docs/deploy.md] \\
    jobs/metadata_verify.py --config bookwarden.yaml --differences FOLDER
"""

from __future__ import annotations

import argparse
import logging
import sys

from bookwarden.config import load_settings
from bookwarden.errors import BookwardenError
from bookwarden.migration.comparison.findings import VersionRule
from bookwarden.pipelines.verification.driver import VerificationRequest, run_verification

# As a shell tells it of a command that SIGINT ended.
_INTERRUPTED = 130
# That of `bookwarden metadata-migration verify`.
_DIFFERENCES_FOUND = 22


def main() -> int:
    """Compare, or go on with that; return the exit code: those of `metadata-migration verify`, in docs/cli.md."""
    arguments = argparse.ArgumentParser(description="Compare all nodes of a migrated metadata store with the source.")
    arguments.add_argument("--config", help="settings file; BOOKWARDEN_CONFIG unless given")
    arguments.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="override one setting")
    arguments.add_argument("--source", metavar="URL", help="what was copied; metadata_store.urls unless given")
    arguments.add_argument("--target", metavar="URL", help="the copy; what the source's flag names unless given")
    arguments.add_argument("--versions", choices=[rule.value for rule in VersionRule], default=VersionRule.AUTO.value)
    arguments.add_argument(
        "--differences", metavar="FOLDER", required=True, help="a new folder that driver and executors share"
    )
    arguments.add_argument("--max-reads-per-second", type=float, metavar="N", help="from each store, by all tasks")
    arguments.add_argument("--resume", action="store_true", help="go on with what was begun in the folder")
    given = arguments.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    request = VerificationRequest(
        given.differences,
        given.source,
        given.target,
        VersionRule(given.versions),
        max_reads_per_second=given.max_reads_per_second,
        resume=given.resume,
    )
    try:
        settings = load_settings(given.config, dict(item.partition("=")[::2] for item in given.set))
        found = run_verification(settings, request, say=logging.info)
    except BookwardenError as error:
        logging.error("%s", error)
        return error.exit_code
    except KeyboardInterrupt as paused:
        logging.error("%s", paused)
        return _INTERRUPTED
    for kind, number in found.report.counts.items():
        logging.info("%s: %d", kind.value, number)
    logging.info("%d nodes compared, %d not as in the source", found.report.compared, found.report.faults)
    return _DIFFERENCES_FOUND if found.report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
