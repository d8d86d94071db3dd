"""Handlers of the signals that ask this process to end, for the length of a block."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def at_signals(
    act: Callable[[signal.Signals], None], numbers: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGINT)
) -> Iterator[None]:
    """Call ``act`` at each of these signals in the block; what it raises is raised there.

    Python handles signals in the main thread only: in any other thread nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _: FrameType | None) -> None:
        act(signal.Signals(number))

    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def sigterm_unwinds() -> Iterator[None]:
    """Make SIGTERM unwind as Ctrl-C does, so that every server is stopped."""

    def interrupt(_: signal.Signals) -> None:
        raise KeyboardInterrupt

    with at_signals(interrupt, (signal.SIGTERM,)):
        yield


@contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Have a Ctrl-C take effect only at the end of the block, and a second one at once.

    Python drops the KeyboardInterrupt of one that comes while it forks, and the lock of its logging may stay locked.
    """
    count = 0

    def hold_back(_: signal.Signals) -> None:
        nonlocal count
        count += 1
        if count > 1:
            raise KeyboardInterrupt

    with at_signals(hold_back, (signal.SIGINT,)):
        yield
    if count:
        raise KeyboardInterrupt
