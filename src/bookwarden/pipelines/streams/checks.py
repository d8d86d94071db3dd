"""Checks of a stream before its first batch, and again while it runs: for months, in which much may change."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from bookwarden.background import in_background
from bookwarden.errors import BookwardenError, PulsarUnavailableError, RefusedError, SparkError, StoreUnavailableError
from bookwarden.pipelines.streams.supervisor import StreamLimits
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.roots import roots_proof_of

logger = logging.getLogger(__name__)
LOOK_AGAIN_SECONDS: Final = 300.0
"""Half of what a ledger is old by default before it may go, so that one who lists it by then was seen."""
_END_SECONDS = 5.0
# The caller of a single run can start it again; the run should not hang.
_ONCE_SECONDS = 5.0
# What ends by itself, as an outage does.
_UNAVAILABLE: Final = (StoreUnavailableError, PulsarUnavailableError, SparkError)


def once_answered(
    check: Callable[[], object],
    limits: StreamLimits,
    wait: Callable[[float], bool],
    *,
    once: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Return when the check has passed, or when `wait`, called with seconds to wait, returns that a stop was asked for.

    While a store or a broker does not answer it is called again, as often and with the same pauses as a failed query is
    restarted, with `once` for some seconds only; then the last error is raised. All other errors are raised at once.
    """
    delay = limits.backoff
    deadline = clock() + (_ONCE_SECONDS if once else float("inf"))
    for failures in range(1, limits.max_failures + 1):
        try:
            check()
        except _UNAVAILABLE as error:
            if failures == limits.max_failures or clock() + delay > deadline:
                raise
            logger.warning("not begun yet: %s; failure %d, again in %.1f s", error, failures, delay)
            if wait(delay):
                return
            delay = min(2 * delay, limits.max_backoff)
        else:
            return


def prove_roots(cluster: Cluster, answered: Callable[[Callable[[], object]], None]) -> None:
    """Prove that the roots belong to the BookKeeper, and are all that do; ``answered`` waits, as `once_answered`."""
    proof = roots_proof_of(cluster)

    def prove() -> None:
        for note in proof.require():
            logger.warning("%s", note)

    answered(prove)


@contextmanager
def looked_at_again(
    looks: Sequence[Callable[[], object]], stop: Callable[[], None], seconds: float = LOOK_AGAIN_SECONDS
) -> Iterator[None]:
    """Repeat the looks at this interval, in seconds, while the block runs.

    Once one refuses, `stop` is called, which should end the block; after it that RefusedError is raised. What cannot be
    seen is looked at again the next time.
    """
    refused: list[RefusedError] = []

    def watch(ended: threading.Event) -> None:
        while not ended.wait(seconds):
            for look in looks:
                try:
                    look()
                except RefusedError as error:
                    logger.error("stopping: %s", error)
                    refused.append(error)
                    stop()
                    return
                except BookwardenError as error:
                    logger.warning("it cannot be seen now whether all is as it was at the start: %s", error)

    with in_background(watch, "looked-at-again", end_seconds=_END_SECONDS):
        yield
    if refused:
        raise refused[0]
