"""The end of a migration: what blue may lose is marked for deletion, and removed.

Only what `verify` proved is touched, and each topic is looked at once more right before: a broker deletes a topic that
nobody can load, with everything that was not read of it, without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from bookwarden.blue_green.observing import Observer
from bookwarden.blue_green.readiness.findings import Override
from bookwarden.blue_green.record import FINISHED, REMOVING, MigrationRecord
from bookwarden.blue_green.scope import is_brokers_own, namespace_of
from bookwarden.blue_green.sides.cluster import ClusterSide
from bookwarden.blue_green.states import CLIENTS_LEFT, UNNEEDED, TopicState, is_marked_by_migration
from bookwarden.blue_green.verifying import Verified
from bookwarden.deletion.phase_one.removal import Removal
from bookwarden.errors import BookwardenError, NotFoundError, RefusedError
from bookwarden.ledgers.metadata import StoredLedger
from bookwarden.ledgers.names import TopicName

_CLIENTS_LEFT: Final = frozenset(state.value for state in CLIENTS_LEFT)


@dataclass(frozen=True, slots=True)
class Removable:
    """A topic that blue may lose: with its partitions, or one that has none."""

    topic: str  #: Full name, without partition.
    partitions: tuple[str, ...]  #: Those that still have nodes on blue; none where only the node of the topic is left.
    entries: int = 0  #: On blue.
    size: int = 0  #: Bytes of them.


@dataclass(frozen=True, slots=True)
class FinishPlan:
    """Topics that blue may lose, those that it keeps with the reason, and those that brokers keep for themselves."""

    removable: tuple[Removable, ...]
    kept: Mapping[str, str]
    leftovers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Removed:
    """The result for one topic; ``marks`` are the pending deletions sent for it, or that would be."""

    topic: str  #: Full name, without partition.
    marks: int  #: Pending deletions.
    done: bool  #: It is removed.
    problem: str = ""  #: Why it is not.
    entries: int = 0  #: All of them read, on blue alone.
    size: int = 0  #: Bytes of them.


class Finishing:
    """Plans and carries out; may be killed at any moment and run again: what is removed is found gone."""

    def __init__(
        self,
        blue: ClusterSide,
        green: ClusterSide,
        observer: Observer,
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

    def plan(self, namespaces: Sequence[str], verified: Verified, accepted: Collection[str] = ()) -> FinishPlan:
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
            Removable(
                base,
                tuple(sorted(topics)),
                sum(there[topic] for topic in topics),
                sum(sizes[topic] for topic in topics),
            )
            for base, topics in sorted(by_base.items())
            if base not in kept and not is_brokers_own(TopicName.parse(base))
        ]
        return FinishPlan(tuple(removable), kept, tuple(self._leftovers(namespaces)))

    def _sizes(self, verified: Verified) -> dict[str, int]:
        """Return the bytes of each topic on blue, of ledgers that its node has no size of by their own metadata."""
        unsized = sorted({ledger_id for one in verified.topics for ledger_id in one.unsized})
        read = self._blue.read_ledgers(unsized)
        lengths = {one.ledger_id: one.metadata.length for one in read if isinstance(one, StoredLedger)}
        return {
            one.topic: one.bytes_on_blue + sum(lengths.get(each, 0) for each in one.unsized) for one in verified.topics
        }

    def marks_of(self, plan: FinishPlan) -> list[Removed]:
        """Count the pending deletions that would be sent for each topic; changes nothing."""
        return [replace(self._planned(one), entries=one.entries, size=one.size) for one in plan.removable]

    def carry_out(self, plan: FinishPlan) -> Iterator[Removed]:
        """Remove topic by topic: look once more, mark, have blue remove it; yields each result."""
        for one in plan.removable:
            yield replace(self._remove(one), entries=one.entries, size=one.size)

    def close(self, namespaces: Sequence[str], plan: FinishPlan, results: Sequence[Removed]) -> None:
        """Record the namespaces of which nothing is kept and everything was removed as finished."""
        bad = {namespace_of(topic) for topic in plan.kept} | {
            namespace_of(one.topic) for one in results if not one.done
        }
        for name in namespaces:
            if name not in bad:
                self._record.append(FINISHED, namespace=name)

    def _remove(self, one: Removable) -> Removed:
        self._say(f"{one.topic}: looked at once more, marked and removed")
        try:
            return self._remove_now(one)
        except NotFoundError:
            return Removed(one.topic, 0, True)
        except BookwardenError as error:
            return Removed(one.topic, 0, False, str(error))

    def _remove_now(self, one: Removable) -> Removed:
        partitions = self._partitions(one.topic)
        seen = self._observer.look_at(partitions)
        left = [each for each in seen if each.state not in UNNEEDED or not each.is_read]
        if left:
            return Removed(one.topic, 0, False, f"{left[0].topic} is {left[0].state.value} now: nothing was done")
        plan = self._removal.plan_topic(one.topic, force=True, check=partial(self._require_marked, partitions))
        self._record.append(REMOVING, namespace=namespace_of(one.topic), topic=one.topic, marks=len(plan.marks))
        result = plan.carry_out()
        return Removed(one.topic, len(plan.marks), result.done, result.problem)

    def _require_marked(self, partitions: Sequence[str]) -> None:
        """Raise RefusedError for a topic that accepts messages: somebody may have reopened it, with another record."""
        for topic in partitions:
            nodes = self._nodes.topic(TopicName.parse(topic).managed_ledger)
            if nodes is not None and not is_marked_by_migration(nodes.info):
                raise RefusedError(f"{topic} accepts messages again: it was not removed, and what was marked stays")

    def _partitions(self, topic: str) -> list[str]:
        """List what a removal would take: all partitions that the topic has now, or itself."""
        count, name = self._admin.partition_count(topic), TopicName.parse(topic)
        return [str(name.partition_name(index)) for index in range(count)] or [topic]

    def _planned(self, one: Removable) -> Removed:
        try:
            return Removed(one.topic, len(self._removal.plan_topic(one.topic, force=True).marks), False)
        except NotFoundError:
            return Removed(one.topic, 0, True)
        except BookwardenError as error:
            return Removed(one.topic, 0, False, str(error))

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
