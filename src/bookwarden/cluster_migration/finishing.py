"""The end of a migration: proven to be done, and what blue may lose marked for deletion and removed.

Only what `verify` proved is touched, and each topic is looked at once more right before: a broker deletes a topic that
no broker can load, with everything unread, without a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from bookwarden.cluster_migration.green_resources import GreenResources
from bookwarden.cluster_migration.observing import MigrationObserver, MigrationSnapshot
from bookwarden.cluster_migration.readiness.findings import Override
from bookwarden.cluster_migration.record import FINISHED, REMOVING, MigrationRecord
from bookwarden.cluster_migration.scope import is_brokers_own, is_subscription, namespace_of
from bookwarden.cluster_migration.sides.cluster import ClusterSide
from bookwarden.cluster_migration.states import (
    CLIENTS_LEFT,
    UNNEEDED,
    ExpectedTopic,
    TopicState,
    TopicStatus,
    entries_of,
    is_marked_by_migration,
)
from bookwarden.deletion.phase_one.removal import Removal
from bookwarden.errors import BookwardenError, NotFoundError, RefusedError
from bookwarden.ledgers.metadata import StoredLedger
from bookwarden.ledgers.names import TopicName, decode_local_name

_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class TopicVerification:
    """A topic on both sides; ``faults`` are the reasons why it is not done, none where it is."""

    topic: str  #: Full name.
    state: str  #: On blue.
    began_with: int | None  #: Entries on blue when it was marked; None where that is not recorded.
    on_blue: int  #: Entries on blue now.
    unread: int | None  #: Entries that are left on blue; None where some of it is not known.
    on_green: int | None  #: Entries on green; None where it has no such topic, or its broker does not say.
    missing: tuple[str, ...] = ()  #: Subscriptions that blue has, or had when it began, and green has not.
    faults: tuple[str, ...] = ()  #: Why it is not done.
    bytes_on_blue: int = 0  #: Of its entries on blue now, but those of unsized ledgers.
    unsized: tuple[int, ...] = ()  #: Ledgers on blue whose size its node does not have, as of the one written last.
    late: tuple[str, ...] = ()  #: Subscriptions that came too late to green, unless that was accepted by name.

    @property
    def ok(self) -> bool:
        """True where nothing is left to do for it."""
        return not self.faults and not self.late


@dataclass(frozen=True, slots=True)
class MigrationVerification:
    """Every topic of the scope, and what is wrong with the scope itself."""

    topics: tuple[TopicVerification, ...]
    faults: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True where the migration is done."""
        return not self.faults and all(topic.ok for topic in self.topics)

    @property
    def is_only_late(self) -> bool:
        """True where nothing is wrong but subscriptions that came too late."""
        return not self.ok and not self.faults and not any(topic.faults for topic in self.topics)


@dataclass(frozen=True, slots=True)
class GreenTopic:
    """A topic on green; ``entries`` is None where its broker does not say."""

    subscriptions: frozenset[str]
    entries: int | None = None


def verify_migration(
    blue: ClusterSide,
    green: ClusterSide,
    observer: MigrationObserver,
    record: MigrationRecord,
    namespaces: Sequence[str],
    accepted: Collection[str] = (),
) -> MigrationVerification:
    """Compare both sides; ``accepted`` are cases that were accepted by name. Changes nothing.

    Raises StoreError or FormatError where a side cannot be read.
    """
    expected = record.expected(namespaces)
    snapshot = observer.snapshot(namespaces, expected)
    # Some of them may not be recorded yet.
    snapshot = replace(
        snapshot, late=(*record.late(namespaces), *GreenResources(blue, green, record).late_in(snapshot))
    )
    found = {
        str(TopicName.of_managed_ledger(one.managed_ledger)): frozenset(map(decode_local_name, one.cursors))
        for name in namespaces
        for one in green.nodes.topics(name)
    }
    wanted = [seen.topic for seen in snapshot.topics if seen.topic in found]
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="green") as pool:
        counts = dict(zip(wanted, pool.map(partial(_entries, green), wanted), strict=True))
    return evaluate_migration(
        snapshot, {topic: GreenTopic(names, counts.get(topic)) for topic, names in found.items()}, expected, accepted
    )


def _entries(green: ClusterSide, topic: str) -> int | None:
    try:
        return green.admin.entries(topic)
    except BookwardenError:
        return None


def evaluate_migration(
    snapshot: MigrationSnapshot,
    green: Mapping[str, GreenTopic],
    expected: Mapping[str, ExpectedTopic],
    accepted: Collection[str] = (),
) -> MigrationVerification:
    """Decide by what was seen; ``green`` has its topics by name, ``accepted`` are cases accepted by name."""
    faults = [f"{name} is not flagged: new clients stay on blue" for name, on in snapshot.flagged.items() if not on]
    faults += snapshot.errors
    known = {one.rpartition("://")[2].rpartition("/")[0] for one in expected}
    faults += [
        f"no start of {name} is recorded in this folder: topics that blue has deleted by now are not checked"
        for name in snapshot.flagged
        if name not in known and snapshot.flagged[name]
    ]
    bases = {str(TopicName.parse(topic).base) for topic in green if TopicName.parse(topic).partition is not None}
    faults += [
        f"green has {topic} with partitions and without, and clients see one of both: read what is in the one without, "
        "and delete that one"
        for topic in sorted(bases & green.keys())
    ]
    late = () if Override.LATE_SUBSCRIPTIONS.value in accepted else snapshot.late
    topics = [
        _verification_of(
            seen,
            green.get(seen.topic),
            expected.get(seen.topic),
            accepted,
            tuple(f"{name} (behind {entries} entries)" for topic, name, entries in late if topic == seen.topic),
        )
        for seen in snapshot.topics
    ]
    return MigrationVerification(tuple(topics), tuple(faults))


def _verification_of(
    seen: TopicStatus,
    here: GreenTopic | None,
    expected: ExpectedTopic | None,
    accepted: Collection[str],
    late: tuple[str, ...],
) -> TopicVerification:
    wanted = {cursor.name for cursor in seen.cursors if is_subscription(cursor.name)}
    wanted |= set(expected.subscriptions) if expected is not None else set()
    missing = tuple(sorted(wanted - (here.subscriptions if here is not None else frozenset())))
    faults = []
    if seen.state not in UNNEEDED:
        faults.append(f"{seen.state.value} on blue")
    faults += [
        f"{cursor.name} has {'an unknown number of' if cursor.unread is None else cursor.unread} entries unread"
        for cursor in seen.cursors
        if not cursor.is_read
    ]
    if here is None:
        faults.append("not on green")
    faults += [f"subscription {name} is not on green" for name in missing]
    faults += _unprovable(seen, expected, accepted)
    return TopicVerification(
        seen.topic,
        seen.state.value,
        None if expected is None else expected.entries,
        0 if seen.info is None else entries_of(seen.info),
        seen.unread if all(cursor.unread is not None for cursor in seen.cursors) else None,
        None if here is None else here.entries,
        missing,
        tuple(faults),
        0 if seen.info is None else sum(ledger.size for ledger in seen.info.ledgers),
        () if seen.info is None else tuple(ledger.ledger_id for ledger in seen.info.ledgers if not ledger.size),
        late,
    )


def _unprovable(seen: TopicStatus, expected: ExpectedTopic | None, accepted: Collection[str]) -> list[str]:
    """Return why cursors do not show whether all was read."""
    if seen.info is None:
        return []
    found = []
    had_subscription = bool(seen.cursors) or (expected is not None and bool(expected.subscriptions))
    if not had_subscription and entries_of(seen.info) and Override.READERS.value not in accepted:
        found.append("it had no durable subscription: what readers read is not known (--accept readers)")
    if seen.compacted and Override.COMPACTED_TOPICS.value not in accepted:
        found.append("its compacted view is on blue alone (--accept compacted-topics)")
    return found


_CLIENTS_LEFT: Final = frozenset(state.value for state in CLIENTS_LEFT)


@dataclass(frozen=True, slots=True)
class RemovableTopic:
    """A topic that blue may lose: with its partitions, or one that has none."""

    topic: str  #: Full name, without partition.
    partitions: tuple[str, ...]  #: Those that still have nodes on blue; none where only the node of the topic is left.
    entries: int = 0  #: On blue.
    size: int = 0  #: Bytes of them.

    def result(self, marks: int, *, done: bool, problem: str = "") -> TopicRemoval:
        """Return a result for it."""
        return TopicRemoval(self.topic, marks, done, problem, self.entries, self.size)


@dataclass(frozen=True, slots=True)
class FinishPlan:
    """Topics that blue may lose, those that it keeps with the reason, and those that brokers keep for themselves."""

    removable: tuple[RemovableTopic, ...]
    kept: Mapping[str, str]
    leftovers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicRemoval:
    """The result for one topic; ``marks`` are the pending deletions sent for it, or that would be."""

    topic: str  #: Full name, without partition.
    marks: int  #: Pending deletions.
    done: bool  #: It is removed.
    problem: str = ""  #: Why it is not.
    entries: int = 0  #: All of them read, on blue alone.
    size: int = 0  #: Bytes of them.


class MigrationFinisher:
    """Plans and carries out; may be killed at any moment and run again: what is removed is found gone."""

    def __init__(
        self,
        blue: ClusterSide,
        green: ClusterSide,
        observer: MigrationObserver,
        removal: Removal,
        record: MigrationRecord,
        say: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self._blue = blue
        self._admin = blue.admin
        self._nodes = blue.nodes
        self._green = green.admin
        self._observer = observer
        self._removal = removal
        self._record = record
        self._say = say

    def plan(
        self, namespaces: Sequence[str], verified: MigrationVerification, accepted: Collection[str] = ()
    ) -> FinishPlan:
        """Plan by what was verified; changes nothing. ``accepted`` are cases accepted by name."""
        faults = {
            one.topic: "; ".join((*one.faults, *(f"{name} came too late to green" for name in one.late)))
            for one in verified.topics
            if not one.ok
        }
        if Override.LATE_CLIENTS.value not in accepted:
            for one in verified.topics:
                if one.state in _CLIENTS_LEFT:
                    faults.setdefault(
                        one.topic,
                        f"{one.state}: blue could not send these clients to green any more (--accept late-clients)",
                    )
        there = {one.topic: one.on_blue for one in verified.topics if one.state != TopicState.GONE.value}
        sizes = self._sizes(verified)
        by_base: dict[str, list[str]] = {}
        for topic in there:
            by_base.setdefault(str(TopicName.parse(topic).base), []).append(topic)
        for name in namespaces:
            on_green = set(self._green.partitioned_topics(name))
            for topic in self._admin.partitioned_topics(name):
                if topic not in on_green:
                    faults.setdefault(topic, "not on green with partitions")
                by_base.setdefault(topic, [])
        if verified.faults:
            faults = dict.fromkeys(by_base, verified.faults[0]) | faults
        kept = {base: reason for base, topics in by_base.items() if (reason := _reason(base, topics, faults))}
        removable = [
            RemovableTopic(
                base,
                tuple(sorted(topics)),
                sum(there[topic] for topic in topics),
                sum(sizes[topic] for topic in topics),
            )
            for base, topics in sorted(by_base.items())
            if base not in kept and not is_brokers_own(TopicName.parse(base))
        ]
        return FinishPlan(tuple(removable), kept, tuple(self._leftovers(namespaces)))

    def _sizes(self, verified: MigrationVerification) -> dict[str, int]:
        """Return the bytes of each topic on blue, of ledgers that its node has no size of by their own metadata."""
        unsized = sorted({ledger_id for one in verified.topics for ledger_id in one.unsized})
        read = self._blue.read_ledgers(unsized)
        lengths = {one.ledger_id: one.metadata.length for one in read if isinstance(one, StoredLedger)}
        return {
            one.topic: one.bytes_on_blue + sum(lengths.get(each, 0) for each in one.unsized) for one in verified.topics
        }

    def marks_of(self, plan: FinishPlan) -> list[TopicRemoval]:
        """Count the pending deletions that would be sent for each topic; changes nothing."""
        return [self._tried(one, self._plan_now) for one in plan.removable]

    def carry_out(self, plan: FinishPlan) -> Iterator[TopicRemoval]:
        """Remove topic by topic: look once more, mark, have blue remove it; yields each result."""
        for one in plan.removable:
            self._say(f"{one.topic}: looked at once more, marked and removed")
            yield self._tried(one, self._remove_now)

    def close(self, namespaces: Sequence[str], plan: FinishPlan, results: Sequence[TopicRemoval]) -> None:
        """Record the namespaces of which nothing is kept and everything was removed as finished."""
        bad = {namespace_of(topic) for topic in plan.kept} | {
            namespace_of(one.topic) for one in results if not one.done
        }
        for name in namespaces:
            if name not in bad:
                self._record.append(FINISHED, namespace=name)

    def _tried(self, one: RemovableTopic, act: Callable[[RemovableTopic], TopicRemoval]) -> TopicRemoval:
        try:
            return act(one)
        except NotFoundError:
            return one.result(0, done=True)
        except BookwardenError as error:
            return one.result(0, done=False, problem=str(error))

    def _plan_now(self, one: RemovableTopic) -> TopicRemoval:
        return one.result(len(self._removal.plan_topic(one.topic, force=True).marks), done=False)

    def _remove_now(self, one: RemovableTopic) -> TopicRemoval:
        partitions = self._partitions(one.topic)
        seen = self._observer.status_of(partitions)
        left = [each for each in seen if each.state not in UNNEEDED or not each.is_read]
        if left:
            return one.result(0, done=False, problem=f"{left[0].topic} is {left[0].state.value} now: nothing was done")
        plan = self._removal.plan_topic(one.topic, force=True, check=partial(self._require_marked, partitions))
        self._record.append(REMOVING, namespace=namespace_of(one.topic), topic=one.topic, marks=len(plan.marks))
        result = plan.carry_out()
        return one.result(len(plan.marks), done=result.done, problem=result.problem)

    def _require_marked(self, partitions: Sequence[str]) -> None:
        """Raise RefusedError for a topic that accepts messages: it may have been reopened, with another record."""
        for topic in partitions:
            nodes = self._nodes.topic(TopicName.parse(topic).managed_ledger)
            if nodes is not None and not is_marked_by_migration(nodes.info):
                raise RefusedError(f"{topic} accepts messages again: it was not removed, and what was marked stays")

    def _partitions(self, topic: str) -> list[str]:
        """List what a removal would take: all partitions that the topic has now, or itself."""
        count, name = self._admin.partition_count(topic), TopicName.parse(topic)
        return [str(name.partition_name(index)) for index in range(count)] or [topic]

    def _leftovers(self, namespaces: Sequence[str]) -> Iterator[str]:
        """List the topics that brokers keep for themselves: they go with the namespace."""
        for name in namespaces:
            for nodes in self._nodes.topics(name):
                topic = TopicName.of_managed_ledger(nodes.managed_ledger)
                if is_brokers_own(topic):
                    yield str(topic)


def _reason(base: str, topics: Sequence[str], faults: Mapping[str, str]) -> str:
    """Return why a topic is kept: a fault of any of its partitions, gone ones too; "" where there is none."""
    for topic in sorted(faults):
        if topic in topics or str(TopicName.parse(topic).base) == base:
            return f"{topic}: {faults[topic]}"
    return ""
