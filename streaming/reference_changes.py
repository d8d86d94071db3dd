"""Following what brokers drop, for spark-submit: settings, session, query, supervised until SIGTERM.

spark-submit [--py-files or --archives as in docs/deploy.md] streaming/reference_changes.py --config bookwarden.yaml
"""

from __future__ import annotations

import sys

from bookwarden.config import Settings
from bookwarden.errors import BookwardenError
from bookwarden.pipelines.follow.driver import run_follow
from bookwarden.pipelines.session import running_session
from bookwarden.pipelines.submitted import arguments_of, run_submitted


def main() -> int:
    """Run until SIGTERM, or with --once until what is due is done; return the exit code."""
    arguments = arguments_of("Mark what the brokers of a Pulsar cluster dropped and left behind.")
    arguments.add_argument("--once", action="store_true", help="compare with what was known, look at what is due, exit")
    given = arguments.parse_args()

    def work(settings: Settings) -> int:
        with running_session(settings, application="bookwarden-reference-changes") as spark:
            end = run_follow(spark, settings, once=given.once)
        return BookwardenError.exit_code if given.once and not end.through else 0

    return run_submitted(given, work)


if __name__ == "__main__":
    sys.exit(main())
