"""Topics, partitions and subscriptions that blue gets after `prepare`, made on green too.

A client that subscribes on blue at the latest message is owed what is sent from then on. Green gets what is sent once a
topic is marked; a subscription that green has not yet, and that its client makes there once it has drained blue, begins
behind that. So each subscription that blue's nodes have is made on green at the earliest message, before its clients
come. One that clients made first, behind entries that green had by then, is recorded as late.

Blue's nodes are followed, so that none is missed because it is gone at the next snapshot. For times in which they were
not followed green's nodes are read: one that clients made there then, behind entries, may have come from blue.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from bookwarden.cluster_migration.observing import MigrationSnapshot
from bookwarden.cluster_migration.record import FOLLOWED, LATE, MADE, RESET, MigrationRecord
from bookwarden.cluster_migration.scope import is_brokers_own, is_subscription, namespace_of
from bookwarden.cluster_migration.sides.cluster import ClusterSide
from bookwarden.clusters.pulsar.metadata.migrations import CursorFeed, MigrationNodes
from bookwarden.errors import BookwardenError, StoreError
from bookwarden.ledgers.names import TopicName, decode_local_name

# A client that was sent to green needs up to a minute; its clock and ours may differ by as much.
_ON_ITS_WAY_MS: Final = 60_000
# Of those that came too late, in a sentence.
_SHOWN: Final = 5


class LatePolicy(Enum):
    """Treatment of a subscription that its clients made on green first, at the latest message."""

    REPORT = "report"  #: It stays where it is, and is reported.
    RESET = "reset"  #: It is reset to the earliest message, so its clients get some messages twice.


@dataclass(slots=True)
class _FollowedNamespace:
    """The nodes of a namespace on blue, followed without a gap for a time."""

    feed: CursorFeed
    since_ms: int
    until_ms: int
    #: What came before the newest snapshot, of topics that were not marked by it.
    pending: frozenset[tuple[str, str]] = frozenset()


class BlueFollower:
    """Follows the nodes of subscriptions on blue, and records when it did; close it."""

    def __init__(self, nodes: MigrationNodes, record: MigrationRecord, say: Callable[[str], None]) -> None:
        self._nodes = nodes
        self._record = record
        self._say = say
        self._followed: dict[str, _FollowedNamespace] = {}

    def follow(self, namespaces: Collection[str]) -> None:
        """Follow these namespaces from now on. A store that reports no changes is not, which is said."""
        for namespace in sorted(set(namespaces) - self._followed.keys()):
            try:
                feed = self._nodes.follow(namespace)
            except StoreError as error:
                self._say(f"{namespace}: blue's nodes cannot be followed: {error}")
                continue
            now = now_ms()
            self._followed[namespace] = _FollowedNamespace(feed, now, now)

    def since_ms(self, namespace: str) -> int | None:
        """Return since when a namespace has been followed without a gap; None where it is not."""
        followed = self._followed.get(namespace)
        return None if followed is None else followed.since_ms

    def came(self, snapshot: MigrationSnapshot) -> set[tuple[str, str]]:
        """Return the subscriptions, by topic and name, that came to topics which this snapshot found to be marked.

        Raises StoreError where the store does not answer; the next call returns them.
        """
        return {one for namespace in snapshot.flagged for one in self._came(namespace, snapshot)}

    def close(self) -> None:
        """Follow nothing more, and record for how long it was done."""
        while self._followed:
            namespace, followed = self._followed.popitem()
            followed.feed.close()
            self._note(namespace, followed)

    def _came(self, namespace: str, snapshot: MigrationSnapshot) -> set[tuple[str, str]]:
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
        moved = {seen.topic for seen in snapshot.topics if seen.is_moved}
        # One that is gone by the next snapshot was either deleted when its topic was marked, or by its clients before.
        found = {one for one in came | followed.pending if one[0] in moved}
        followed.pending = frozenset(came - found)
        return found

    def _note(self, namespace: str, followed: _FollowedNamespace) -> None:
        if followed.until_ms > followed.since_ms:
            since, until = followed.since_ms, followed.until_ms
            self._record.append(FOLLOWED, namespace=namespace, since_ms=since, until_ms=until)


def now_ms() -> int:
    """Return this machine's time, in ms since the epoch."""
    return int(time.time() * 1000)


@dataclass(frozen=True, slots=True)
class MissingOnGreen:
    """Resources of blue that green lacks, or has without our doing."""

    topics: tuple[str, ...] = ()
    subscriptions: tuple[tuple[str, str], ...] = ()
    #: Subscriptions that green has, and no migration made: their clients may have made them, at the latest message.
    foreign: tuple[tuple[str, str], ...] = ()


class GreenResources:
    """Makes on green what blue has and green has not; may be killed at any moment, and run again. Close it.

    What the record has, of the begin of a migration and of what was made since, is no client's: it is made again where
    green has lost it, and is not late where green has it.
    """

    def __init__(
        self,
        blue: ClusterSide,
        green: ClusterSide,
        record: MigrationRecord,
        policy: LatePolicy = LatePolicy.REPORT,
        say: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self._blue = blue.admin
        self._follower = BlueFollower(blue.nodes, record, say)
        self._green = green
        self._record = record
        self._policy = policy
        self._say = say
        #: By topic its subscriptions that green is known to have, from the first message on or reported.
        self._known: dict[str, set[str]] = {}
        self._recorded: dict[str, set[str]] = {}
        self._read: set[str] = set()
        #: What came to blue and is gone, until green has it.
        self._came: set[tuple[str, str]] = set()
        #: By namespace when green's nodes were last read for what came while blue was not followed.
        self._asked_ms: dict[str, int] = {}

    def follow(self, namespaces: Collection[str]) -> None:
        """Follow the subscriptions that these namespaces get on blue, until `close`."""
        self._follower.follow(namespaces)

    def close(self) -> None:
        """Stop following blue, and record for how long that was done."""
        self._follower.close()

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

    def complete_snapshot(self, snapshot: MigrationSnapshot) -> None:
        """Do so for what blue's nodes have by a snapshot, and for what came since the snapshot before and is gone.

        What blue deletes by a client's wish right before its topic is marked is taken for such a one, too. Where late
        subscriptions are to be reset, those are that were reported before, too.
        """
        self._came |= self._follower.came(snapshot)
        wanted = subscriptions_in(snapshot)
        for topic, name in self._came:
            wanted.setdefault(topic, []).append(name)
        self.complete(wanted)
        self._came = {(topic, name) for topic, name in self._came if name not in self._known.get(topic, ())}
        for topic, name, passed in self._unseen(snapshot):
            self._report(topic, name, passed, on_blue=False)
        if self._policy is LatePolicy.RESET:
            for topic, name, _ in self._record.late(snapshot.flagged):
                self._green.admin.reset_to_earliest(topic, name)
                self._record.append(RESET, namespace=namespace_of(topic), topic=topic, subscription=name)

    def late_in(self, snapshot: MigrationSnapshot) -> list[tuple[str, str, int]]:
        """List the subscriptions of a snapshot that were made on green behind some entries; changes nothing."""
        foreign = self._missing(subscriptions_in(snapshot)).foreign
        found = [(topic, name, passed) for topic, name in foreign if (passed := self._entries_before(topic, name))]
        return found + [one for one in self._unseen(snapshot) if one not in found]

    def _unseen(self, snapshot: MigrationSnapshot) -> list[tuple[str, str, int]]:
        """List what clients made on green, behind entries, while blue was not followed, and is not reported yet."""
        moved: dict[str, set[str]] = defaultdict(set)
        for seen in snapshot.topics:
            if seen.is_moved:
                moved[namespace_of(seen.topic)].add(seen.topic)
        since_ms = {namespace: self._follower.since_ms(namespace) for namespace in moved}
        due = {namespace: since for namespace, since in since_ms.items() if self._is_due(namespace, since)}
        found = []
        for namespace, times in self._record.unfollowed(due).items() if due else ():
            now = now_ms()
            wide = [(since - _ON_ITS_WAY_MS, until + _ON_ITS_WAY_MS) for since, until in times]
            made = self._made_by_clients(namespace, wide) if wide else ()
            pairs = [(topic, name) for topic, name in made if topic in moved[namespace]]
            found += [(*pair, passed) for pair in pairs if (passed := self._entries_before(*pair))]
            self._asked_ms[namespace] = now
        return found

    def _is_due(self, namespace: str, since_ms: int | None) -> bool:
        """Return whether clients that came before blue was followed may have come to green since it was last read."""
        return since_ms is None or self._asked_ms.get(namespace, 0) < since_ms + _ON_ITS_WAY_MS

    def _made_by_clients(self, namespace: str, times: Collection[tuple[int, int]]) -> Iterator[tuple[str, str]]:
        """Yield the subscriptions of green that were made in these times, and neither by us nor known from blue."""
        self._learn([namespace])
        reported = self._record.reported([namespace])
        for nodes in self._green.nodes.topics(namespace):
            topic = str(TopicName.of_managed_ledger(nodes.managed_ledger))
            known = self._known.get(topic, set()) | self._recorded.get(topic, set())
            for cursor, created_ms in nodes.created_ms.items():
                name = decode_local_name(cursor)
                is_foreign = is_subscription(name) and name not in known and (topic, name) not in reported
                if is_foreign and any(since <= created_ms <= until for since, until in times):
                    yield topic, name

    def _missing(self, topics: Mapping[str, Collection[str]]) -> MissingOnGreen:
        self._learn({namespace_of(topic) for topic in topics})
        unknown = {topic: sorted(set(names) - self._known.get(topic, set())) for topic, names in topics.items()}
        wanted = {topic: names for topic, names in unknown.items() if names or topic not in self._known}
        if not wanted:
            return MissingOnGreen()
        there = {
            str(TopicName.of_managed_ledger(nodes.managed_ledger)): set(map(decode_local_name, nodes.cursors))
            for namespace in sorted({namespace_of(topic) for topic in wanted})
            for nodes in self._green.nodes.topics(namespace)
        }
        for topic in wanted.keys() & there.keys():
            self._known.setdefault(topic, set()).update(there[topic] & self._recorded.get(topic, set()))
        pairs = [(topic, name) for topic, names in sorted(wanted.items()) for name in names]
        left = [(topic, name) for topic, name in pairs if name not in self._known.get(topic, ())]
        return MissingOnGreen(
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
        there = self._green.admin.partition_count(base) if wanted else 0
        self._say(f"{topic}: made on green")
        if wanted and 0 < there < wanted:
            self._green.writer.add_partitions(base, wanted)
        else:
            self._green.writer.create_topic(base if wanted else topic, wanted or None)
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
        return self._green.writer.subscribe(topic, name, properties, replicated=bool(own.get("replicated", False)))

    def _judge(self, topic: str, name: str) -> None:
        """Record a subscription that begins behind entries of green."""
        passed = self._entries_before(topic, name)
        if passed:
            self._report(topic, name, passed, on_blue=True)

    def _report(self, topic: str, name: str, passed: int, *, on_blue: bool) -> None:
        facts = {"topic": topic, "subscription": name, "entries": passed, "on_blue": on_blue}
        self._record.append(LATE, namespace=namespace_of(topic), **facts)

    def _entries_before(self, topic: str, name: str) -> int:
        """Count the entries of green before the place where a subscription began, or else before where it is now."""
        nodes = self._green.nodes.topic(TopicName.parse(topic).managed_ledger)
        found = {} if nodes is None else {decode_local_name(key): cursor for key, cursor in nodes.cursors.items()}
        first = self._green.nodes.first_position(found[name]) if name in found else None
        if nodes is None or first is None:
            return self._green.admin.entries_passed(topic, name)
        # Of those before it none is being written.
        before = sum(one.entries for one in nodes.info.ledgers if one.ledger_id < first.ledger_id)
        return before + first.entry_id + 1


def subscriptions_in(snapshot: MigrationSnapshot) -> dict[str, list[str]]:
    """Return the subscriptions of applications by topic, of what a snapshot found on blue under a flag."""
    found: dict[str, list[str]] = defaultdict(list)
    for seen in snapshot.topics:
        if seen.info is not None and seen.flagged:
            found[seen.topic] += [cursor.name for cursor in seen.cursors if is_subscription(cursor.name)]
    return found


def late_warnings(late: Sequence[tuple[str, str, int]]) -> tuple[str, ...]:
    """Return a sentence about the subscriptions that came too late, with some of their names; none where none did."""
    if not late:
        return ()
    named = ", ".join(f"{name} of {topic} (behind {entries:,} entries)" for topic, name, entries in late[:_SHOWN])
    more = f" and {len(late) - _SHOWN:,} more (`verify` lists them)" if len(late) > _SHOWN else ""
    return (
        f"LATE SUBSCRIPTION: made on green by their own clients, behind entries: {named}{more}: if their clients came "
        "from blue, what was sent since they subscribed there is lost to them, unless they got it; "
        "`cluster-migration watch --late-subscriptions reset` gives them all of green's messages, some of them twice",
    )
