"""Spark's daemon of Python workers, with PySpark's compiled code.

Spark puts an archive of PySpark's source before all else, from which each daemon would compile what is installed next
to it and compiled already: that is more than half of its start. Only for a Spark of the installed PySpark itself.
"""

from __future__ import annotations

import runpy
import sys
from importlib.util import find_spec
from pathlib import PurePath

_ARCHIVES = ("pyspark", "py4j")


def leave_archives() -> None:
    """Take the archives off the path, if what they have is installed too."""
    before = list(sys.path)
    sys.path[:] = [entry for entry in before if not _is_archive(PurePath(entry))]
    if any(find_spec(name) is None for name in _ARCHIVES):
        sys.path[:] = before


def _is_archive(path: PurePath) -> bool:
    return path.suffix == ".zip" and path.name.partition("-")[0].removesuffix(".zip") in _ARCHIVES


if __name__ == "__main__":
    leave_archives()
    runpy.run_module("pyspark.daemon", run_name="__main__")
