"""Stores that do not answer at all: told apart from refusals, so that an outage is paid for once, not for each copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from bookwarden.ledgers.offloaded_copies import CopyReading, OffloadedCopy


class StoreSilentError(Exception):
    """A store gave no answer, or only asked to wait, however often it was asked; nothing was changed."""


def is_silence(status: int) -> bool:
    """Whether an HTTP status is the store's trouble and not an answer."""
    return status >= 500 or status == 429


def look_at_each(
    copies: Sequence[OffloadedCopy], look: Callable[[OffloadedCopy], CopyReading], parallel: int
) -> list[CopyReading]:
    """Look at all, several at once; raise StoreSilentError as soon as one look does, without beginning the rest."""
    with ThreadPoolExecutor(parallel) as pool:
        looks = [pool.submit(look, copy) for copy in copies]
        try:
            return [one.result() for one in looks]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
