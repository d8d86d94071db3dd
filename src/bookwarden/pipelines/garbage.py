"""Garbage collection in Python workers of Spark."""

from __future__ import annotations

import gc

_OBJECTS_UNTIL_COLLECTION = 200_000


def collect_seldom() -> None:
    """Let the collector of this process run after many more new objects than Python's default of 700.

    Rows by the ten thousand are objects without cycles: looking for cycles among them takes up to two fifths of the
    processor time of a worker. What cycles there are, in exceptions and connections, are few and wait a little longer.
    """
    if gc.get_threshold()[0] < _OBJECTS_UNTIL_COLLECTION:
        # What was imported stays for good, and need not be looked at again.
        gc.freeze()
        gc.set_threshold(_OBJECTS_UNTIL_COLLECTION)
