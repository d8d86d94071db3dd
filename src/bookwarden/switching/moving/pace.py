"""The pace of a build: how fast it is, and how long the rest takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from bookwarden.switching.moving.build import Build

# Small ledgers cost requests, large ones bytes: one ledger takes as long as so many bytes of a large one.
_LEDGER_IN_BYTES: Final = 64 << 10


class Pace(NamedTuple):
    """The pace of a build since this process began with it."""

    ledgers_per_s: float
    bytes_per_s: float
    left_s: float | None  #: Until it is through; None before that can be told.


class Pacer:
    """Computes the pace from what the build tells of itself; the first is where this process began."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun: tuple[float, Build] | None = None

    def at(self, build: Build) -> Pace:
        """Return the pace until now."""
        now = self._clock()
        if self._begun is None:
            self._begun = now, build
        begun_s, first = self._begun
        elapsed = now - begun_s
        ledgers, size = build.looked_at - first.looked_at, build.size_looked_at - first.size_looked_at
        done = _work(ledgers, size)
        if elapsed <= 0 or not done:
            return Pace(0.0, 0.0, None)
        left = _work(build.ledgers - build.looked_at, build.size - build.size_looked_at)
        return Pace(ledgers / elapsed, size / elapsed, elapsed * left / done)


def share_done(build: Build) -> float:
    """Return the part of the work that is done, from 0 to 1."""
    whole = _work(build.ledgers, build.size)
    return _work(build.looked_at, build.size_looked_at) / whole if whole else 1.0


def _work(ledgers: int, size: int) -> int:
    return ledgers * _LEDGER_IN_BYTES + size
