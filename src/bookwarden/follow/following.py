"""Following what nodes name, batch by batch: drops are noted, and looked at once their time has come."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from bookwarden.follow.brokers import BrokersThatMark
from bookwarden.follow.checking import CheckedDrop, DropCheck
from bookwarden.follow.drops import DropCause, Key
from bookwarden.follow.table import FollowedNodes, NodeNow
from bookwarden.follow.timers import Timer
from bookwarden.ledgers.kinds import PlaceKind
from bookwarden.ledgers.outcomes import DropOutcome

logger = logging.getLogger(__name__)
# The number of looks that go through all nodes once, if anything is still there.
_STEP: Final = 10_000
_READ_AT_ONCE: Final = 5_000
_DAY_MS: Final = 24 * 3600 * 1000
_LONGEST_PAUSE_MS: Final = 3600 * 1000
# Changed nodes and timers, half a kilobyte each: with this number the state is kept before a batch ends.
_MANY_CHANGES: Final = 50_000
_ALL_TIMES: Final = 2**62

# Keeps results, and then what changed in the nodes and timers.
Keep = Callable[[Sequence[CheckedDrop]], None]


class SteadyClock:
    """Seconds since the epoch by this machine's clock at the start, whatever that is set to afterwards."""

    def __init__(self) -> None:
        self._began = time.time() - time.monotonic()

    def __call__(self) -> float:
        return self._began + time.monotonic()


@dataclass
class FollowTally:
    """Numbers of one batch."""

    nodes: int = 0  #: Read, changed or not.
    problems: int = 0  #: That could not be read or understood.
    seen_dropped: int = 0  #: Ledgers and copies that left a node.
    lag_s: float = 0.0  #: Age of the oldest change, when it was taken.
    dropped: Counter[tuple[PlaceKind, DropCause]] = field(default_factory=Counter)  #: Looked at, and named by no node.
    still_there: Counter[tuple[PlaceKind, DropCause]] = field(default_factory=Counter)  #: Of these.
    outcomes: Counter[DropOutcome] = field(default_factory=Counter)  #: Of all looks.
    doubles: int = 0  #: Marks of what was in the outbox of brokers, or in flight, already.


#: Reads what nodes of a metadata root name now, never older than the call; StoreError where the root does not answer.
ReadNodes = Callable[[str, Sequence[str]], list[NodeNow]]


class DroppedLedgers:
    """Takes batches of nodes, and settles what is due; one thread at a time.

    Nothing is looked at before the first comparison with the present has ended: before, not every node is known that
    may name a ledger. ``most_due`` limits the looks, and so the marks, of a batch. What waits is looked at again after
    ``look_again_s`` seconds, and then after twice as long each time, an hour at most. More than ``most_pending`` drops
    are not kept: those that are due first are marked for the sweep to look at them then.

    ``keep`` is called with all results of each part that are to be reported: what was not simply gone, and what
    waits, when it begins to and for another reason. ``brokers`` are those that mark, where any may.
    """

    def __init__(
        self,
        nodes: FollowedNodes,
        check: DropCheck,
        read: ReadNodes,
        clock: Callable[[], float],
        keep: Keep,
        *,
        brokers: BrokersThatMark | None = None,
        most_due: int = 10_000,
        look_again_s: float = 60.0,
        most_pending: int = 10_000_000,
    ) -> None:
        self.nodes = nodes
        self._check = check
        self._read = read
        self._clock = clock
        self._keep = keep
        self._brokers = brokers
        self._most_pending = most_pending
        self._most_due = most_due
        self._look_again_s = look_again_s

    def resume(self) -> None:
        """Take up timers that were loaded, and may have been set by a clock that was ahead."""
        now_ms = self._now_ms()
        brokers_first_ms = 0 if self._brokers is None else self._brokers.longest_ms
        longest_ms = max(self.nodes.grace_ms + brokers_first_ms, _LONGEST_PAUSE_MS)
        pulled = self.nodes.timers.pull_in(now_ms, now_ms + longest_ms)
        if pulled:
            logger.warning(
                "%d dropped ledgers and copies were to be looked at in more than %d s, so the clock that noted them was"
                " ahead, or this machine's is behind: they are looked at by then",
                *(pulled, longest_ms // 1000),
            )

    def take(self, rows: Iterable[NodeNow], tally: FollowTally, ended: int | None = None) -> None:
        """Take what nodes name now; ``ended`` is the number of a comparison that has ended with these rows."""
        now_ms = self._now_ms()
        if self._brokers is not None:
            self.nodes.roots_that_mark = self._brokers.roots()
        for row in _Noted(tally, now_ms).noted(rows):
            tally.seen_dropped += len(self.nodes.take((row,), now_ms))
            if len(self.nodes.changes) >= _MANY_CHANGES:
                self._hand_over(tally)
                self._keep(())
        if ended is not None:
            self._end_listing(ended, tally)

    def settle(self, tally: FollowTally) -> None:
        """Look at what is due, and keep everything. Raises StoreError, PulsarError, and NotFoundError."""
        self._hand_over(tally)
        timers = self.nodes.due(self._now_ms(), self._most_due) if self.nodes.listed else []
        for at in range(0, len(timers), _STEP):
            some, now_ms = timers[at : at + _STEP], self._now_ms()
            try:
                looked = self._check.look([timer.drop for timer in some], _waited_for_a_day(some, now_ms))
            except BaseException:
                self.nodes.postpone(timer._replace(due_ms=now_ms) for timer in timers[at:])
                raise
            self._keep(self._account(some, looked, tally))
        self._keep(())

    @property
    def has_due(self) -> bool:
        """Whether there may be something to be looked at now."""
        return bool(self.nodes.listed) and self.nodes.timers.has_due(self._now_ms())

    def _hand_over(self, tally: FollowTally) -> None:
        """Have the sweep look at what is due first, where too many are pending."""
        excess = len(self.nodes.timers) - self._most_pending
        if excess <= 0:
            return
        logger.warning(
            "%d dropped ledgers and copies are pending, more than follow.max_pending: %d go to the retry topic, and "
            "the sweep looks at them in place of this",
            *(len(self.nodes.timers), excess),
        )
        while excess > 0 and (timers := self.nodes.due(_ALL_TIMES, min(excess, _STEP))):
            excess -= len(timers)
            delay_s = max(0.0, max(timer.due_ms for timer in timers) / 1000 - self._clock())
            try:
                looked = self._check.hand_over([timer.drop for timer in timers], delay_s)
            except BaseException:
                self.nodes.postpone(timers)
                raise
            self._keep(self._account(timers, looked, tally))

    def _end_listing(self, listing: int, tally: FollowTally) -> None:
        for root, paths in self.nodes.unlisted(listing).items():
            for at in range(0, len(paths), _READ_AT_ONCE):
                self.take(self._read(root, paths[at : at + _READ_AT_ONCE]), tally)
        if self.nodes.end_listing(listing):
            logger.info("following %d nodes", len(self.nodes))

    def _account(self, timers: Sequence[Timer], looked: Sequence[CheckedDrop], tally: FollowTally) -> list[CheckedDrop]:
        """Settle or postpone what was looked at; return what is to be reported."""
        for one in looked:
            kind = (one.drop.place, one.drop.cause)
            tally.outcomes[one.outcome] += 1
            tally.doubles += one.is_double
            if one.outcome.is_there or one.outcome is DropOutcome.GONE:
                tally.dropped[kind] += 1
            if one.outcome.is_there:
                tally.still_there[kind] += 1
                _tell(one)
        self.nodes.settle(one.drop for one in looked if one.outcome is not DropOutcome.WAITING)
        now_ms = self._now_ms()
        self.nodes.postpone(
            self._later(timer, one.reason, now_ms)
            for timer, one in zip(timers, looked, strict=True)
            if one.outcome is DropOutcome.WAITING
        )
        return [one for timer, one in zip(timers, looked, strict=True) if _is_news(timer, one)]

    def _later(self, timer: Timer, reason: str, now_ms: int) -> Timer:
        pause_ms = min(int(self._look_again_s * 1000) << min(timer.looks, 30), _LONGEST_PAUSE_MS)
        return Timer(now_ms + pause_ms, timer.drop, timer.first_look_ms or now_ms, timer.looks + 1, reason)

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)


@dataclass
class _Noted:
    """Counts rows on their way."""

    tally: FollowTally
    now_ms: int

    def noted(self, rows: Iterable[NodeNow]) -> Iterable[NodeNow]:
        for row in rows:
            self.tally.nodes += 1
            if row.problem:
                self.tally.problems += 1
                logger.warning("%s in %s says nothing now: %s", row.path, row.root, row.problem)
            elif row.listing is None:
                self.tally.lag_s = max(self.tally.lag_s, (self.now_ms - row.at_ms) / 1000)
            yield row


def _waited_for_a_day(timers: Iterable[Timer], now_ms: int) -> set[Key]:
    return {timer.drop.key for timer in timers if timer.looks and now_ms - timer.first_look_ms > _DAY_MS}


def _is_news(timer: Timer, one: CheckedDrop) -> bool:
    if one.outcome is DropOutcome.WAITING:
        return timer.looks == 0 or one.reason != timer.reason
    return one.outcome is not DropOutcome.GONE


def _tell(one: CheckedDrop) -> None:
    drop = one.drop
    what = f"ledger {drop.ledger_id}" if drop.copy is None else f"the copy {drop.copy.uuid} of ledger {drop.ledger_id}"
    level = logging.INFO if one.outcome in (DropOutcome.MARKED, DropOutcome.WOULD_MARK) else logging.WARNING
    logger.log(level, "%s, which left %s, is %s: %s", what, drop.path, one.outcome.value, one.reason)
