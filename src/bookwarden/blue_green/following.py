"""Subscriptions that namespaces get on blue, reported even if they are gone at the next look.

Blue deletes a subscription that comes to a marked topic within a round of its check, and its clients go to green.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from bookwarden.blue_green.observing import Look
from bookwarden.blue_green.ports import CursorChanges, Nodes
from bookwarden.blue_green.record import FOLLOWED, MigrationRecord
from bookwarden.blue_green.scope import is_brokers_own, is_subscription
from bookwarden.errors import StoreError
from bookwarden.ledgers.names import TopicName, decode_local_name


@dataclass(slots=True)
class _Followed:
    """The nodes of a namespace on blue, followed without a gap for a time."""

    feed: CursorChanges
    since_ms: int
    until_ms: int
    #: What came before the newest look, of topics that were not marked by it.
    pending: frozenset[tuple[str, str]] = frozenset()


class BlueFollower:
    """Follows the nodes of subscriptions on blue, and records when it did; close it."""

    def __init__(self, nodes: Nodes, record: MigrationRecord, say: Callable[[str], None] = lambda _line: None) -> None:
        self._nodes = nodes
        self._record = record
        self._say = say
        self._followed: dict[str, _Followed] = {}

    def follow(self, namespaces: Collection[str]) -> None:
        """Follow these namespaces from now on. A store that tells no changes is not, which is said."""
        for namespace in sorted(set(namespaces) - self._followed.keys()):
            try:
                feed = self._nodes.follow(namespace)
            except StoreError as error:
                self._say(f"{namespace}: blue's nodes cannot be followed: {error}")
                continue
            now = now_ms()
            self._followed[namespace] = _Followed(feed, now, now)

    def since_ms(self, namespace: str) -> int | None:
        """Return since when a namespace has been followed without a gap; None where it is not."""
        followed = self._followed.get(namespace)
        return None if followed is None else followed.since_ms

    def came(self, look: Look) -> set[tuple[str, str]]:
        """Return the subscriptions, by topic and name, that came to topics which this look found to be marked.

        Raises StoreError where the store does not answer; the next call returns them.
        """
        return {one for namespace in look.flagged for one in self._came(namespace, look)}

    def close(self) -> None:
        """Follow nothing more, and record for how long it was done."""
        while self._followed:
            namespace, followed = self._followed.popitem()
            followed.feed.close()
            self._note(namespace, followed)

    def _came(self, namespace: str, look: Look) -> set[tuple[str, str]]:
        followed = self._followed.get(namespace)
        if followed is None:
            return set()
        asked_ms = now_ms()
        changed = followed.feed.take()
        if changed is None:
            self._note(namespace, followed)
            followed.since_ms = asked_ms = now_ms()
        followed.until_ms = asked_ms
        named = [(TopicName.of_managed_ledger(ledger), decode_local_name(cursor)) for ledger, cursor in changed or ()]
        came = {(str(topic), name) for topic, name in named if is_subscription(name) and not is_brokers_own(topic)}
        moved = {seen.topic for seen in look.topics if seen.is_moved}
        # One that is gone by the next look was either deleted when its topic was marked, or by its clients before.
        found = {one for one in came | followed.pending if one[0] in moved}
        followed.pending = frozenset(came - found)
        return found

    def _note(self, namespace: str, followed: _Followed) -> None:
        if followed.until_ms > followed.since_ms:
            since, until = followed.since_ms, followed.until_ms
            self._record.append(FOLLOWED, namespace=namespace, since_ms=since, until_ms=until)


def now_ms() -> int:
    """Return this machine's time, in ms since the epoch."""
    return int(time.time() * 1000)
