"""Deadline of a call to a store that makes no progress."""

from __future__ import annotations

import time


class Deadline:
    """The moment by which a call must have made progress; progress moves it on."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = time.monotonic() + seconds

    def progress(self) -> None:
        self._end = time.monotonic() + self._seconds

    def extend(self, seconds: float) -> None:
        """Leave out time for which we ourselves held the call back."""
        self._end += seconds

    def left(self) -> float:
        return max(0.0, self._end - time.monotonic())
