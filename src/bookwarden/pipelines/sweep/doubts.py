"""Doubts that a running batch waits for: found by the driver itself, since tasks return nothing before they end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from bookwarden.ledgers.shared_doubts import DoubtCause, SharedDoubt

logger = logging.getLogger(__name__)
# Nothing is read before: a batch ends much sooner, if it does not wait.
_ASKED_AFTER_S: Final = 20.0


class DoubtWatch:
    """Reports for how long the running batch has waited for shared doubts, by cause.

    A batch waits if there is a doubt and the retry topic has ``limit`` messages. ``doubts`` finds all shared doubts,
    and ``batch_seconds`` returns for how long the batch has run, 0 while none runs.
    """

    def __init__(
        self,
        limit: int,
        doubts: Callable[[], Sequence[SharedDoubt]],
        batch_seconds: Callable[[], float],
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit = limit
        self._doubts = doubts
        self._batch_seconds = batch_seconds
        self._steady = steady
        self._since: dict[DoubtCause, float] = {}
        self._logged: set[str] = set()

    @property
    def is_waiting(self) -> bool:
        """Whether a batch runs and waits, by the latest look."""
        return bool(self._since) and self._batch_seconds() > _ASKED_AFTER_S

    def look(self, on_retry_topic: int) -> dict[DoubtCause, float]:
        """Return the seconds for each cause, 0 where no batch waits for it; a doubt is logged when it is first found.

        ``on_retry_topic`` is the number of messages there. Raises StoreError.
        """
        may_wait = on_retry_topic >= self._limit and self._batch_seconds() > _ASKED_AFTER_S
        found = self._doubts() if may_wait else ()
        now = self._steady()
        self._since = {doubt.cause: self._since.get(doubt.cause, now) for doubt in found}
        for doubt in found:
            if doubt.path not in self._logged:
                logger.warning(
                    "the batch waits until this is mended; see docs/metrics.md, 'A doubt that the sweep waits for': %s",
                    doubt,
                )
        if self._logged and not found:
            logger.info("no batch waits for a doubt any more")
        self._logged = {doubt.path for doubt in found}
        return {cause: now - self._since[cause] if cause in self._since else 0.0 for cause in DoubtCause}
