"""The sweep, for spark-submit: settings, session, query, supervised until SIGTERM.

spark-submit [--py-files or --archives as in docs/deploy.md] streaming/ledger_deletion.py --config bookwarden.yaml
"""

from __future__ import annotations

import sys

from bookwarden.config import Settings
from bookwarden.errors import BookwardenError
from bookwarden.pipelines.session import running_session
from bookwarden.pipelines.submitted import arguments_of, run_submitted
from bookwarden.pipelines.sweep.driver import run_sweep


def main() -> int:
    """Run until SIGTERM, or until everything due is done with --once; return the exit code."""
    arguments = arguments_of("Sweep the pending deletions of a Pulsar cluster.")
    arguments.add_argument("--once", action="store_true", help="drain what is due, then exit")
    given = arguments.parse_args()

    def work(settings: Settings) -> int:
        with running_session(settings) as spark:
            end = run_sweep(spark, settings, once=given.once)
        return BookwardenError.exit_code if given.once and not end.drained else 0

    return run_submitted(given, work)


if __name__ == "__main__":
    sys.exit(main())
