"""What is there only with an extra of the package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bookwarden.errors import SparkError


@contextmanager
def spark_extra(what: str) -> Iterator[None]:
    """Import in the body what needs the extra `spark`; SparkError tells what `what` lacks."""
    try:
        yield
    except ModuleNotFoundError as error:
        if not error.name or error.name.startswith("bookwarden"):
            raise
        raise SparkError(f"{what} needs the Python package {error.name}: pip install 'bookwarden[spark]'") from error
