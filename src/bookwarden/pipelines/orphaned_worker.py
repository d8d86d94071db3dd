"""Python workers whose daemon was killed: they get no more work, and end."""

from __future__ import annotations

import functools
import logging
import os
import threading
import time

logger = logging.getLogger(__name__)
_LOOK_SECONDS = 1.0


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
