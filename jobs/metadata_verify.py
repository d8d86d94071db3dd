"""The verification of a migrated metadata store, for spark-submit: settings, session, comparison; changes nothing.

spark-submit [--py-files or --archives as in docs/deploy.md] \\
    jobs/metadata_verify.py --config bookwarden.yaml --differences FOLDER
"""

from __future__ import annotations

import logging
import sys

from bookwarden.config import Settings
from bookwarden.migration.comparison.findings import VersionRule
from bookwarden.pipelines.submitted import arguments_of, run_submitted
from bookwarden.pipelines.verification.driver import VerificationRequest, run_verification

# That of `bookwarden metadata-migration verify`.
_DIFFERENCES_FOUND = 22


def main() -> int:
    """Compare, or go on with that; return the exit code: those of `metadata-migration verify`, in docs/cli.md."""
    arguments = arguments_of("Compare all nodes of a migrated metadata store with the source.")
    arguments.add_argument("--source", metavar="URL", help="what was copied; metadata_store.urls unless given")
    arguments.add_argument("--target", metavar="URL", help="the copy; what the source's flag names unless given")
    arguments.add_argument("--versions", choices=[rule.value for rule in VersionRule], default=VersionRule.AUTO.value)
    arguments.add_argument(
        "--differences", metavar="FOLDER", required=True, help="a new folder that driver and executors share"
    )
    arguments.add_argument("--max-reads-per-second", type=float, metavar="N", help="from each store, by all tasks")
    arguments.add_argument("--resume", action="store_true", help="go on with what was begun in the folder")
    given = arguments.parse_args()
    request = VerificationRequest(
        given.differences,
        given.source,
        given.target,
        VersionRule(given.versions),
        max_reads_per_second=given.max_reads_per_second,
        resume=given.resume,
    )

    def work(settings: Settings) -> int:
        found = run_verification(settings, request, say=logging.info)
        for kind, number in found.report.counts.items():
            logging.info("%s: %d", kind.value, number)
        logging.info("%d nodes compared, %d not as in the source", found.report.compared, found.report.faults)
        return _DIFFERENCES_FOUND if found.report.faults else 0

    return run_submitted(given, work)


if __name__ == "__main__":
    sys.exit(main())
