"""Entries that block the sweep, for any reason: found by the backlog, and named."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from bookwarden.clusters.pulsar.rest.topic_positions import EntriesBehind, Position

logger = logging.getLogger(__name__)

# No broker is asked before: most entries that wait for less are not due, or in a long batch.
_ASKED_AFTER_S: Final = 60.0


class _FirstEntry(NamedTuple):
    position: Position
    since: float


class StuckWatch:
    """Reports for how long an entry that cannot be read has blocked each partition.

    ``why_unreadable`` reads from an entry on, and returns what keeps that from going; None if nothing does.
    """

    def __init__(
        self, why_unreadable: Callable[[str, Position], str | None], steady: Callable[[], float] = time.monotonic
    ) -> None:
        self._why_unreadable = why_unreadable
        self._steady = steady
        self._seen: dict[str, _FirstEntry] = {}
        self._reported: dict[str, Position] = {}

    def look(self, backlog: Mapping[str, EntriesBehind]) -> dict[str, float]:
        """Return the seconds for each partition, 0 where it gets on; the first look that finds one logs the entry."""
        return {topic: self._look(topic, behind.first) for topic, behind in backlog.items()}

    def _look(self, topic: str, first: Position | None) -> float:
        now, seen = self._steady(), self._seen.get(topic)
        if first is None or seen is None or seen.position != first:
            if self._reported.pop(topic, None) is not None:
                logger.info("%s: the sweep gets on", topic)
            self._seen.pop(topic, None)
            if first is not None:
                self._seen[topic] = _FirstEntry(first, now)
            return 0.0
        if now - seen.since < _ASKED_AFTER_S:
            return 0.0
        reason = self._why_unreadable(topic, first)
        if reason is None:
            return 0.0
        if self._reported.get(topic) != first:
            self._reported[topic] = first
            logger.warning(
                "%s: entry %s cannot be read (%s), and has blocked those behind it for %.0f s; see "
                "docs/metrics.md, 'An entry that cannot be read'",
                *(topic, first, reason, now - seen.since),
            )
        return now - seen.since
