"""Conditions of a driver process for its query: limits of restarts by the settings, a lock, and an end by a signal."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from bookwarden.config import MetadataStoreSettings, SweepSettings
from bookwarden.metastore.lock import StoreLock
from bookwarden.pipelines.streams.supervisor import StreamLimits
from bookwarden.signals import at_signals

logger = logging.getLogger(__name__)
# A server ends sessions in steps of its own tick, and may not grant a time as short as we ask for.
_SESSION_GRACE_SECONDS = 10.0


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
