"""Producers that a broker keeps from going to green: their topic is unloaded once nothing is left to read in it.

A write that was under way when its topic was marked may never be answered: the broker then holds the topic fenced for
ever, and its producers ask in vain (ManagedLedgerImpl.ledgerClosed does nothing in the state Terminated; seen on
4.2.4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bookwarden.blue_green.observing import Expected, Observer
from bookwarden.blue_green.ports import MigrationAdmin
from bookwarden.blue_green.record import RELEASING, MigrationRecord
from bookwarden.blue_green.scope import namespace_of
from bookwarden.blue_green.states import TopicSeen, TopicState
from bookwarden.errors import RefusedError


@dataclass(frozen=True, slots=True)
class Held:
    """Topics whose producers green does not see: those that can be released now, and those that have to drain first."""

    free: tuple[str, ...]
    draining: tuple[str, ...]


class Releasing:
    """Unloads topics of blue that are marked, and have nothing left to read."""

    def __init__(self, observer: Observer, admin: MigrationAdmin, record: MigrationRecord) -> None:
        self._observer = observer
        self._admin = admin
        self._record = record

    def plan(self, namespaces: Sequence[str], expected: Mapping[str, Expected]) -> Held:
        """List the topics whose producers are missing on green; changes nothing."""
        return held_in(self._observer.look(namespaces, expected).topics)

    def release(self, topic: str) -> None:
        """Unload the topic, after another look; RefusedError where something is left that nobody could reach then."""
        (seen,) = self._observer.look_at([topic])
        if not (seen.flagged and seen.loaded and seen.is_marked and seen.is_read):
            raise RefusedError(
                f"{topic} is {seen.state.value} with {seen.unread} entries unread, which nobody could read "
                "once it is unloaded: let it drain first"
            )
        self._record.append(RELEASING, namespace=namespace_of(topic), topic=topic)
        self._admin.unload(topic)


def held_in(topics: Sequence[TopicSeen]) -> Held:
    """Part the topics whose producers green does not see by whether something is left to read."""
    lacking = [seen for seen in topics if seen.green_lacks_producer]
    free = [seen.topic for seen in lacking if seen.state is TopicState.PRODUCERS_LEFT]
    return Held(tuple(free), tuple(seen.topic for seen in lacking if seen.topic not in free))
