"""The checks of commands that start Spark themselves."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from typing import Final

from bookwarden.errors import MissingExtraError, PulsarUnavailableError, ServerError, SparkError
from bookwarden.java import find_java

logger = logging.getLogger(__name__)
#: Said before it: it takes seconds, in which nothing is heard of it.
STARTING_SPARK: Final = "starting Spark"


def require_spark(*, java: bool = True) -> None:
    """Raise MissingExtraError or SparkError unless Spark can be started here; its own error has many lines.

    Without ``java`` PySpark alone is needed, for what a process does itself by Spark's classes.
    """
    if importlib.util.find_spec("pyspark") is None:
        raise MissingExtraError("Spark is not installed: pip install 'bookwarden[spark]'")
    if not java:
        return
    try:
        find_java()
    except ServerError as error:
        raise SparkError(f"Spark cannot start: {error}") from error


def unless_away(check: Callable[[], object], *, waits: bool) -> None:
    """Make a check before Spark starts, which takes seconds; the stream itself makes it again.

    A broker that does not answer is no error where the stream ``waits`` for it.
    """
    try:
        check()
    except PulsarUnavailableError as error:
        if not waits:
            raise
        logger.warning("starting all the same, to wait for it: %s", error)
