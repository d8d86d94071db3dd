"""Waiting for a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")
_LONGEST_PAUSE_S: Final = 0.5


def eventually(condition: Callable[[], T], timeout: float = 30.0, pause: float = 0.02) -> T:
    """Call until the result is true and return it; fail after ``timeout`` seconds.

    ``pause`` lies between two calls; after a call that took long it is longer, since what is waited for needs the
    processors too.
    """
    end = time.monotonic() + timeout
    while True:
        begin = time.monotonic()
        value = condition()
        if value:
            return value
        now = time.monotonic()
        if now > end:
            raise AssertionError(f"not within {timeout:g} s: {getattr(condition, '__name__', condition)} is {value!r}")
        time.sleep(max(pause, min(4 * (now - begin), _LONGEST_PAUSE_S)))
