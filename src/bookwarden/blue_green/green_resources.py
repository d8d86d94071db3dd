"""Topics, partitions and subscriptions that blue gets after `prepare`, made on green too.

A client that subscribes on blue at the latest message is owed what is sent from then on. Green gets what is sent once a
topic is marked; a subscription that green has not yet, and that its client makes there once it has drained blue, begins
behind that. So each subscription that blue's nodes have is made on green at the earliest message, before its clients
come. One that clients made first, behind entries that green had by then, is recorded as late.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from bookwarden.blue_green.observing import Look
from bookwarden.blue_green.ports import MigrationAdmin, Nodes
from bookwarden.blue_green.preparing.ports import Making
from bookwarden.blue_green.record import LATE, MADE, RESET, MigrationRecord
from bookwarden.blue_green.scope import is_subscription, namespace_of
from bookwarden.errors import BookwardenError
from bookwarden.ledgers.names import TopicName, decode_local_name


class LatePolicy(Enum):
    """Treatment of a subscription that its clients made on green first, at the latest message."""

    REPORT = "report"  #: It stays where it is, and is reported.
    RESET = "reset"  #: It is reset to the earliest message, so its clients get some messages twice.


@dataclass(frozen=True, slots=True)
class Missing:
    """Resources of blue that green lacks, or has without our doing."""

    topics: tuple[str, ...] = ()
    subscriptions: tuple[tuple[str, str], ...] = ()
    #: Subscriptions that green has, and no migration made: their clients may have made them, at the latest message.
    foreign: tuple[tuple[str, str], ...] = ()


class GreenPositions(Protocol):
    """Positions of subscriptions on green; each call may raise PulsarError or NotFoundError."""

    def entries_passed(self, topic: str, subscription: str) -> int:
        """Count the entries of a partition that a subscription has behind it."""

    def reset_to_earliest(self, topic: str, subscription: str) -> None:
        """Move a subscription of a partition to its first message."""


class GreenResources:
    """Makes on green what blue has and green has not; may be killed at any moment, and run again.

    What the record has, of the begin of a migration and of what was made since, is no client's: it is made again where
    green has lost it, and is not late where green has it.
    """

    def __init__(
        self,
        blue: MigrationAdmin,
        green: MigrationAdmin,
        green_nodes: Nodes,
        making: Making,
        positions: GreenPositions,
        record: MigrationRecord,
        policy: LatePolicy = LatePolicy.REPORT,
        say: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self._blue = blue
        self._green = green
        self._green_nodes = green_nodes
        self._making = making
        self._positions = positions
        self._record = record
        self._policy = policy
        self._say = say
        #: By topic its subscriptions that green is known to have, from the first message on or reported.
        self._known: dict[str, set[str]] = {}
        self._recorded: dict[str, set[str]] = {}
        self._read: set[str] = set()

    def complete(self, topics: Mapping[str, Collection[str]], *, redirects: bool = True) -> None:
        """Make on green what it lacks of these topics, or partitions, with their subscriptions on blue.

        ``redirects`` is False before clients were ever sent to green: a subscription that is there is none of theirs.
        Raises BookwardenError where green does not have all of it then.
        """
        missing = self._missing(topics)
        for topic in missing.topics:
            if self._make_topic(topic):
                self._known.setdefault(topic, set())
        for topic, name in missing.subscriptions:
            if topic not in self._known:
                continue
            if self._subscribe(topic, name):
                self._say(f"{topic}: made on green: subscription {name}, from the first message on")
                self._record.append(MADE, namespace=namespace_of(topic), topic=topic, subscription=name)
            elif redirects:
                self._judge(topic, name)
            self._known[topic].add(name)
        for topic, name in missing.foreign:
            if redirects:
                self._judge(topic, name)
            self._known[topic].add(name)

    def complete_look(self, look: Look) -> None:
        """Do so for what blue's nodes have by a look; what is gone from blue has nothing more to come.

        Where late subscriptions are to be reset, those are that were reported before, too.
        """
        self.complete(subscriptions_in(look))
        if self._policy is LatePolicy.RESET:
            for topic, name, _ in self._record.late(look.flagged):
                self._positions.reset_to_earliest(topic, name)
                self._record.append(RESET, namespace=namespace_of(topic), topic=topic, subscription=name)

    def late_in(self, look: Look) -> list[tuple[str, str, int]]:
        """List the subscriptions of a look that were made on green behind some entries; changes and records nothing."""
        foreign = self._missing(subscriptions_in(look)).foreign
        return [(topic, name, passed) for topic, name in foreign if (passed := self._entries_before(topic, name))]

    def _missing(self, topics: Mapping[str, Collection[str]]) -> Missing:
        self._learn({namespace_of(topic) for topic in topics})
        unknown = {topic: sorted(set(names) - self._known.get(topic, set())) for topic, names in topics.items()}
        wanted = {topic: names for topic, names in unknown.items() if names or topic not in self._known}
        if not wanted:
            return Missing()
        there = {
            str(TopicName.of_managed_ledger(nodes.managed_ledger)): set(map(decode_local_name, nodes.cursors))
            for namespace in sorted({namespace_of(topic) for topic in wanted})
            for nodes in self._green_nodes.topics(namespace)
        }
        for topic in wanted.keys() & there.keys():
            self._known.setdefault(topic, set()).update(there[topic] & self._recorded.get(topic, set()))
        pairs = [(topic, name) for topic, names in sorted(wanted.items()) for name in names]
        left = [(topic, name) for topic, name in pairs if name not in self._known.get(topic, ())]
        return Missing(
            tuple(sorted(wanted.keys() - there.keys())),
            tuple((topic, name) for topic, name in left if name not in there.get(topic, ())),
            tuple((topic, name) for topic, name in left if name in there.get(topic, ())),
        )

    def _learn(self, namespaces: Collection[str]) -> None:
        new = sorted(set(namespaces) - self._read)
        if not new:
            return
        self._read.update(new)
        for topic, one in self._record.expected(new).items():
            self._recorded.setdefault(topic, set()).update(one.subscriptions)

    def _make_topic(self, topic: str) -> bool:
        """Make a topic, or partition; return False for a partition that its topic does not have on blue yet.

        Brokers create partitions before they write their number: one without it would be a topic of its own on green.
        """
        name = TopicName.parse(topic)
        base = str(name.base)
        wanted = self._blue.partition_count(base) if name.partition is not None else 0
        if name.partition is not None and 0 < wanted <= name.partition:
            return False
        there = self._green.partition_count(base) if wanted else 0
        self._say(f"{topic}: made on green")
        if wanted and 0 < there < wanted:
            self._making.add_partitions(base, wanted)
        else:
            self._making.create_topic(base if wanted else topic, wanted or None)
        return True

    def _subscribe(self, topic: str, name: str) -> bool:
        """Make a subscription with the properties that it has on blue; return False if it is there by now."""
        own: Mapping[str, Any] = {}
        try:
            own = (self._blue.stats(topic).get("subscriptions") or {}).get(name) or {}
        except BookwardenError:
            # A topic that blue does not load any more; the messages matter, and not the properties.
            own = {}
        properties = {str(key): str(value) for key, value in (own.get("subscriptionProperties") or {}).items()}
        return self._making.subscribe(topic, name, properties, replicated=bool(own.get("replicated", False)))

    def _judge(self, topic: str, name: str) -> None:
        """Record a subscription that begins behind entries of green."""
        passed = self._entries_before(topic, name)
        if passed:
            self._record.append(LATE, namespace=namespace_of(topic), topic=topic, subscription=name, entries=passed)

    def _entries_before(self, topic: str, name: str) -> int:
        """Count the entries of green before the place where a subscription began, or else before where it is now."""
        nodes = self._green_nodes.topic(TopicName.parse(topic).managed_ledger)
        found = {} if nodes is None else {decode_local_name(key): cursor for key, cursor in nodes.cursors.items()}
        first = self._green_nodes.first_position(found[name]) if name in found else None
        if nodes is None or first is None:
            return self._positions.entries_passed(topic, name)
        # Of those before it none is being written.
        before = sum(one.entries for one in nodes.info.ledgers if one.ledger_id < first.ledger_id)
        return before + first.entry_id + 1


def subscriptions_in(look: Look) -> dict[str, list[str]]:
    """Return the subscriptions of applications by topic, of what a look found on blue under a flag."""
    found: dict[str, list[str]] = defaultdict(list)
    for seen in look.topics:
        if seen.info is not None and seen.flagged:
            found[seen.topic] += [cursor.name for cursor in seen.cursors if is_subscription(cursor.name)]
    return found


def late_warnings(late: Sequence[tuple[str, str, int]]) -> tuple[str, ...]:
    """Return a sentence for each subscription that came too late."""
    return tuple(
        f"LATE SUBSCRIPTION: {name} of {topic} was made on green by its own clients, behind {entries} entries: what of "
        "these was sent since it subscribed on blue is lost to it, unless it got it; `cluster-migration watch "
        "--late-subscriptions reset` gives it all of green's messages, some of them twice"
        for topic, name, entries in late
    )
