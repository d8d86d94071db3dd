"""Ends of the due entries of delayed topics, never early by their deliver-at times.

A thread per partition reads the entries ahead from their broker, so that a plan never waits. Of an entry that arrives
while it is watched the steady clock alone decides when it is due: its delay after its arrival. Only older entries
go by the clock that the machine had then. And no entry waits longer than the longest delay, whatever can be read.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from bookwarden.clusters.pulsar.entries import EntryStream, TopicEntries, TopicEntry
from bookwarden.clusters.pulsar.rest.topic_positions import TopicPositions
from bookwarden.errors import BookwardenError, PulsarUnavailableError
from bookwarden.ledgers.managed_ledger import Position
from bookwarden.pipelines.pulsar_source.ranges import advance, ranges_between
from bookwarden.wire.pb.pulsar_api_pb2 import MessageMetadata

_LOG = logging.getLogger(__name__)

_LOOKAHEAD: Final = 20_000
_TIMEOUT_S: Final = 5.0
_WAIT_S: Final = 1.0
_PAUSE_S: Final = 0.5
# Seconds after which a reader that is given nothing is opened again, and one that has nothing to read is closed.
_SILENCE_S: Final = 10.0
# The number of times in a row after which what comes damaged is taken to be stored so.
_SURE: Final = 3
# Arrivals are noted this exactly, and of the longest delay by a thousandth of it, so that they stay few.
_SHORTEST_STEP_S: Final = 1.0
_STEPS: Final = 1000
_AT_ONCE: Final = float("-inf")
_NEVER: Final = float("inf")
# The property of a retry, also of the Java client's, with its delay in milliseconds.
_DELAY_TIME: Final = b"DELAY_TIME"


class Moment(NamedTuple):
    """A point in time by both clocks, in seconds."""

    wall: float  #: Since the epoch, by the machine's clock as it was when the planner began.
    steady: float  #: By a clock that is never set.


class _Waiting(NamedTuple):
    """An entry, and the moments at which it is due by each clock: the earlier one counts."""

    position: Position
    wall: float  #: Infinite where the clock of the machine is not asked.
    steady: float


class Arrivals:
    """The times at which a partition's entries were first seen, by the steady clock; no I/O."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        # Ends of the partition and when they were seen; of neighbours within a step the later moment counts for both.
        self._ends: list[Position] = []
        self._seen: list[float] = []
        self._begun = 0.0
        self._first: tuple[Position, float] | None = None

    def note(self, end: Position, now: float) -> None:
        """Note that the partition's last entry is this one."""
        if self._first is None:
            self._first = end, now
        if end <= (self._ends[-1] if self._ends else self._first[0]):
            return
        if self._ends and now - self._begun < self._step_s:
            self._ends[-1], self._seen[-1] = end, now
            return
        self._ends.append(end)
        self._seen.append(now)
        self._begun = now

    def forget(self, start: Position) -> None:
        """Forget the entries up to `start`."""
        gone = bisect_left(self._ends, start)
        del self._ends[:gone], self._seen[:gone]

    def of(self, position: Position, now: float) -> float | None:
        """Return when an entry was first seen, None if it was there before; one that is read counts as seen now."""
        if self._first is not None and position <= self._first[0]:
            return None
        place = bisect_left(self._ends, position)
        return self._seen[place] if place < len(self._seen) else now

    @property
    def began(self) -> float:
        """When the partition was first seen."""
        return self._first[1] if self._first is not None else _NEVER

    def end_at(self, moment: float) -> Position:
        """Return the last entry that is known to have been there then."""
        place = bisect_right(self._seen, moment)
        if place:
            return self._ends[place - 1]
        return self._first[0] if self._first is not None and self._first[1] <= moment else Position(-1, -1)


class DueTimes:
    """The due times of the entries ahead of one partition's start; no I/O, and for one thread at a time."""

    def __init__(self, max_delay_s: float) -> None:
        self._max_delay_s = max_delay_s
        self._arrivals = Arrivals(max(_SHORTEST_STEP_S, max_delay_s / _STEPS))
        self._known: deque[_Waiting] = deque()
        self._start = Position(-1, -1)
        #: Up to here the entries were read, or passed over by the broker, and up to there they are to be.
        self.reached = self.goal = Position(-1, -1)

    def look_ahead(self, start: Position, goal: Position, end: Position, now: float) -> bool:
        """Note where the next batch starts, up to where it may go, and where the partition ends.

        Returns True if what was read is not what follows the start, so that reading must begin there.
        """
        moved = start < self._start or start > self.reached
        if moved:
            self._known.clear()
            self.reached = start
        self._start, self.goal = start, goal
        while self._known and self._known[0].position <= start:
            self._known.popleft()
        self._arrivals.note(end, now)
        self._arrivals.forget(start)
        return moved

    @property
    def is_read(self) -> bool:
        """True once everything up to the goal is known."""
        return self.reached >= self.goal

    def note(self, entry: TopicEntry, now: float) -> None:
        """Note an entry; those between the last one and it were passed over, and are as due as it is."""
        if entry.position <= self.reached:
            return
        self.reached = entry.position
        deliver_at = entry.metadata.deliver_at_time if entry.metadata is not None else 0
        if entry.metadata is None or deliver_at <= 0:
            self._known.append(_Waiting(entry.position, _NEVER, _AT_ONCE))
            return
        arrived = self._arrivals.of(entry.position, now)
        if arrived is None:
            # It may have waited for any time before: only a clock that is set shows that.
            due = _Waiting(entry.position, deliver_at / 1000, self._arrivals.began + self._max_delay_s)
        else:
            delay_s = min(_delay_ms(entry.metadata) / 1000, self._max_delay_s)
            due = _Waiting(entry.position, _NEVER, arrived + delay_s)
        self._known.append(due)

    def due_end(self, at: Moment) -> Position:
        """Return the end of the longest run of entries that are due; all that arrived long ago are, read or not."""
        end = self._start
        for one in self._known:
            if not self._is_due(one, at):
                break
            end = one.position
        return min(max(end, self._arrivals.end_at(at.steady - self._max_delay_s)), self.goal)

    def all_due(self, at: Moment) -> bool:
        """Return whether no entry is known that is not due."""
        return all(self._is_due(one, at) for one in self._known)

    def last_due(self, at: Moment) -> bool:
        """Return whether the last entry that was read is due."""
        return not self._known or self._is_due(self._known[-1], at)

    def _is_due(self, one: _Waiting, at: Moment) -> bool:
        if at.steady >= one.steady or at.wall >= one.wall:
            return True
        # No sender of ours sets such a time, and clocks differ by less: a run that ends soon must not wait for it.
        return one.wall is not _NEVER and one.wall - at.wall > 2 * self._max_delay_s


def _delay_ms(metadata: MessageMetadata) -> int:
    """Return the delay that the sender chose, by no clock but its own."""
    for one in metadata.properties:
        if one.key == _DELAY_TIME and one.value.isdigit() and len(one.value) < 16:
            return int(one.value)
    return max(0, metadata.deliver_at_time - metadata.publish_time)


class DelayScan:
    """The entries ahead of one partition, read by a thread of their own or by the caller that waits for them."""

    def __init__(
        self,
        topic: str,
        entries: TopicEntries,
        max_delay_s: float,
        clock: Callable[[], Moment],
        pause: Callable[[float], object],
    ) -> None:
        self._topic = topic
        self._entries = entries
        self._clock = clock
        self._pause = pause
        self._times = DueTimes(max_delay_s)
        self._changed = threading.Condition(threading.RLock())
        self._positions: TopicPositions | None = None
        self._moved = False
        self._damaged: list[Position] = []
        self._thread: threading.Thread | None = None

    def look_ahead(self, positions: TopicPositions, start: Position, end: Position) -> None:
        """Note what to read: the entries behind `start` up to `end`."""
        with self._changed:
            self._positions = positions
            goal = advance(positions, start, end, _LOOKAHEAD)
            self._moved |= self._times.look_ahead(start, goal, positions.latest, self._clock().steady)
            self._changed.notify_all()

    def due_end(self) -> Position:
        """Return the end of the entries that are due now, as far as they are known."""
        with self._changed:
            return self._times.due_end(self._clock())

    def start(self) -> None:
        """Have a thread read on, unless one does."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._read_on, name="pulsar-delays", daemon=True)
            self._thread.start()

    def due_end_at(self, moment: Moment, max_unreachable_s: float) -> Position:
        """Return the end of the entries that were due at a moment, reading as far as it takes.

        What the broker does not send counts as due: the task that reads it finds out why. Raises
        PulsarUnavailableError if no broker serves the partition.
        """
        failing_since = self._clock().steady
        with self._changed:
            if not self._times.all_due(moment):
                return self._times.due_end(moment)
        while self._is_open(moment):
            try:
                with self._entries.open(self._topic, self._begin(), _TIMEOUT_S) as stream:
                    if not self._read(stream, lambda: self._is_open(moment)):
                        return self._silent_end()
            except PulsarUnavailableError as error:
                failing_s = self._clock().steady - failing_since
                if failing_s >= max_unreachable_s:
                    raise PulsarUnavailableError(
                        f"{self._topic}: the delivery time of entry {self._next()} could not be read for "
                        f"{failing_s:.0f} s ({error}); check the brokers, or raise maxUnreachableSeconds"
                    ) from error
                self._pause(_PAUSE_S)
        with self._changed:
            return self._times.due_end(moment)

    def read_ahead(self, wanted: Callable[[], bool]) -> None:
        """Read on as long as it is wanted, or until the broker sends nothing, or does not answer."""
        try:
            with self._entries.open(self._topic, self._begin(), _TIMEOUT_S) as stream:
                if not self._read(stream, wanted):
                    raise PulsarUnavailableError("the broker sends nothing")
        except BookwardenError as error:
            _LOG.info("%s: delivery time of entry %s not read, again soon: %s", self._topic, self._next(), error)
            self._pause(_PAUSE_S)

    def has_more(self) -> bool:
        """Return whether there is more to read; a broker that is not heard keeps no reader, so wait a while alone."""
        with self._changed:
            self._changed.wait_for(lambda: self._moved or not self._times.is_read, _SILENCE_S)
            return not self._moved and not self._times.is_read

    def _read_on(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: not self._times.is_read)
            self.read_ahead(self.has_more)

    def _read(self, stream: EntryStream, wanted: Callable[[], bool]) -> bool:
        """Note entries as long as they are wanted; return False when the broker sends nothing for a while."""
        heard_at = self._clock().steady
        while wanted():
            entry = stream.next(_WAIT_S)
            now = self._clock().steady
            with self._changed:
                if self._moved:
                    return True
                if entry is not None:
                    self._require_whole(entry)
                    self._times.note(entry, now)
                    heard_at = now
            if now - heard_at >= _SILENCE_S:
                return False
        return True

    def _is_open(self, moment: Moment) -> bool:
        with self._changed:
            return not self._times.is_read and self._times.last_due(moment)

    def _require_whole(self, entry: TopicEntry) -> None:
        """Raise PulsarUnavailableError for an entry that may have been damaged on its way, so that it comes again."""
        if entry.metadata is not None or self._damaged.count(entry.position) >= _SURE - 1:
            self._damaged.clear()
            return
        self._damaged.append(entry.position)
        raise PulsarUnavailableError(f"entry {entry.position} came damaged: {entry.problem}")

    def _begin(self) -> Position:
        """Return where to read on; a start that is moved from now on ends that."""
        with self._changed:
            self._moved = False
            return self._next()

    def _next(self) -> Position:
        return self._unread()[0]

    def _silent_end(self) -> Position:
        first, last = self._unread()
        _LOG.warning("%s: the broker sends no entry from %s on; up to %s they count as due", self._topic, first, last)
        return last

    def _unread(self) -> tuple[Position, Position]:
        """Return the next entry to read, and the last one to read of its ledger."""
        with self._changed:
            reached, goal, positions = self._times.reached, self._times.goal, self._positions
        ranges = ranges_between(positions, reached, goal) if positions is not None else []
        if not ranges:
            # Trimmed meanwhile: the broker begins with what is left.
            return reached, goal
        return Position(ranges[0].ledger_id, ranges[0].first), Position(ranges[0].ledger_id, ranges[0].last)


class DelayWatch:
    """The due ends of all delayed partitions of a query; ``clock`` gives seconds since the epoch."""

    def __init__(
        self,
        entries: Callable[[], TopicEntries],
        max_unreachable_s: float,
        max_delay_s: float,
        *,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._entries = entries
        self._max_unreachable_s = max_unreachable_s
        self._max_delay_s = max_delay_s
        self._steady = steady
        # The clock of the machine is asked once: what sets it later changes nothing.
        self._epoch = clock() - steady()
        self._pause = pause
        self._scans: dict[str, DelayScan] = {}

    def now(self) -> Moment:
        """Return this moment."""
        steady = self._steady()
        return Moment(self._epoch + steady, steady)

    def due_end(
        self, positions: TopicPositions, start: Position, end: Position, moment: Moment | None = None
    ) -> Position:
        """Return the end of the longest run of due entries behind `start`, at most `end`.

        Without a moment this never waits: entries that were not read yet count as not due. With it, those due at that
        moment count, and they are read; PulsarUnavailableError if they cannot be.
        """
        scan = self._scans.get(positions.topic)
        if scan is None:
            # Each has connections of its own: its thread may wait in one.
            scan = DelayScan(positions.topic, self._entries(), self._max_delay_s, self.now, self._pause)
            self._scans[positions.topic] = scan
        scan.look_ahead(positions, start, end)
        if moment is not None:
            return scan.due_end_at(moment, self._max_unreachable_s)
        scan.start()
        return scan.due_end()
