"""Waiting for a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_TIMES, _MOST_S = 9, 0.5


def eventually(condition: Callable[[], T], timeout: float = 30.0, pause: float = 0.05) -> T:
    """Call until the result is true and return it; fail after ``timeout`` seconds.

    ``pause`` is the least time between calls. A condition that takes long is looked at less often, since what it waits
    for needs the processors as well.
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
        time.sleep(max(pause, min(_TIMES * (now - begin), _MOST_S)))
