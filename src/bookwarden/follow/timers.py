"""Timers of what was dropped, in about a hundred bytes each, since millions may be pending.

Timers that are due in the same second lie in pages, which are compressed once they are full or another second is
written. A dictionary has the page of each key. A timer that was ended or replaced stays where it lies, with nothing
that points to it, until its page is due.
"""

from __future__ import annotations

import heapq
import marshal
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple
from uuid import UUID

from bookwarden.follow.drops import Drop, DropCause, Key
from bookwarden.ledgers.kinds import PlaceKind
from bookwarden.ledgers.pending_deletion import OffloadContext

_IN_PAGE: Final = 1024
_TAKEN: Final = -1


class Timer(NamedTuple):
    """A drop, and when to look whether it is gone; times in milliseconds since the epoch."""

    due_ms: int
    drop: Drop
    first_look_ms: int = 0  #: When it was first found waiting; 0 before.
    looks: int = 0  #: That found it waiting.
    reason: str = ""  #: Why it waited at the last of them.


class PackedTimers:
    """Timers by the ids of what was dropped, given out in the order in which they are due, to the second."""

    def __init__(self) -> None:
        self._page_of: dict[int, int] = {}
        self._pages: dict[int, list[Timer] | bytes] = {}
        self._due_in: dict[int, deque[int]] = {}
        self._seconds: list[int] = []
        # Given out as due, neither ended nor set since: they are in no page.
        self._taken: dict[int, Timer] = {}
        # The page that is written, and the second in which its timers are due.
        self._open = 0
        self._open_second = 0

    def __len__(self) -> int:
        return len(self._page_of)

    def __contains__(self, key: Key) -> bool:
        return _number_of(key) in self._page_of

    def items(self) -> Iterator[tuple[Key, Timer]]:
        """Yield all; none may be set or ended meanwhile."""
        for number in self._pages:
            for timer in self._living(number).values():
                yield timer.drop.key, timer
        for timer in self._taken.values():
            yield timer.drop.key, timer

    def put(self, timer: Timer) -> None:
        """Set the timer of its drop."""
        key, second = _number_of(timer.drop.key), -(-timer.due_ms // 1000)
        self._taken.pop(key, None)
        page = self._pages.get(self._open)
        if not isinstance(page, list) or second != self._open_second or len(page) == _IN_PAGE:
            page = self._begin_page(second)
        page.append(timer)
        # One int object for the whole page.
        self._page_of[key] = self._open

    def end(self, key: Key) -> None:
        """End the timer, if there is one."""
        number = _number_of(key)
        self._page_of.pop(number, None)
        self._taken.pop(number, None)

    def has_due(self, now_ms: int) -> bool:
        """Return whether some may be due."""
        return bool(self._seconds) and self._seconds[0] * 1000 <= now_ms

    def due(self, now_ms: int, most: int) -> list[Timer]:
        """Return timers whose time has come, the oldest first; each has to be ended or set again then."""
        found: list[Timer] = []
        while len(found) < most and self.has_due(now_ms):
            pages = self._due_in[self._seconds[0]]
            if not pages:
                del self._due_in[heapq.heappop(self._seconds)]
                continue
            living = self._living(pages[0])
            for key, timer in living.items():
                if len(found) == most:
                    break
                self._page_of[key], self._taken[key] = _TAKEN, timer
                found.append(timer)
            else:
                del self._pages[pages.popleft()]
        return found

    def pull_in(self, now_ms: int, latest_ms: int) -> int:
        """Have none due later than ``latest_ms``, nor waiting since later than now; return how many were due later."""
        pulled = 0
        for second in [second for second in self._seconds if second * 1000 > latest_ms + 1000]:
            pages = self._due_in[second]
            while pages:
                number = pages.popleft()
                for timer in self._living(number).values():
                    first_look_ms = min(timer.first_look_ms, now_ms)
                    self.put(timer._replace(due_ms=latest_ms, first_look_ms=first_look_ms))
                    pulled += 1
                del self._pages[number]
        return pulled

    def _begin_page(self, second: int) -> list[Timer]:
        last = self._pages.get(self._open)
        if isinstance(last, list):
            self._pages[self._open] = _packed(last)
        self._open, self._open_second = self._open + 1, second
        if second not in self._due_in:
            self._due_in[second] = deque()
            heapq.heappush(self._seconds, second)
        self._due_in[second].append(self._open)
        begun = self._pages[self._open] = list[Timer]()
        return begun

    def _living(self, number: int) -> dict[int, Timer]:
        """Return the timers of a page that still count, by number; of two with the same number the later one."""
        page = self._pages[number]
        timers = page if isinstance(page, list) else _unpacked(page)
        found = {_number_of(timer.drop.key): timer for timer in timers}
        return {key: timer for key, timer in found.items() if self._page_of.get(key) == number}


def _number_of(key: Key) -> int:
    """Return the number of a key: those of copies are negative."""
    return ~key.int if isinstance(key, UUID) else key


def _packed(timers: Iterable[Timer]) -> bytes:
    rows = [
        (
            *(timer.due_ms, timer.first_look_ms, timer.looks, timer.reason),
            *(drop.ledger_id, drop.place.value, drop.cause.value, drop.path, drop.root, drop.at_ms),
            None if copy is None else (copy.msb, copy.lsb, copy.driver_name, dict(copy.metadata)),
        )
        for timer in timers
        for drop, copy in [(timer.drop, timer.drop.copy)]
    ]
    # By columns: what is alike lies together.
    return zlib.compress(marshal.dumps(tuple(zip(*rows, strict=True))), 1)


def _unpacked(page: bytes) -> Iterator[Timer]:
    columns: Any = marshal.loads(zlib.decompress(page))
    for due_ms, first_look_ms, looks, reason, ledger_id, place, cause, path, root, at_ms, context in zip(
        *columns, strict=True
    ):
        copy = None if context is None else OffloadContext(*context)
        drop = Drop(ledger_id, PlaceKind(place), DropCause(cause), path, root, at_ms, copy)
        yield Timer(due_ms, drop, first_look_ms, looks, reason)
