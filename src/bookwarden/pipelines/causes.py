"""The cause in a Spark error, whose text has the stack traces of both languages."""

from __future__ import annotations

import re
from typing import Final

_LONGEST: Final = 500
_TRACEBACK: Final = "Traceback (most recent call last):"
# The last line of a Python traceback, such as bookwarden.errors.DataGoneError: ... or pyarrow.lib.ArrowInvalid: ...
_RAISED: Final = re.compile(r"^[A-Za-z_][\w.]*(: |$)")
# One without its traceback.
_NAMED: Final = re.compile(r"^(?!org\.|java\.|scala\.)[A-Za-z_.]+(Error|Exception): ")
# Errors that wrap a worker's error, with its traceback in their text.
_CARRIERS: Final = ("pyspark.errors.", "py4j.")


def told_cause(error: BaseException) -> str:
    """Return the line with the cause: the Python worker's if it has one, else the first."""
    lines = [line.rstrip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in _raised(lines) if not line.startswith(_CARRIERS)]
    telling = telling or [line.strip() for line in lines if _NAMED.match(line.strip())]
    chosen = telling[-1].removeprefix("bookwarden.errors.") if telling else (lines[0].strip() if lines else repr(error))
    return chosen[:_LONGEST]


def _raised(lines: list[str]) -> list[str]:
    """Find the last line of each traceback: the first that is indented no further than its heading."""
    found = []
    indent: int | None = None
    for line in lines:
        depth = len(line) - len(line.lstrip())
        text = line.strip()
        if text.endswith(_TRACEBACK):
            # The heading may follow other words on its line; the lines after it are then not indented.
            indent = depth
        elif indent is not None and depth <= indent:
            if _RAISED.match(text):
                found.append(text)
            indent = None
    return found
