"""Ends of the due entries of delayed topics, never early by the deliver-at times.

The client does not show these times, so a thread per partition reads the headers of the entries ahead.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor

from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import Position, TopicPositions, read_entry_header
from bookwarden.errors import BookwardenError, PulsarUnavailableError
from bookwarden.pipelines.pulsar_source.ranges import EntryRange, advance, ranges_between

_LOG = logging.getLogger(__name__)

_LOOKAHEAD = 20_000
_PEEKS_AT_ONCE = 8
_SCAN_AT_ONCE = 128
_PAUSE_S = 0.5


class DelayWatch:
    """The due ends of all delayed partitions of a query."""

    def __init__(
        self,
        admin: PulsarAdmin,
        max_unreachable_s: float,
        *,
        max_delay_s: float | None = None,
    ) -> None:
        self._admin = admin
        self._max_delay_s = max_delay_s
        self._max_unreachable_s = max_unreachable_s
        self._scans: dict[str, DelayScan] = {}
        self._pool: ThreadPoolExecutor | None = None

    def due_end(
        self, positions: TopicPositions, start: Position, end: Position, frozen_at_ms: int | None = None
    ) -> Position:
        """Return the end of the longest run of due entries behind `start`, at most `end`.

        Without `frozen_at_ms` this never waits: entries that the scan has not reached count as not due. With it,
        entries due at that moment count, and the scan is waited for; PulsarUnavailableError if it makes no progress.
        """
        scan = self._scans.get(positions.topic)
        if scan is None:
            self._pool = self._pool or ThreadPoolExecutor(_PEEKS_AT_ONCE, thread_name_prefix="pulsar-peek")
            scan = self._scans[positions.topic] = DelayScan(positions.topic, self._admin, self._pool, self._max_delay_s)
        scan.look_ahead(positions, start, advance(positions, start, end, _LOOKAHEAD))
        if frozen_at_ms is None:
            return scan.due_end(int(time.time() * 1000))
        scan.wait_for_verdict(frozen_at_ms, self._max_unreachable_s)
        return scan.due_end(frozen_at_ms)


class DelayScan:
    """The deliver-at times of the entries ahead of one partition, read in order by a thread.

    With ``max_delay_s`` an entry waits no longer than that after its publish time, nor after our first look at it.
    """

    def __init__(
        self, topic: str, admin: PulsarAdmin, pool: ThreadPoolExecutor, max_delay_s: float | None = None
    ) -> None:
        self._max_delay_ms = None if max_delay_s is None else int(max_delay_s * 1000)
        self._topic = topic
        self._admin = admin
        self._pool = pool
        self._changed = threading.Condition()
        self._positions: TopicPositions | None = None
        self._start = self._reached = self._goal = Position(-1, -1)
        self._known: deque[tuple[Position, int]] = deque()
        self._moved_at = time.monotonic()
        self._thread: threading.Thread | None = None

    def look_ahead(self, positions: TopicPositions, start: Position, goal: Position) -> None:
        """Scan the entries behind `start` up to `goal`, without repeating known ones."""
        with self._changed:
            self._positions = positions
            if start < self._start or start > self._reached:
                self._known.clear()
                self._reached = start
                self._moved_at = time.monotonic()
            self._start = start
            while self._known and self._known[0][0] <= start:
                self._known.popleft()
            if self._goal < goal or self._reached == start:
                self._moved_at = time.monotonic()
            self._goal = goal
            if self._reached < goal and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(target=self._run, name="pulsar-delays", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def due_end(self, now_ms: int) -> Position:
        """Return the end of the run of entries known to be due."""
        with self._changed:
            end = self._start
            for position, deliver_at_ms in self._known:
                if deliver_at_ms > now_ms:
                    break
                end = position
            return end

    def wait_for_verdict(self, now_ms: int, patience_s: float) -> None:
        """Wait until the scan has met an entry that is not due, or its goal."""
        with self._changed:
            while self._reached < self._goal and all(deliver_at <= now_ms for _, deliver_at in self._known):
                if time.monotonic() - self._moved_at > patience_s:
                    raise PulsarUnavailableError(
                        f"{self._topic}: the delivery time behind {self._reached} could not be read for "
                        f"{patience_s:.0f} s; check the brokers, or raise maxUnreachableSeconds"
                    )
                self._changed.wait(_PAUSE_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._reached >= self._goal or self._positions is None:
                    self._changed.wait()
                reached = self._reached
                end = advance(self._positions, reached, self._goal, _SCAN_AT_ONCE)
                ranges = ranges_between(self._positions, reached, end)
            try:
                self._scan(reached, _each(ranges))
            except BookwardenError as error:
                _LOG.info("%s: delivery times behind %s not read, again soon: %s", self._topic, reached, error)
                time.sleep(_PAUSE_S)

    def _scan(self, reached: Position, ahead: list[Position]) -> None:
        for position, deliver_at_ms in zip(ahead, self._pool.map(self._peek, ahead), strict=True):
            with self._changed:
                if self._reached != reached:
                    # The start was moved meanwhile; this entry may not follow it.
                    return
                self._known.append((position, deliver_at_ms))
                self._reached = reached = position
                self._moved_at = time.monotonic()
                self._changed.notify_all()

    def _peek(self, position: Position) -> int:
        header = read_entry_header(self._admin, self._topic, position)
        due_ms = header.deliver_at_ms or 0
        if self._max_delay_ms is None:
            return due_ms
        # The sender chooses both times; an entry that is due next year would hold back all behind it.
        seen_ms = int(time.time() * 1000)
        begun_ms = seen_ms if header.published_ms is None else min(header.published_ms, seen_ms)
        return min(due_ms, begun_ms + self._max_delay_ms)


def _each(ranges: list[EntryRange]) -> list[Position]:
    return [
        Position(entries.ledger_id, entry) for entries in ranges for entry in range(entries.first, entries.last + 1)
    ]
