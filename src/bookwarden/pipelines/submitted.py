"""The beginning and the end that programs for spark-submit have in common: their settings, and their exit codes."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable

from bookwarden.config import Settings, exposed_files, load_settings
from bookwarden.errors import BookwardenError
from bookwarden.exit_codes import INTERRUPTED


def arguments_of(description: str) -> argparse.ArgumentParser:
    """Return a parser that has the options for settings."""
    arguments = argparse.ArgumentParser(description=description)
    arguments.add_argument("--config", help="settings file; BOOKWARDEN_CONFIG unless given")
    arguments.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="override one setting")
    return arguments


def run_submitted(given: argparse.Namespace, work: Callable[[Settings], int]) -> int:
    """Return the exit code of the work, or that of the error or signal that ended it, which is logged."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        settings = load_settings(given.config, dict(item.partition("=")[::2] for item in given.set))
        for name, what in exposed_files(settings):
            logging.warning("%s %s; chmod 600 it, or 640 for a group that needs it", name, what)
        return work(settings)
    except BookwardenError as error:
        logging.error("%s", error)
        return error.exit_code
    except KeyboardInterrupt as interrupted:
        logging.error("%s", str(interrupted) or "interrupted")
        return INTERRUPTED
