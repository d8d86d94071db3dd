"""A migration under way, snapshot by snapshot: how much is left, how fast it goes, what holds it, and its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Final

from bookwarden.cluster_migration.green_resources import late_warnings
from bookwarden.cluster_migration.observing import MigrationSnapshot
from bookwarden.cluster_migration.sides.cluster import ClusterSide
from bookwarden.cluster_migration.states import ADVICE, DONE, LOST_SIGHT, UNNEEDED, TopicState, TopicStatus
from bookwarden.errors import DeadlockedBrokerError, StoreError

_SHOWN: Final = 5
# Brokers do not tell by REST that a topic is fenced; that its producers are on no side is what is seen of it.
_FENCED: Final = (
    "its producers are on no side, so its broker may keep it fenced, and its consumers out: if they cannot connect, "
    "`cluster-migration abort` unloads it; let them drain it then, and `start` again"
)
_NO_PROGRESS: Final = (
    "nothing was read for a minute: its consumers are connected, and acknowledge nothing; see whether they hang"
)
_NO_ANSWER: Final = "its broker gave no answer when it was asked to unload it, and is asked again after 5 minutes"
# Time over which a rate is measured.
_RATE_S: Final = 10.0
# A client that is redirected needs a second, and one whose broker restarts a minute.
_CLIENTS_S: Final = 60.0
# A topic that moves changes sooner; the check of a broker's health sends a message through it.
_STILL_S: Final = 30.0
_ASKED_EVERY_S: Final = 60.0
_WARNED_AFTER_S: Final = 60.0


class BrokerHealth:
    """Asks blue's brokers whether they are deadlocked, only where topics stall, and at most once a minute.

    Two threads of a broker remove the consumer of a migrated topic: the one that takes the acknowledgement of the last
    message, and the one that finds the end of the topic, 10 ms after the last dispatch. They take the locks of
    subscription and dispatcher in opposite order, and where both come at once neither ever goes on (seen with 4.0.8 and
    4.2.4; the stacks are in docs/findings.md). Soon topics of other namespaces suffer too, and no unload is answered. A
    broker finds that by itself, in the check of its health; a normal stop of it does not end.
    """

    def __init__(self, blue: ClusterSide) -> None:
        self._blue = blue
        self._asked_at: float | None = None
        #: By topic what was seen of it, and since when.
        self._since: dict[str, tuple[object, float]] = {}

    def require(self) -> None:
        """Raise DeadlockedBrokerError where a broker is deadlocked now."""
        brokers = self.deadlocked()
        if brokers:
            raise DeadlockedBrokerError(deadlock_advice(brokers))

    def deadlocked(self) -> tuple[str, ...]:
        """Return the brokers that are deadlocked now."""
        return self._blue.deadlocked_brokers()

    def after(self, snapshot: MigrationSnapshot, unanswered: Collection[str], now: float) -> tuple[str, ...]:
        """Take note of a snapshot; return the brokers that are deadlocked, as far as there was a reason to ask.

        ``unanswered`` are the topics whose unload timed out; ``now`` is in seconds by any clock.
        """
        self._since = {seen.topic: self._noted(seen, now) for seen in snapshot.topics if seen.state not in DONE}
        if not unanswered and not snapshot.unanswered and not self._still(snapshot, _STILL_S, now):
            return ()
        if self._asked_at is not None and now - self._asked_at < _ASKED_EVERY_S:
            return ()
        self._asked_at = now
        with suppress(StoreError):
            return self.deadlocked()
        return ()

    def draining_without_progress(self, snapshot: MigrationSnapshot, now: float) -> list[TopicStatus]:
        """List the topics that are DRAINING, and of which nothing was read for a minute; call it behind `after`."""
        return [seen for seen in self._still(snapshot, _WARNED_AFTER_S, now) if seen.state is TopicState.DRAINING]

    def _noted(self, seen: TopicStatus, now: float) -> tuple[object, float]:
        # One subscription without a consumer is STUCK, however quickly others of the topic are read.
        state = seen.state if seen.state is TopicState.STUCK else (seen.state, seen.unread)
        before = self._since.get(seen.topic)
        return before if before is not None and before[0] == state else (state, now)

    def _still(self, snapshot: MigrationSnapshot, seconds: float, now: float) -> list[TopicStatus]:
        return [
            seen
            for seen in snapshot.topics
            if seen.topic in self._since and now - self._since[seen.topic][1] >= seconds
        ]


def deadlock_advice(brokers: Sequence[str], *, is_aborted: bool = False) -> str:
    """Return what is wrong with these brokers of blue, and what to do; ``is_aborted`` where the flags are off."""
    name = ", ".join(brokers)
    first = "" if is_aborted else "`cluster-migration abort` now, "
    return (
        f"broker {name} of blue is deadlocked: threads of it wait for each other for ever, and topics of all "
        f"namespaces stall; {first}kill -9 its process, since a normal stop does not end it, and start it; "
        "`abort` again, restart the consumers with blue's service URL, let them drain, and `start` again "
        "(docs/cluster-migration.md, 'A deadlocked broker')"
    )


class DrainOutcome(Enum):
    """The end of a migration, as far as it can be watched."""

    DRAINED = "drained"
    CLIENTS_LEFT = "drained, clients left"
    FLAG_OFF = "flag off"
    DEADLOCKED = "deadlocked broker"


@dataclass(frozen=True, slots=True)
class DrainStep:
    """A snapshot, with what the snapshots before tell: entries read in a second, and warnings with what to do."""

    snapshot: MigrationSnapshot
    rate: float | None = None
    warnings: tuple[str, ...] = ()
    ending: DrainOutcome | None = None
    deadlocked: tuple[str, ...] = ()  #: Brokers of blue whose threads wait for each other for ever.

    @property
    def seconds_left(self) -> float | None:
        """Time until all is read at this rate; None where that is not known."""
        unread = self.snapshot.unread
        return unread / self.rate if self.rate and unread else None

    @property
    def differs_from(self) -> tuple[object, ...]:
        """Return what changes only when there is something new to tell."""
        snapshot = self.snapshot
        return (tuple(snapshot.states.items()), snapshot.unread, self.warnings, snapshot.errors)

    @property
    def lost_sight(self) -> bool:
        """True where no client reaches some topics until the flag is off."""
        return bool(self.snapshot.of_state(*LOST_SIGHT))

    @property
    def holding(self) -> list[TopicStatus]:
        """List the topics that keep the migration from its end."""
        return [seen for seen in self.snapshot.topics if seen.state not in DONE]


def warnings_of(snapshot: MigrationSnapshot, lacked_before: Collection[str] = ()) -> tuple[str, ...]:
    """Return a sentence for each state that does not end by itself, with what to do.

    ``lacked_before`` are the topics of which clients were missing on green in the snapshot before.
    """
    found = [f"broker {name} restarted, came or went: what it had loaded is STRANDED" for name in snapshot.restarted]
    for state in (*sorted(LOST_SIGHT, key=lambda state: state.value), TopicState.STUCK, TopicState.HELD):
        topics = snapshot.of_state(state)
        if topics:
            found.append(f"{state.value}: {_named(topics)}: {ADVICE[state]}")
    found += late_warnings(snapshot.late)
    # Right after it was marked a producer is on its way.
    behind = [seen for seen in snapshot.topics if seen.green_lacks_producer and seen.topic in lacked_before]
    if behind:
        found.append(f"PRODUCERS LEFT: {_named(behind)}: {ADVICE[TopicState.PRODUCERS_LEFT]}")
    shut = [seen for seen in behind if seen.state is TopicState.STUCK]
    if shut:
        found.append(f"STUCK and PRODUCERS LEFT: {_named(shut)}: {_FENCED}")
    alone = [seen for seen in snapshot.of_state(TopicState.CONSUMERS_LEFT) if seen.topic in lacked_before]
    if alone:
        readers = ", ".join(f"{', '.join(seen.green_lacks)} of {seen.topic}" for seen in alone[:_SHOWN])
        found.append(f"CONSUMERS LEFT: {readers}: {ADVICE[TopicState.CONSUMERS_LEFT]}")
    return tuple(found)


def ending_of(snapshot: MigrationSnapshot) -> DrainOutcome | None:
    """Return the end that a snapshot shows; None while it goes on. A doubt is no end."""
    if snapshot.flagged and not any(snapshot.flagged.values()):
        return DrainOutcome.FLAG_OFF
    if snapshot.errors or any(seen.state not in DONE for seen in snapshot.topics):
        return None
    return DrainOutcome.DRAINED


def _only_clients_left(snapshot: MigrationSnapshot) -> bool:
    return not snapshot.errors and all(seen.state in UNNEEDED for seen in snapshot.topics)


def follow(
    snapshots: Callable[[], MigrationSnapshot],
    *,
    every_s: float,
    health: BrokerHealth | None = None,
    unanswered: Callable[[], Sequence[str]] = lambda: (),
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[DrainStep]:
    """Yield a step for each snapshot, until the end; the caller may stop at any.

    Clients that green does not see are waited for, and not for ever: their application may have ended. By ``health``
    blue's brokers are asked for deadlocks where topics stall, or an unload timed out; ``unanswered`` returns the
    topics of those. A deadlock is an end: an operator has to kill that broker.
    """
    drained_at: float | None = None
    past: list[tuple[float, int]] = []
    lacked: set[str] = set()
    while True:
        begun = clock()
        snapshot = snapshots()
        past = [*(one for one in past if begun - one[0] <= _RATE_S), (begun, snapshot.unread)]
        timed_out = tuple(unanswered())
        deadlocked = () if health is None else health.after(snapshot, timed_out, begun)
        ending = ending_of(snapshot) or (DrainOutcome.DEADLOCKED if deadlocked else None)
        drained_at = (begun if drained_at is None else drained_at) if _only_clients_left(snapshot) else None
        if ending is None and drained_at is not None and begun - drained_at >= _CLIENTS_S:
            ending = DrainOutcome.CLIENTS_LEFT
        if deadlocked:
            # Other advice cannot work until that broker is killed.
            warnings: tuple[str, ...] = (deadlock_advice(deadlocked),)
        else:
            still = [] if health is None else health.draining_without_progress(snapshot, begun)
            warnings = (*warnings_of(snapshot, lacked), *_of_no_progress(still, timed_out))
        yield DrainStep(snapshot, _rate(past), warnings, ending, deadlocked)
        lacked = {seen.topic for seen in snapshot.topics if seen.green_lacks_producer or seen.green_lacks}
        if ending is not None:
            return
        sleep(max(0.0, every_s - (clock() - begun)))


def _of_no_progress(still: Sequence[TopicStatus], timed_out: Sequence[str]) -> list[str]:
    found = [f"DRAINING: {_named(still)}: {_NO_PROGRESS}"] if still else []
    if timed_out:
        more = f" and {len(timed_out) - _SHOWN} more" if len(timed_out) > _SHOWN else ""
        found.append(f"not unloaded: {', '.join(timed_out[:_SHOWN])}{more}: {_NO_ANSWER}")
    return found


def _rate(past: Sequence[tuple[float, int]]) -> float | None:
    (first_at, first), (last_at, last) = past[0], past[-1]
    return max(0.0, (first - last) / (last_at - first_at)) if last_at > first_at else None


def _named(topics: Sequence[TopicStatus]) -> str:
    shown = ", ".join(_with_unread(seen) for seen in topics[:_SHOWN])
    return shown if len(topics) <= _SHOWN else f"{shown} and {len(topics) - _SHOWN} more"


def _with_unread(seen: TopicStatus) -> str:
    left = [cursor for cursor in seen.cursors if not cursor.is_read]
    unread = ", ".join(f"{one.name} {'?' if one.unread is None else one.unread}" for one in left[:_SHOWN])
    return f"{seen.topic} ({unread} unread)" if unread else seen.topic
