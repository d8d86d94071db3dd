"""Conditions of a stream's driver: checks before the first batch and again while it runs, restarts, a lock, its end.

A stream runs for months, in which much may change.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from bookwarden.background import in_background
from bookwarden.config import MetadataStoreSettings, SweepSettings
from bookwarden.errors import BookwardenError, PulsarUnavailableError, RefusedError, SparkError, StoreUnavailableError
from bookwarden.metastore.lock import StoreLock
from bookwarden.pipelines.streams.supervisor import StreamLimits
from bookwarden.signals import at_signals
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
# A server ends sessions in steps of its own tick, and may not grant a time as short as we ask for.
_SESSION_GRACE_SECONDS = 10.0


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


def limits_of(sweep: SweepSettings, trigger_s: float) -> StreamLimits:
    """Return the limits of a supervisor; ``trigger_s`` is the time between two triggers, without signs of life."""
    return StreamLimits(
        stall=sweep.stall_seconds + trigger_s,
        max_failures=sweep.max_failures,
        failure_window=sweep.failure_window_seconds,
        backoff=sweep.backoff_seconds,
        max_backoff=sweep.max_backoff_seconds,
        stop_timeout=sweep.stop_timeout_seconds,
    )


@contextmanager
def holding(lock: StoreLock, store: MetadataStoreSettings, stop: Callable[[], None]) -> Iterator[None]:
    """Hold a lock for the body, which `stop` should end when it is lost to another."""
    lock.acquire(store.session_timeout_seconds + _SESSION_GRACE_SECONDS)
    with lock.kept(stop):
        yield


def stopped_by_signals(stop: Callable[[], None]) -> AbstractContextManager[None]:
    """Call `stop` at SIGTERM and SIGINT during the body."""

    def finish(number: signal.Signals) -> None:
        logger.info("%s: finishing the running batch", number.name)
        stop()

    return at_signals(finish)
