"""Time limits of calls to a store: of one that makes no progress, and of one repeated until the store answers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from bookwarden.errors import StoreMigratingError, StoreUnavailableError

logger = logging.getLogger(__name__)
_T = TypeVar("_T")


def retry_while_unavailable(
    call: Callable[[], _T], max_unreachable: float, pause: Callable[[float], None] = time.sleep
) -> _T:
    """Call again while the store does not answer, up to ``max_unreachable`` seconds; then raise its error.

    While the metadata is being moved there is no limit. ``pause`` is called with the seconds to wait.
    """
    deadline = time.monotonic() + max_unreachable
    delay = 0.1
    while True:
        try:
            return call()
        except StoreUnavailableError as error:
            migrating = isinstance(error, StoreMigratingError)
            if not migrating and time.monotonic() + delay > deadline:
                raise
            logger.warning("waiting for the store: %s", error)
            pause(delay)
            if migrating:
                deadline = time.monotonic() + max_unreachable
            delay = min(delay * 2, 5.0)


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
