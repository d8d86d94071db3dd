"""The way back from a migration: flags taken off, and topics that were marked made to accept messages again.

A topic whose producers came to no side may be fenced: its broker lets no client in, consumers neither. It is unloaded,
so that what it has can be read; without a flag any client that asks has it loaded again.

Blue deletes a subscription of a marked topic once it is drained. An application that is restarted with blue's URL would
make it again, from its first message on, and read the whole topic a second time; so it is made again here, at its end.

No API of brokers makes a marked topic accept messages. The node of its managed ledger is changed, by the version that
was read and while no broker has the topic loaded: a broker that has it would go on with what it read before, and fence
the topic at its next write.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from bookwarden.cluster_migration.observing import MigrationObserver, MigrationSnapshot
from bookwarden.cluster_migration.record import ABORTED, REOPENED, REOPENING, SUBSCRIBED_AGAIN, MigrationRecord
from bookwarden.cluster_migration.scope import namespace_of
from bookwarden.cluster_migration.sides.cluster import ClusterSide
from bookwarden.cluster_migration.states import ExpectedTopic, TopicState, is_marked_by_migration
from bookwarden.cluster_migration.watching import deadlock_advice
from bookwarden.errors import (
    BookwardenError,
    LostRaceError,
    NotFoundError,
    OutcomeUnknownError,
    PulsarError,
    PulsarTimeoutError,
    RefusedError,
)
from bookwarden.ledgers.managed_ledger import Position
from bookwarden.ledgers.names import TopicName, decode_local_name
from bookwarden.redirects import MIGRATED_PROPERTY, ClusterFlag
from bookwarden.wire.managed_ledger import decode_managed_ledger, without_termination

_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True)
class AbortResult:
    """The result; what is on neither side may be held by a fence, which unloading ends."""

    taken_off: tuple[str, ...]  #: Namespaces whose flag was taken off now.
    cluster: bool  #: The flag of the cluster was, too.
    snapshot: MigrationSnapshot  #: Of blue behind it.
    on_no_side: tuple[str, ...] = ()  #: Marked topics whose producers green has not seen.
    unloaded: tuple[str, ...] = ()  #: Those of them that a broker had, and was asked to close.
    made_again: tuple[str, ...] = ()  #: Subscriptions that blue had deleted, with their topics.
    errors: tuple[str, ...] = ()  #: What could not be done, and why.


class MigrationAborter:
    """Takes flags off, ends fences, and makes drained subscriptions again; may be killed at any moment and run again.

    URLs and marks stay as they are. A broker that is deadlocked is asked for nothing else.
    """

    def __init__(self, blue: ClusterSide, observer: MigrationObserver, record: MigrationRecord) -> None:
        self._blue = blue
        self._admin = blue.admin
        self._observer = observer
        self._record = record

    def abort(self, namespaces: Sequence[str]) -> AbortResult:
        """Take the flags of these namespaces off, and the cluster's if it is set; read each back."""
        whole = self._abort_cluster()
        taken = [name for name in namespaces if self._abort_one(name)]
        expected = self._record.expected(namespaces)
        # Before the snapshot, whose requests a broker in that state may not answer, nor any later one then.
        brokers = self._blue.deadlocked_brokers()
        snapshot = self._observer.snapshot(namespaces, expected)
        lacking = self._observer.without_producers(snapshot.of_state(TopicState.ROLLED_BACK), expected)
        names = tuple(seen.topic for seen in lacking)
        fenced = [seen.topic for seen in lacking if seen.loaded is not False]
        missing = list(self._missing(namespaces, snapshot, expected))
        if brokers:
            return AbortResult(
                tuple(taken), whole, snapshot, names, errors=(deadlock_advice(brokers, is_aborted=True),)
            )
        unloaded, errors = self._unload(fenced)
        made, failed = self._make_again(missing)
        for name in namespaces:
            if not any(namespace_of(topic) == name for topic in failed) and not self._record.is_subscribed_again(name):
                self._record.append(SUBSCRIBED_AGAIN, namespace=name)
        return AbortResult(tuple(taken), whole, snapshot, names, tuple(unloaded), made, (*errors, *failed.values()))

    def _missing(
        self, namespaces: Sequence[str], snapshot: MigrationSnapshot, expected: Mapping[str, ExpectedTopic]
    ) -> Iterator[tuple[str, str, Position]]:
        """Return topic, subscription and end of what blue deleted since the newest start, unless it was made again.

        One that is deleted after that stays deleted.
        """
        wanted = {name for name in namespaces if not self._record.is_subscribed_again(name)}
        for seen in snapshot.of_state(TopicState.ROLLED_BACK):
            one = expected.get(seen.topic)
            if (
                one is None
                or seen.info is None
                or seen.info.terminated is None
                or namespace_of(seen.topic) not in wanted
            ):
                continue
            there = {cursor.name for cursor in seen.cursors}
            for name in one.subscriptions:
                if name not in there:
                    yield seen.topic, name, seen.info.terminated

    def _make_again(self, missing: Sequence[tuple[str, str, Position]]) -> tuple[tuple[str, ...], dict[str, str]]:
        def make(one: tuple[str, str, Position]) -> str:
            try:
                self._admin.create_subscription(*one)
            except BookwardenError as error:
                return str(error)
            return ""

        made, failed = list[str](), dict[str, str]()
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="subscriptions") as pool:
            for (topic, name, _), error in zip(missing, pool.map(make, missing), strict=True):
                if error:
                    failed[topic] = (
                        f"{name} of {topic}, which was drained, was not made again: {error}; run abort again before "
                        "its application is restarted with blue's URL, or it may read all of the topic a second time"
                    )
                else:
                    made.append(f"{name} of {topic}")
        return tuple(made), failed

    def _unload(self, topics: Sequence[str]) -> tuple[list[str], list[str]]:
        done, errors = list[str](), list[str]()
        for place, topic in enumerate(topics, 1):
            try:
                self._admin.unload(topic)
            except PulsarTimeoutError as error:
                more = f" and {len(topics) - place} more" if place < len(topics) else ""
                errors.append(f"{topic}{more} was not unloaded, and may be fenced: {error}; run abort again")
                break
            except BookwardenError as error:
                errors.append(f"{topic} was not unloaded, and may be fenced: {error}; run abort again")
            else:
                done.append(topic)
        return done, errors

    def _abort_cluster(self) -> bool:
        cluster = self._blue.cluster
        flag = self._admin.read_flag(cluster)
        if flag is None or not flag.migrated:
            return False
        off = ClusterFlag(False, flag.urls)
        self._admin.write_flag(cluster, off)
        if self._admin.read_flag(cluster) != off:
            raise PulsarError(
                f"the flag of cluster {cluster} was taken off, and its broker still has it: run abort again"
            )
        self._record.append("cluster flag off", cluster=cluster)
        return True

    def _abort_one(self, namespace: str) -> bool:
        was = self._admin.is_migrated(namespace)
        if was:
            self._admin.set_migrated(namespace, False)
            if self._admin.is_migrated(namespace):
                raise PulsarError(
                    f"the flag of {namespace} was taken off, and its broker still has it: run abort again"
                )
        self._record.append(ABORTED, namespace=namespace, by="abort", was_flagged=was)
        return was


_ATTEMPTS: Final = 20
_PAUSE_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class ReopenResult:
    """The result for one topic; ``done`` is False where it was open already, or only planned.

    ``subscriptions`` are those that are made again.
    """

    topic: str
    done: bool
    said: str
    subscriptions: tuple[str, ...] = ()


class TopicReopener:
    """Reopens topics of blue, and puts back what it changed while nothing else has changed it since."""

    def __init__(
        self, blue: ClusterSide, record: MigrationRecord, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._blue = blue
        self._nodes = blue.nodes
        self._admin = blue.admin
        self._record = record
        self._sleep = sleep

    def plan(self, topic: str) -> ReopenResult:
        """Check that it can be reopened, and change nothing; RefusedError or NotFoundError where it cannot."""
        name = TopicName.parse(topic)
        missing = () if self._is_done(name) else self._missing(name)
        again = f"; subscriptions that blue deleted are made again: {', '.join(missing)}" if missing else ""
        if self._check(name) is None:
            return ReopenResult(topic, False, f"accepts messages already{again}", missing)
        return ReopenResult(topic, False, f"would be unloaded, and its node changed{again}", missing)

    def reopen(self, topic: str) -> ReopenResult:
        """Have it accept messages; may be killed at any moment and run again.

        It is unloaded, and the change is refused while a broker has it loaded again. After the change it is unloaded
        once more where it is loaded: a broker that loaded it in between has read the node as it was. Subscriptions that
        blue deleted once they were drained are made again, behind what they had read; after a reopening that was
        completed none is: it was deleted since.
        """
        name = TopicName.parse(topic)
        if self._is_done(name):
            return ReopenResult(topic, False, "accepts messages already")
        for _ in range(_ATTEMPTS):
            raw = self._check(name)
            if raw is None:
                # Perhaps by an earlier run that was killed before it had done the rest.
                return self._completed(name, "accepts messages already", False)
            self._admin.unload(topic)
            if topic not in self._blue.loaded_topics() and self._change(name, *raw):
                return self._completed(name, "reopened", True)
            self._sleep(_PAUSE_S)
        raise RefusedError(
            f"a broker loads {topic} again each time it is unloaded: its clients keep it. Stop its producers and "
            "consumers, at least those that try all the time, and run this again; nothing was changed"
        )

    def plan_back(self, topic: str) -> ReopenResult:
        """Check that the newest reopening can be undone, and change nothing; as `put_back` otherwise."""
        if self._restorable(topic) is None:
            return ReopenResult(topic, False, "is as it was before it was reopened")
        return ReopenResult(topic, False, "would be put back: it would accept no message")

    def put_back(self, topic: str) -> ReopenResult:
        """Undo the newest reopening, if the node is still as that left it; RefusedError where it is not."""
        found = self._restorable(topic)
        if found is None:
            return ReopenResult(topic, False, "is as it was before it was reopened")
        self._nodes.replace_value(*found)
        return ReopenResult(topic, True, "put back: it accepts no message")

    def _restorable(self, topic: str) -> tuple[str, bytes, int] | None:
        """Return the managed ledger, the value from before and the version now; None where it is as it was."""
        name = TopicName.parse(topic)
        event = self._record.reopening(str(name))
        if event is None:
            raise NotFoundError(f"no reopening of {topic} is recorded in this folder")
        before, after = (base64.b64decode(event[key]) for key in ("before", "after"))
        now = self._nodes.read_value(name.managed_ledger)
        if now is not None and now[0] == before:
            return None
        if str(name) in self._blue.loaded_topics():
            raise RefusedError(f"a broker has {topic} loaded, and so it is in use: it stays open")
        if now is None or now[0] != after:
            raise RefusedError(
                f"{topic} changed since it was reopened, so it has been in use: to terminate it now would lose "
                "nothing, but was not asked for; start its migration again instead"
            )
        return name.managed_ledger, before, now[1]

    def _completed(self, name: TopicName, said: str, done: bool) -> ReopenResult:
        if str(name) in self._blue.loaded_topics():
            self._admin.unload(str(name))
        made = self._missing(name)
        for subscription in made:
            self._admin.create_subscription(str(name), subscription, self._end_of(name))
        self._record.append(REOPENED, topic=str(name), namespace=namespace_of(str(name)))
        return ReopenResult(str(name), done, f"{said}; made again: {', '.join(made)}" if made else said, made)

    def _is_done(self, name: TopicName) -> bool:
        """Return whether nothing is left of the newest reopening."""
        return self._check(name) is None and self._record.is_reopened(str(name))

    def _missing(self, name: TopicName) -> tuple[str, ...]:
        """List the subscriptions that it had when its migration began, and has not any more."""
        expected = self._record.expected([namespace_of(str(name))]).get(str(name))
        nodes = self._nodes.topic(name.managed_ledger)
        if expected is None or nodes is None:
            return ()
        there = set(map(decode_local_name, nodes.cursors))
        return tuple(one for one in expected.subscriptions if one not in there)

    def _end_of(self, name: TopicName) -> Position:
        """Return the last entry that the topic had when it was marked: all before it was read."""
        event = self._record.reopening(str(name))
        info = None if event is None else decode_managed_ledger(base64.b64decode(event["before"]))
        if info is None or info.terminated is None:
            raise NotFoundError(
                f"no reopening of {name} is recorded in this folder: its subscriptions are not made again"
            )
        return info.terminated

    def _check(self, name: TopicName) -> tuple[bytes, int] | None:
        """Return the node to be changed and its version, None where nothing has to be; raise where it must not be."""
        namespace = namespace_of(str(name))
        if self._nodes.is_cluster_flagged(self._blue.cluster) or self._nodes.is_flagged(namespace):
            raise RefusedError(f"{namespace} is flagged, and would mark {name} again: `cluster-migration abort` first")
        read = self._nodes.read_value(name.managed_ledger)
        if read is None:
            raise NotFoundError(f"blue has no topic {name}: for a partitioned one name each partition")
        info = decode_managed_ledger(read[0])
        if info.terminated is None:
            return None
        if not is_marked_by_migration(info):
            raise RefusedError(f"{name} was terminated by its user, and not by a migration: it stays as it is")
        return read

    def _change(self, name: TopicName, before: bytes, version: int) -> bool:
        after = without_termination(before, MIGRATED_PROPERTY)
        texts = {key: base64.b64encode(value).decode() for key, value in (("before", before), ("after", after))}
        self._record.append(REOPENING, topic=str(name), namespace=namespace_of(str(name)), version=version, **texts)
        try:
            self._nodes.replace_value(name.managed_ledger, after, version)
        except LostRaceError:
            return False
        except OutcomeUnknownError:
            read = self._nodes.read_value(name.managed_ledger)
            return read is not None and read[0] == after
        return True
