"""Pacing of requests to a store: a limit of nodes a second, and fewer requests at once while its answers are slow."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from bookwarden.errors import ConfigError
from bookwarden.signs_of_life import SIGNS_OF_LIFE

_LOG = logging.getLogger(__name__)

# The number of batches that a second's nodes are cut into, lest a low rate be one burst after the other.
_BATCHES_PER_SECOND: Final = 10

# What one answer weighs in the average latency; about the last eight count.
_WEIGHT: Final = 0.25
# Below one request at once there are pauses: at the least, a pause is seven times the latency that is allowed.
_LEAST: Final = 0.125
_MAX_PAUSE_S: Final = 5.0


class Rate:
    """Gives every node that is asked for its time, in the order of the calls over all threads.

    Idle time is not made up for later. Raises ConfigError for a limit that is not above 0, with the name of its
    ``setting``.
    """

    def __init__(self, per_second: float, setting: str, *, now: Callable[[], float] = time.monotonic) -> None:
        if not per_second > 0:
            raise ConfigError(f"{setting} is {per_second}; it must be above 0, or not be set")
        self.most_at_once = max(1, int(per_second / _BATCHES_PER_SECOND))
        self._per_second = per_second
        self._now = now
        self._lock = threading.Lock()
        self._next = now()

    def reserve(self, nodes: int) -> float:
        """Take the next place for a number of nodes; return the seconds until then."""
        with self._lock:
            now = self._now()
            begin = max(now, self._next)
            self._next = begin + nodes / self._per_second
        return begin - now

    def ahead(self) -> float:
        """Return the seconds until the next free place, without taking it."""
        with self._lock:
            return max(0.0, self._next - self._now())


class LatencyWindow:
    """The number of requests that may be under way: halved when the last ones were slow, one more when not.

    ``size`` begins at ``most`` and never exceeds it. Below 1 there is one request at a time and a ``pause`` after each.
    Times are in seconds by any one clock. It does no I/O and starts nothing.
    """

    def __init__(self, max_latency_s: float, most: int) -> None:
        if not max_latency_s > 0:
            raise ConfigError(f"the store's highest latency is {max_latency_s} s; it must be above 0, or not be set")
        self.size = float(most)
        self._most = most
        self._max_latency_s = max_latency_s
        self._average: float | None = None
        self._cut_at = float("-inf")

    @property
    def pause(self) -> float:
        """The pause after an answer, in seconds."""
        return min(_MAX_PAUSE_S, self._max_latency_s * (1 / self.size - 1)) if self.size < 1 else 0.0

    def answered(self, sent_at: float, now: float) -> None:
        """Take an answer into account, unless its request was sent before the last cut."""
        if sent_at < self._cut_at:
            return
        latency = now - sent_at
        self._average = latency if self._average is None else self._average + _WEIGHT * (latency - self._average)
        if self._average > self._max_latency_s:
            self._cut(now, f"answers take {self._average:.3g} s, more than {self._max_latency_s:g} s")
        else:
            self.size = min(self._most, self.size + (1 / self.size if self.size >= 1 else _LEAST))

    def lost(self, sent_at: float, now: float) -> None:
        """Take into account that an answer will never come."""
        if sent_at >= self._cut_at:
            self._cut(now, "an answer was lost")

    def _cut(self, now: float, why: str) -> None:
        self.size = max(_LEAST, self.size / 2)
        self._cut_at = now
        self._average = None
        _LOG.info("the metadata store is asked less, at most %.3g requests at once: %s", self.size, why)


class Turn(NamedTuple):
    """A request that may be sent now; ``held_s`` is how long we held it back, while the store answered others."""

    number: int
    sent_at: float
    held_s: float


class Pace:
    """Gate for the requests of one process to one store, each counted by its nodes; safe for threads.

    A request waits for its `turn`, and is `done` when its answer is there or will not come. ``in_flight`` is how many
    may be under way while the store answers within ``max_latency_s``. With neither limit everything passes at once.
    """

    def __init__(
        self,
        in_flight: int,
        max_requests_per_second: float | None = None,
        max_latency_s: float | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        limit = max_requests_per_second
        self._rate = None if limit is None else Rate(limit, "max_requests_per_second", now=now)
        self._window = None if max_latency_s is None else LatencyWindow(max_latency_s, in_flight)
        self._now = now
        self._sleep = sleep
        self._changed = threading.Condition()
        self._under_way: set[int] = set()
        self._numbers = itertools.count()
        self._not_before = float("-inf")

    @property
    def is_limited(self) -> bool:
        """True if there is a limit: if not, no caller needs to ask for a turn."""
        return self._rate is not None or self._window is not None

    def most_nodes(self, wanted: int) -> int:
        """Return how many nodes one request may have, at most ``wanted``."""
        return wanted if self._rate is None else min(wanted, self._rate.most_at_once)

    def turn(self, nodes: int, timeout: float) -> Turn | None:
        """Wait until the request may be sent; None if the others' answers do not come within ``timeout`` seconds."""
        held = self._rate.reserve(nodes) if self._rate else 0.0
        if held > 0:
            self._sleep(held)
        while True:
            with self._changed:
                begin = self._now()
                if not self._changed.wait_for(self._has_room, timeout):
                    return None
                now = self._now()
                held += now - begin
                pause = self._not_before - now
                if pause <= 0:
                    number = next(self._numbers)
                    self._under_way.add(number)
                    SIGNS_OF_LIFE.give()
                    return Turn(number, now, held)
            self._sleep(pause)
            held += pause

    def done(self, turn: Turn, *, answered: bool = True) -> None:
        """Allow the next one; a second call, or one after `forget`, has no effect."""
        with self._changed:
            if turn.number not in self._under_way:
                return
            self._under_way.remove(turn.number)
            if self._window is not None:
                now = self._now()
                (self._window.answered if answered else self._window.lost)(turn.sent_at, now)
                self._not_before = now + self._window.pause
            self._changed.notify_all()

    def forget(self) -> None:
        """Start over with nothing under way, when no more answers will come."""
        with self._changed:
            self._under_way.clear()
            self._changed.notify_all()

    def _has_room(self) -> bool:
        return self._window is None or len(self._under_way) < max(1, int(self._window.size))
