"""The end of a migration before its time: flags taken off, and a list of what was marked by then.

A topic whose producers came to no side may be fenced: its broker lets nobody in, consumers neither. It is unloaded, so
that what it has can be read; without a flag whoever asks has it loaded again.

Blue deletes a subscription of a marked topic once it is drained. An application that is restarted with blue's URL would
make it again, from its first message on, and read the whole topic a second time; so it is made again here, at its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from bookwarden.blue_green.observing import Look, Observer
from bookwarden.blue_green.record import ABORTED, SUBSCRIBED_AGAIN, MigrationRecord
from bookwarden.blue_green.scope import namespace_of
from bookwarden.blue_green.sides.cluster import ClusterSide
from bookwarden.blue_green.states import Expected, TopicState
from bookwarden.blue_green.watching import cure_of
from bookwarden.errors import BookwardenError, PulsarError, PulsarTimeoutError
from bookwarden.ledgers.managed_ledger import Position
from bookwarden.redirects import ClusterFlag

_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True)
class Aborted:
    """The result; what is on neither side may be held by a fence, which unloading ends."""

    taken_off: tuple[str, ...]  #: Namespaces whose flag was taken off now.
    cluster: bool  #: The flag of the cluster was, too.
    look: Look  #: Of blue behind it.
    on_no_side: tuple[str, ...] = ()  #: Marked topics whose producers green has not seen.
    unloaded: tuple[str, ...] = ()  #: Those of them that a broker had, and was told to close.
    made_again: tuple[str, ...] = ()  #: Subscriptions that blue had deleted, with their topics.
    troubles: tuple[str, ...] = ()  #: What could not be done, and why.


class Aborting:
    """Takes flags off, ends fences, and makes drained subscriptions again; may be killed at any moment and run again.

    URLs and marks stay as they are. A broker that is deadlocked is asked for nothing else.
    """

    def __init__(self, blue: ClusterSide, observer: Observer, record: MigrationRecord) -> None:
        self._blue = blue
        self._admin = blue.admin
        self._observer = observer
        self._record = record

    def abort(self, namespaces: Sequence[str]) -> Aborted:
        """Take the flags of these namespaces off, and the cluster's if it is set; read each back."""
        whole = self._abort_cluster()
        taken = [name for name in namespaces if self._abort_one(name)]
        expected = self._record.expected(namespaces)
        # Before the look, whose requests a broker in that state may not answer, nor any later one then.
        brokers = self._blue.deadlocked_brokers()
        look = self._observer.look(namespaces, expected)
        lacking = self._observer.without_producers(look.of_state(TopicState.ROLLED_BACK), expected)
        names = tuple(seen.topic for seen in lacking)
        fenced = [seen.topic for seen in lacking if seen.loaded is not False]
        missing = list(self._missing(namespaces, look, expected))
        if brokers:
            return Aborted(tuple(taken), whole, look, names, troubles=(cure_of(brokers, is_aborted=True),))
        unloaded, troubles = self._unload(fenced)
        made, failed = self._make_again(missing)
        for name in namespaces:
            if not any(namespace_of(topic) == name for topic in failed) and not self._record.is_subscribed_again(name):
                self._record.append(SUBSCRIBED_AGAIN, namespace=name)
        return Aborted(tuple(taken), whole, look, names, tuple(unloaded), made, (*troubles, *failed.values()))

    def _missing(
        self, namespaces: Sequence[str], look: Look, expected: Mapping[str, Expected]
    ) -> Iterator[tuple[str, str, Position]]:
        """Return topic, subscription and end of what blue deleted since the newest start, unless it was made again.

        Whoever deletes one once that is done, has it deleted.
        """
        wanted = {name for name in namespaces if not self._record.is_subscribed_again(name)}
        for seen in look.of_state(TopicState.ROLLED_BACK):
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
        done, troubles = list[str](), list[str]()
        for place, topic in enumerate(topics, 1):
            try:
                self._admin.unload(topic)
            except PulsarTimeoutError as error:
                more = f" and {len(topics) - place} more" if place < len(topics) else ""
                troubles.append(f"{topic}{more} was not unloaded, and may be fenced: {error}; run abort again")
                break
            except BookwardenError as error:
                troubles.append(f"{topic} was not unloaded, and may be fenced: {error}; run abort again")
            else:
                done.append(topic)
        return done, troubles

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
