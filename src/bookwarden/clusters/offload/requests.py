"""Requests to the stores of offloaded copies: their limits, and stores that do not answer at all.

These are distinguished from refusals, so that an outage costs time only once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from bookwarden.ledgers.offloaded_copies import CopyReading, OffloadedCopy


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """``attempts`` counts tries of one request, with a growing pause between them; times are in seconds.

    ``parallel`` is how many single requests are under way at once.
    """

    attempts: int = 5
    parallel: int = 16
    connect_timeout: float = 5.0
    read_timeout: float = 20.0
    abort_uploads: bool = True


class StoreSilentError(Exception):
    """A store gave no answer, or only asked to wait, in all attempts; nothing was changed."""


def is_silence(status: int) -> bool:
    """Whether an HTTP status is a failure of the store and not an answer."""
    return status >= 500 or status == 429


def look_at_each(
    copies: Sequence[OffloadedCopy], look: Callable[[OffloadedCopy], CopyReading], parallel: int
) -> list[CopyReading]:
    """Look at all, several at once; after a StoreSilentError begin no other look, and raise it."""
    silence: list[StoreSilentError] = []

    def look_unless_silent(copy: OffloadedCopy) -> CopyReading:
        # Here, not only where the results are awaited: that is in the order of the copies, and one of them may take
        # all its tries while the others are given up one after the other.
        if silence:
            raise StoreSilentError(*silence[0].args)
        try:
            return look(copy)
        except StoreSilentError as error:
            silence.append(error)
            raise

    with ThreadPoolExecutor(parallel) as pool:
        looks = [pool.submit(look_unless_silent, copy) for copy in copies]
        try:
            return [one.result() for one in looks]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
