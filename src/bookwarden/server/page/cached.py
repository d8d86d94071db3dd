"""Readings that are made at most once in a while, in threads of their own: however many ask, and however they hang."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Final, Generic, TypeVar

from bookwarden.background import run_unawaited
from bookwarden.errors import BookwardenError
from bookwarden.server.page.values import Reading

ValueT = TypeVar("ValueT")
#: The least seconds between two readings.
EVERY_S: Final = 10.0
#: A client waits so long for a reading that has just begun.
_WAIT_S: Final = 1.0
#: One that takes longer counts as no answer.
_SILENT_S: Final = 5.0
_LONGEST_REST_S: Final = 300.0


class CachedReading(Generic[ValueT]):
    """Reads when it is asked for and the last reading is old; one thread at a time, also while that hangs.

    Errors of ours and of the file system become part of the result. ``clock`` gives seconds since the epoch. After a
    reading that took long there is none for ``rest`` times as long, five minutes at most.
    """

    def __init__(
        self,
        name: str,
        read: Callable[[], ValueT],
        *,
        every_s: float = EVERY_S,
        wait_s: float = _WAIT_S,
        silent_s: float = _SILENT_S,
        rest: float = 0.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._name = name
        self._read = read
        self._every_s, self._wait_s, self._silent_s, self._rest = every_s, wait_s, silent_s, rest
        self._pause_s = every_s
        self._clock = clock
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._under_way = False
        self._begun_s = 0.0
        self._last: Reading[ValueT] = Reading()

    @property
    def last(self) -> Reading[ValueT]:
        """What was read last; begins nothing."""
        return self._last

    @property
    def is_under_way(self) -> bool:
        """Whether a thread reads now."""
        return self._under_way

    def begin(self) -> None:
        """Begin a reading if the last one is old and none is under way."""
        with self._lock:
            now = self._clock()
            # A clock that was set back must not stop it.
            if not self._under_way and not 0 <= now - self._begun_s < self._pause_s:
                self._under_way, self._begun_s = True, now
                self._ended.clear()
                run_unawaited(self._run, f"page: {self._name}")

    def get(self) -> Reading[ValueT]:
        """Return what is known; waits a moment where a reading has just begun, and never longer."""
        self.begin()
        with self._lock:
            left = self._begun_s + self._wait_s - self._clock() if self._under_way else 0.0
        if left > 0:
            self._ended.wait(left)
        with self._lock:
            last = self._last
            if not self._under_way or self._clock() - self._begun_s < self._silent_s:
                return last
            since = last.silent_since_ms or int(self._begun_s * 1000)
            return Reading(last.value, last.read_ms, last.error, since)

    def _run(self) -> None:
        begun_ms = int(self._begun_s * 1000)
        value, error = self._last.value, "it failed in an unexpected way: the log has the stack trace"
        answered = False
        try:
            value, error, answered = self._read(), "", True
        except (BookwardenError, OSError) as failure:
            error = str(failure)
        finally:
            with self._lock:
                if answered:
                    self._last = Reading(value, begun_ms)
                else:
                    last = self._last
                    self._last = Reading(value, last.read_ms, error, last.silent_since_ms or begun_ms)
                took_s = max(0.0, self._clock() - self._begun_s)
                rest_s = min(self._rest * took_s, _LONGEST_REST_S)
                self._pause_s = max(self._every_s, took_s + rest_s if rest_s else 0.0)
                self._under_way = False
                self._ended.set()


class CachedReadings(Generic[ValueT]):
    """Readings by name, the last ones asked for: ``most`` of them are kept, and ``at_once`` are under way."""

    def __init__(
        self,
        name: str,
        read: Callable[[str], ValueT],
        *,
        most: int = 32,
        at_once: int = 4,
        silent_s: float = _SILENT_S,
        rest: float = 0.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._name = name
        self._read = read
        self._most, self._at_once = most, at_once
        self._silent_s, self._rest = silent_s, rest
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, CachedReading[ValueT]] = OrderedDict()

    def get(self, key: str) -> Reading[ValueT]:
        """Return what is known of it, as `CachedReading.get`; nothing new while too many readings are under way."""
        with self._lock:
            found = self._kept.get(key)
            under_way = [name for name, one in self._kept.items() if one.is_under_way]
            if len(under_way) >= self._at_once and key not in under_way:
                now_ms = int(self._clock() * 1000)
                error = f"{len(under_way):,} others are being read: it comes after them"
                last: Reading[ValueT] = Reading() if found is None else found.last
                return Reading(last.value, last.read_ms, error, last.silent_since_ms or now_ms)
            if found is None:
                found = CachedReading(
                    self._name,
                    partial(self._read, key),
                    silent_s=self._silent_s,
                    rest=self._rest,
                    clock=self._clock,
                )
                self._kept[key] = found
            self._kept.move_to_end(key)
            # It counts as under way for the next one that asks.
            found.begin()
            # One that is under way is never dropped: it would not be counted.
            idle = [name for name, one in self._kept.items() if name != key and not one.is_under_way]
            for name in idle[: max(0, len(self._kept) - self._most)]:
                del self._kept[name]
        return found.get()
