"""The check of commands that start Spark themselves."""

from __future__ import annotations

import importlib.util

from bookwarden.errors import MissingExtraError, ServerError, SparkError


def require_spark() -> None:
    """Raise MissingExtraError or SparkError unless Spark can be started here; its own error has many lines."""
    if importlib.util.find_spec("pyspark") is None:
        raise MissingExtraError("Spark is not installed: pip install 'bookwarden[spark]'")
    # Imported late: nothing else here starts servers.
    from bookwarden.devcluster.servers.java import find_java

    try:
        find_java()
    except ServerError as error:
        raise SparkError(f"Spark cannot start: {error}") from error
