"""Garbage collection in Python workers of Spark."""

from __future__ import annotations

import gc
from itertools import count

_OBJECTS_UNTIL_COLLECTION = 200_000
_tasks = count(1)


def collect_seldom() -> None:
    """Reduce the work of this process's garbage collector; call it at the start of each task.

    Rows, by the ten thousand, have no cycles: looking for cycles among them takes up to two fifths of the processor
    time of a worker. The few cycles of exceptions and connections can wait. So the collector runs after many more new
    objects than Python's default of 700. Spark's worker also runs it after each task, over everything not frozen:
    imports and connections alone take longer than a task of a few rows.
    """
    if gc.get_threshold()[0] > _OBJECTS_UNTIL_COLLECTION:
        return
    gc.set_threshold(_OBJECTS_UNTIL_COLLECTION)
    number = next(_tasks)
    # Most permanent objects were made by the first tasks; at the powers of two, few others are frozen.
    if number & (number - 1) == 0:
        gc.freeze()
