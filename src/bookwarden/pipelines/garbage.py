"""Garbage collection in Python workers of Spark."""

from __future__ import annotations

import gc
from itertools import count

_OBJECTS_UNTIL_COLLECTION = 200_000
_tasks = count(1)


def collect_seldom() -> None:
    """Leave the collector of this process little to do; call it at the start of each task.

    Rows by the ten thousand are objects without cycles: looking for cycles among them takes up to two fifths of the
    processor time of a worker. What cycles there are, in exceptions and connections, are few and wait a little longer.
    So it runs after many more new objects than Python's default of 700. Spark's worker runs it after each task too,
    over everything that is not frozen: imports and connections alone take longer than a task of a few rows.
    """
    if gc.get_threshold()[0] > _OBJECTS_UNTIL_COLLECTION:
        return
    gc.set_threshold(_OBJECTS_UNTIL_COLLECTION)
    number = next(_tasks)
    # Most of what stays for good was made by the first tasks; at the powers of two, little that does not is frozen.
    if number & (number - 1) == 0:
        gc.freeze()
