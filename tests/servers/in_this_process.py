"""Drivers of streaming queries within the process of the tests, with its Spark: one of their own starts slowly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from types import ModuleType

import pytest

from servers.waiting import eventually


class RunningDriver:
    """A driver's run in a thread, with what a `ServerProcess` has to tell of it and to stop it."""

    def __init__(self, ended: Future[object], stops: list[Callable[[], None]]) -> None:
        self._ended = ended
        self._stops = stops

    def is_running(self) -> bool:
        return not self._ended.done()

    def log_since_start(self) -> str:
        return "" if self.is_running() else repr(self._ended.exception())

    def stop(self) -> None:
        """Stop it as SIGTERM does; raise what it raised."""
        eventually(lambda: self._stops or self._ended.done(), 120)
        for stop in self._stops:
            stop()
        self._ended.result()


@contextmanager
def driving(driver: ModuleType, run: Callable[[], object]) -> Iterator[RunningDriver]:
    """Let a driver's ``run`` go on for the block."""
    stops: list[Callable[[], None]] = []
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as pool:
        # Signals reach the main thread alone.
        patch.setattr(driver, "stopped_by_signals", lambda stop: nullcontext(stops.append(stop)))
        running = RunningDriver(pool.submit(run), stops)
        try:
            yield running
        finally:
            running.stop()
