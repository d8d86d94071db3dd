"""The sweep, for spark-submit: settings, session, query, supervised until SIGTERM.

spark-submit [--py-files or --archives as in docs/deploy.md] streaming/ledger_deletion.py --config bookwarden.yaml
"""

from __future__ import annotations

import argparse
import logging
import sys

from bookwarden.config import load_settings
from bookwarden.errors import BookwardenError
from bookwarden.pipelines.session import running_session
from bookwarden.pipelines.sweep.driver import run_sweep


def main() -> int:
    """Run until SIGTERM, or until everything due is done with --once; return the exit code."""
    arguments = argparse.ArgumentParser(description="Sweep the pending deletions of a Pulsar cluster.")
    arguments.add_argument("--config", help="settings file; BOOKWARDEN_CONFIG unless given")
    arguments.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="override one setting")
    arguments.add_argument("--once", action="store_true", help="drain what is due, then exit")
    given = arguments.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        settings = load_settings(given.config, dict(item.partition("=")[::2] for item in given.set))
        with running_session(settings) as spark:
            end = run_sweep(spark, settings, once=given.once)
    except BookwardenError as error:
        logging.error("%s", error)
        return error.exit_code
    return BookwardenError.exit_code if given.once and not end.drained else 0


if __name__ == "__main__":
    sys.exit(main())
