"""Entries that hold up the sweep: seen from outside, whatever the reason, and named."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from bookwarden.clusters.pulsar.rest.backlog import EntriesBehind
from bookwarden.clusters.pulsar.rest.topic_positions import Position

logger = logging.getLogger(__name__)

# Nobody is asked before, since most of what waits so long is not due, or in a long batch.
_ASKED_AFTER_S: Final = 60.0


class _Standstill(NamedTuple):
    first: Position
    since: float


class StuckWatch:
    """Tells for how long each partition stands at an entry that cannot be read.

    ``why_unreadable`` reads from an entry on, and returns what keeps that from going; None if nothing does.
    """

    def __init__(
        self, why_unreadable: Callable[[str, Position], str | None], steady: Callable[[], float] = time.monotonic
    ) -> None:
        self._why_unreadable = why_unreadable
        self._steady = steady
        self._standing: dict[str, _Standstill] = {}
        self._told: dict[str, Position] = {}

    def look(self, backlog: Mapping[str, EntriesBehind]) -> dict[str, float]:
        """Return the seconds for each partition, 0 where it gets on; the first look that finds one logs the entry."""
        return {topic: self._look(topic, behind.first) for topic, behind in backlog.items()}

    def _look(self, topic: str, first: Position | None) -> float:
        now, standing = self._steady(), self._standing.get(topic)
        if first is None or standing is None or standing.first != first:
            if self._told.pop(topic, None) is not None:
                logger.info("%s: the sweep gets on", topic)
            self._standing.pop(topic, None)
            if first is not None:
                self._standing[topic] = _Standstill(first, now)
            return 0.0
        if now - standing.since < _ASKED_AFTER_S:
            return 0.0
        reason = self._why_unreadable(topic, first)
        if reason is None:
            return 0.0
        if self._told.get(topic) != first:
            self._told[topic] = first
            logger.warning(
                "%s: entry %s cannot be read (%s), and has blocked those behind it for %.0f s; see "
                "docs/metrics.md, 'An entry that cannot be read'",
                *(topic, first, reason, now - standing.since),
            )
        return now - standing.since
