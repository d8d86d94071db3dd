"""Waiting for a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(condition: Callable[[], T], timeout: float = 30.0, pause: float = 0.02) -> T:
    """Call until the result is true and return it; fail after ``timeout`` seconds. ``pause`` is that between calls."""
    end = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout:g} s: {getattr(condition, '__name__', condition)} is {value!r}")
        time.sleep(pause)
