"""Python workers of Spark: what one keeps for its later tasks, its garbage collection, and its end with its daemon."""

from __future__ import annotations

import functools
import gc
import logging
import os
import threading
import time
from collections.abc import Callable, Hashable
from itertools import count
from typing import Generic, TypeVar

logger = logging.getLogger(__name__)
_LOOK_SECONDS = 1.0
_OBJECTS_UNTIL_COLLECTION = 200_000
_tasks = count(1)
KeptT = TypeVar("KeptT")


@functools.cache
def end_with_daemon() -> None:
    """End this process when its parent ends; has no effect except in a worker that Spark keeps for further tasks.

    Spark's daemon starts the workers, and is replaced when it was killed. The old one's workers would stay until the
    JVM ends, idle, each with its sessions in the metadata store and its open file of the journal.
    """
    if "SPARK_REUSE_WORKER" in os.environ:
        threading.Thread(target=_watch, args=(os.getppid(),), name="parent", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    logger.warning("Spark's daemon has ended, and so does its worker %d", os.getpid())
    # As if it had been killed too: a task that was running is run again, and each of its steps may run twice.
    os._exit(1)


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


class PerProcess(Generic[KeptT]):
    """Things by key, as sessions and clients, which do not survive a fork: each only for the process that made it."""

    def __init__(self) -> None:
        # Things inherited by a fork stay here untouched: closing one would close it for the parent too.
        self._kept: dict[tuple[int, Hashable], KeptT] = {}

    def get(self, key: Hashable, make: Callable[[], KeptT]) -> KeptT:
        """Return this process's own, made if it has none."""
        mine = (os.getpid(), key)
        if mine not in self._kept:
            self._kept[mine] = make()
        return self._kept[mine]

    def take(self, key: Hashable) -> KeptT | None:
        """Remove and return this process's own; None if it has none."""
        return self._kept.pop((os.getpid(), key), None)

    def put(self, key: Hashable, value: KeptT) -> None:
        """Keep it as this process's own."""
        self._kept[os.getpid(), key] = value
