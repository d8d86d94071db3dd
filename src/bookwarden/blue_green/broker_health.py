"""Deadlocks inside blue's brokers: when brokers are asked for them, and what the operator has to do then.

Two threads of a broker remove the consumer of a migrated topic: the one that takes the acknowledgement of the last
message, and the one that finds the end of the topic, 10 ms after the last dispatch. They take the locks of subscription
and dispatcher in opposite order, and where both come at once neither ever goes on (seen with 4.0.8 and 4.2.4; the
stacks are in docs/findings.md). Soon topics of other namespaces suffer too, and no unload is answered. A broker finds
that by itself, in the check of its health; a normal stop of it does not end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Final

from bookwarden.blue_green.observing import Look
from bookwarden.blue_green.states import DONE, TopicSeen, TopicState
from bookwarden.errors import DeadlockedBrokerError, StoreError

# A topic that moves changes sooner; the check of a broker's health sends a message through it.
_STILL_S: Final = 30.0
_ASKED_EVERY_S: Final = 60.0
_WARNED_AFTER_S: Final = 60.0


class BrokerHealth:
    """Asks blue's brokers whether they are deadlocked, only where topics stand still, and at most once a minute.

    ``read_deadlocked`` asks every registered broker, and returns the names of those that are.
    """

    def __init__(self, read_deadlocked: Callable[[], Sequence[str]]) -> None:
        self._read_deadlocked = read_deadlocked
        self._asked_at: float | None = None
        #: By topic what was seen of it, and since when.
        self._since: dict[str, tuple[object, float]] = {}

    def require(self) -> None:
        """Raise DeadlockedBrokerError where a broker is deadlocked now."""
        brokers = self._read_deadlocked()
        if brokers:
            raise DeadlockedBrokerError(cure_of(brokers))

    def deadlocked(self) -> tuple[str, ...]:
        """Return the brokers that are deadlocked now."""
        return tuple(self._read_deadlocked())

    def after(self, look: Look, unanswered: Collection[str], now: float) -> tuple[str, ...]:
        """Take note of a look; return the brokers that are deadlocked, as far as there was a reason to ask.

        ``unanswered`` are the topics whose unload timed out; ``now`` is in seconds by any clock.
        """
        self._since = {seen.topic: self._noted(seen, now) for seen in look.topics if seen.state not in DONE}
        if not unanswered and not look.unanswered and not self._still(look, _STILL_S, now):
            return ()
        if self._asked_at is not None and now - self._asked_at < _ASKED_EVERY_S:
            return ()
        self._asked_at = now
        with suppress(StoreError):
            return self.deadlocked()
        return ()

    def draining_without_progress(self, look: Look, now: float) -> list[TopicSeen]:
        """List the topics that are DRAINING, and of which nothing was read for a minute; call it behind `after`."""
        return [seen for seen in self._still(look, _WARNED_AFTER_S, now) if seen.state is TopicState.DRAINING]

    def _noted(self, seen: TopicSeen, now: float) -> tuple[object, float]:
        # One subscription that nobody reads is STUCK, however quickly others of the topic are read.
        state = seen.state if seen.state is TopicState.STUCK else (seen.state, seen.unread)
        before = self._since.get(seen.topic)
        return before if before is not None and before[0] == state else (state, now)

    def _still(self, look: Look, seconds: float, now: float) -> list[TopicSeen]:
        return [
            seen for seen in look.topics if seen.topic in self._since and now - self._since[seen.topic][1] >= seconds
        ]


def cure_of(brokers: Sequence[str], *, is_aborted: bool = False) -> str:
    """Return what is wrong with these brokers of blue, and what to do; ``is_aborted`` where the flags are off."""
    name = ", ".join(brokers)
    first = "" if is_aborted else "`cluster-migration abort` now, "
    return (
        f"broker {name} of blue is deadlocked: threads of it wait for each other for ever, and topics of all "
        f"namespaces stand still; {first}kill -9 its process, since a normal stop does not end it, and start it; "
        "`abort` again, restart the consumers with blue's service URL, let them drain, and `start` again "
        "(docs/cluster-migration.md, 'A deadlocked broker')"
    )
