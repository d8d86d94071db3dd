"""Limits of copying: bytes and ledgers per second for each bookie of either side. No input, output or waiting."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from bookwarden.errors import ConfigError
from bookwarden.metastore.pacing import Rate

# What may go at once, in seconds' worth of the limit: the caller is rarely back at the very moment.
_AHEAD_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class CopyLimits:
    """Limits for each bookie of either side, and for one process alone; None for no limit.

    Bytes are those of entries, read or written: of the target each is written once, and read once to prove it.
    Raises ConfigError for a limit that is not above 0.
    """

    bytes_per_second: float | None = None
    ledgers_per_second: float | None = None

    def __post_init__(self) -> None:
        for name in ("bytes_per_second", "ledgers_per_second"):
            limit: float | None = getattr(self, name)
            if limit is not None and not 0 < limit < math.inf:
                raise ConfigError(f"{name} is {limit}; it must be above 0, or not be set")

    def shared_by(self, processes: int) -> CopyLimits:
        """Return the limits of each of this number of processes that copy at once, from the limits of all together."""
        shares = [None if limit is None else limit / processes for limit in self._limits()]
        return CopyLimits(*shares)

    def _limits(self) -> tuple[float | None, float | None]:
        return self.bytes_per_second, self.ledgers_per_second


class CopyPacer:
    """Tells a copier when it may go on; for one thread.

    It asks how many seconds to wait, does so or something else meanwhile, and asks again. At 0 it may act, and counts
    what it did: sizes of entries that are read are known afterwards only. Idle time is not made up for later, and in
    any time at most 0.1 s worth of the limit is exceeded, and one piece.
    """

    def __init__(self, limits: CopyLimits, *, now: Callable[[], float] = time.monotonic) -> None:
        self._bytes = _Rates(limits.bytes_per_second, "bytes_per_second", now)
        self._ledgers = _Rates(limits.ledgers_per_second, "ledgers_per_second", now)

    def wait_for_bytes(self, bookies: Iterable[str]) -> float:
        """Return the seconds until entries may be read from, or sent to, all of these bookies; 0 for now."""
        return self._bytes.wait(bookies)

    def count_bytes(self, bookies: Iterable[str], size: int) -> None:
        """Count these bytes for each of these bookies."""
        self._bytes.count(bookies, size)

    def wait_for_ledger(self, bookies: Iterable[str]) -> float:
        """Return the seconds until a ledger may be begun that is on all of these bookies; 0 for now."""
        return self._ledgers.wait(bookies)

    def count_ledger(self, bookies: Iterable[str]) -> None:
        """Count a ledger that is begun on each of these bookies."""
        self._ledgers.count(bookies, 1)


class _Rates:
    """A rate for each bookie; none of it where there is no limit."""

    def __init__(self, limit: float | None, setting: str, now: Callable[[], float]) -> None:
        self._limit = limit
        self._setting = setting
        self._now = now
        self._rates: dict[str, Rate] = {}

    def wait(self, bookies: Iterable[str]) -> float:
        if self._limit is None:
            return 0.0
        ahead = max((rate.ahead() for bookie in bookies if (rate := self._rates.get(bookie))), default=0.0)
        return max(0.0, ahead - _AHEAD_S)

    def count(self, bookies: Iterable[str], amount: int) -> None:
        if self._limit is None:
            return
        for bookie in bookies:
            rate = self._rates.get(bookie)
            if rate is None:
                rate = self._rates[bookie] = Rate(self._limit, self._setting, now=self._now)
            rate.reserve(amount)
