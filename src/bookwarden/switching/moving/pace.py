"""The pace of a build: how fast it is, and how long so many ledgers take."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

# Small ledgers cost requests, large ones bytes: one ledger takes as long as so many bytes of a large one.
_LEDGER_IN_BYTES: Final = 64 << 10


class Pace(NamedTuple):
    """The pace of a build since its process began with it."""

    ledgers_per_s: float
    bytes_per_s: float

    def seconds_for(self, ledgers: int, size: int) -> float:
        """Return how long so many ledgers of so many bytes take at this pace."""
        return work_of(ledgers, size) / work_of(self.ledgers_per_s, self.bytes_per_s)


class Pacer:
    """Computes the pace from how far a build is; the first figures are where this process began."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun: tuple[float, int, int] | None = None

    def at(self, ledgers: int, size: int) -> Pace | None:
        """Return the pace until now, at which so many ledgers and bytes are through; None before any is."""
        now = self._clock()
        if self._begun is None:
            self._begun = now, ledgers, size
        begun_s, ledgers_before, size_before = self._begun
        elapsed, ledgers, size = now - begun_s, ledgers - ledgers_before, size - size_before
        if elapsed <= 0 or not work_of(ledgers, size):
            return None
        return Pace(ledgers / elapsed, size / elapsed)


def work_of(ledgers: float, size: float) -> float:
    """Return what so many ledgers of so many bytes cost, as bytes of one large ledger."""
    return ledgers * _LEDGER_IN_BYTES + size
