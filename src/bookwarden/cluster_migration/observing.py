"""A look at a migration: the state of every topic of a scope, from the metadata, and what only brokers know."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Final

from bookwarden.cluster_migration.record import MigrationRecord
from bookwarden.cluster_migration.scope import holds_messages, is_brokers_own, namespace_of
from bookwarden.cluster_migration.sides.cluster import ClusterSide
from bookwarden.cluster_migration.states import (
    DONE,
    CursorStatus,
    ExpectedTopic,
    TopicState,
    TopicStatus,
    unread_entries,
)
from bookwarden.clusters.pulsar.metadata.migrations import TopicNodes
from bookwarden.errors import (
    BookwardenError,
    FormatError,
    NotFoundError,
    PulsarError,
    PulsarTimeoutError,
    SilentBrokerError,
)
from bookwarden.ledgers.managed_ledger import COMPACTION_CURSOR, CursorInfo, ManagedLedgerInfo
from bookwarden.ledgers.names import TopicName, decode_local_name

_AT_ONCE: Final = 16
# A request that waits for a deadlocked topic keeps a thread of its broker's for ever, of those that answer all others.
_ASKED_AGAIN_AFTER_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class MigrationSnapshot:
    """The scope at one moment; ``restarted`` names brokers that came, went or restarted since the one before."""

    at_ms: int  #: By this machine's clock.
    topics: tuple[TopicStatus, ...] = ()  #: Of the scope, gone ones that are known too.
    flagged: Mapping[str, bool] = field(default_factory=dict)  #: By namespace.
    errors: tuple[str, ...] = ()  #: Why something of it is not known.
    restarted: tuple[str, ...] = ()  #: Names of brokers.
    late: tuple[tuple[str, str, int], ...] = ()  #: Subscriptions that came too late, by the record.
    unanswered: tuple[str, ...] = ()  #: Topics whose brokers gave no answer in time when they were asked for stats.

    def of_state(self, *states: TopicState) -> list[TopicStatus]:
        """List the topics in one of these states."""
        return [seen for seen in self.topics if seen.state in states]

    def repeated(self, at_ms: int, error: str) -> MigrationSnapshot:
        """Return the same snapshot at a later moment, with the reason why there is no newer one."""
        return replace(self, at_ms=at_ms, errors=(error,), restarted=())

    @property
    def states(self) -> dict[TopicState, int]:
        """Number of topics in each state that there is one in, in the order of states."""
        counts = Counter(seen.state for seen in self.topics)
        return {state: counts[state] for state in TopicState if counts[state]}

    @property
    def unread(self) -> int:
        """Entries that are left on blue."""
        return sum(seen.unread for seen in self.topics)

    @property
    def done(self) -> int:
        """Number of topics that have nothing left on blue."""
        return len(self.of_state(*DONE))


class MigrationObserver:
    """Looks at the topics of namespaces on blue; changes nothing, and loads no topic.

    ``expected`` are the topics that were there when the migration began, by name: of these the gone ones are known.
    The record has blue's name while no broker reports it.
    """

    def __init__(self, blue: ClusterSide, record: MigrationRecord, green: ClusterSide | None = None) -> None:
        self._blue = blue
        self._nodes = blue.nodes
        self._record = record
        self._green = green
        self._brokers: Mapping[str, int] | None = None
        self._found_on_green: set[tuple[str, str]] = set()
        #: When topics' brokers gave no answer in time; these are not asked for their stats for a while.
        self._unanswered: dict[str, float] = {}

    @property
    def found_on_green(self) -> frozenset[tuple[str, str]]:
        """The clients that green was seen to have: topic and subscription, "" for the producers."""
        return frozenset(self._found_on_green)

    @property
    def cluster(self) -> str:
        """Blue's name."""
        return self._record.cluster(lambda: self._blue.cluster)

    def flagged_namespaces(self) -> Sequence[str]:
        """List the namespaces that are migrated themselves."""
        return self._nodes.flagged_namespaces()

    def snapshot(
        self, namespaces: Sequence[str], expected: Mapping[str, ExpectedTopic] | None = None
    ) -> MigrationSnapshot:
        """Observe all topics of these namespaces; StoreError or FormatError where the metadata cannot be read."""
        at_ms, errors = int(time.time() * 1000), list[str]()
        restarted, flagged = self._restarted(), self._flagged(namespaces)
        # Before the nodes: a topic that is deleted between both reads is gone, and not one that no broker has loaded.
        loaded = self._loaded(errors)
        read = [(name, nodes) for name in namespaces for nodes in self._nodes.topics(name)]
        wanted = expected or {}
        topics = self._see_all(read, flagged, loaded, wanted)
        there = {seen.topic for seen in topics}
        gone = [TopicStatus(name, None, True) for name in wanted if name not in there]
        errors += sorted({seen.error for seen in topics if seen.error})
        every = sorted([*topics, *gone], key=lambda seen: seen.topic)
        silent = tuple(seen.topic for seen in topics if seen.topic in self._unanswered)
        return MigrationSnapshot(at_ms, tuple(every), flagged, tuple(errors), restarted, unanswered=silent)

    def status_of(self, topics: Sequence[str]) -> list[TopicStatus]:
        """Observe these topics, or partitions, alone, in the order asked; errors are as for `snapshot`."""
        flagged = self._flagged({namespace_of(topic) for topic in topics})
        loaded = self._loaded([])
        found = []
        for topic in topics:
            nodes, is_flagged = self._nodes.topic(TopicName.parse(topic).managed_ledger), flagged[namespace_of(topic)]
            is_loaded = _is_loaded(topic, loaded)
            gone = TopicStatus(topic, None, is_flagged)
            found.append(gone if nodes is None else self._see(topic, nodes, is_flagged, is_loaded, None))
        return found

    def without_producers(
        self, topics: Iterable[TopicStatus], expected: Mapping[str, ExpectedTopic]
    ) -> list[TopicStatus]:
        """List the marked topics that had a producer when it began, of which green has seen none; flag or not."""
        had = [seen for seen in topics if seen.is_marked and (one := expected.get(seen.topic)) and one.had_producer]
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="producers") as pool:
            lacking = pool.map(lambda seen: self._lacking_on_green(seen.topic, ("",)), had)
            return [seen for seen, left in zip(had, lacking, strict=True) if left]

    def _flagged(self, namespaces: Collection[str]) -> dict[str, bool]:
        everywhere = self._nodes.is_cluster_flagged(self.cluster)
        return {name: everywhere or self._nodes.is_flagged(name) for name in namespaces}

    def _restarted(self) -> tuple[str, ...]:
        now, before = self._nodes.brokers(), self._brokers
        self._brokers = now
        if before is None:
            return ()
        return tuple(sorted(name for name in {*now, *before} if now.get(name) != before.get(name)))

    def _loaded(self, errors: list[str]) -> Collection[str] | None:
        try:
            return self._blue.loaded_topics()
        except SilentBrokerError as error:
            errors.append(f"a broker does not say which topics it has: {error}")
            return _PartlyLoaded(error.topics)
        except (PulsarError, NotFoundError, FormatError) as error:
            errors.append(f"a broker does not say which topics it has: {error}")
            return None

    def _see_all(
        self,
        read: Iterable[tuple[str, TopicNodes]],
        flagged: Mapping[str, bool],
        loaded: Collection[str] | None,
        expected: Mapping[str, ExpectedTopic],
    ) -> list[TopicStatus]:
        named = [(TopicName.of_managed_ledger(nodes.managed_ledger), name, nodes) for name, nodes in read]
        ours = [(str(topic), name, nodes) for topic, name, nodes in named if not is_brokers_own(topic)]

        def see(one: tuple[str, str, TopicNodes]) -> TopicStatus:
            topic, namespace, nodes = one
            is_loaded = _is_loaded(topic, loaded)
            return self._see(topic, nodes, flagged[namespace], is_loaded, expected.get(topic))

        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="topics") as pool:
            return list(pool.map(see, ours))

    def _see(
        self, topic: str, nodes: TopicNodes, flagged: bool, loaded: bool | None, expected: ExpectedTopic | None
    ) -> TopicStatus:
        info = nodes.info
        cursors = {decode_local_name(name): cursor for name, cursor in nodes.cursors.items()}
        relevant = {name: cursor for name, cursor in cursors.items() if holds_messages(name)}
        seen = TopicStatus(topic, info, flagged, loaded, compacted=COMPACTION_CURSOR in cursors)
        if info.terminated is None:
            return replace(seen, cursors=tuple(CursorStatus(name, None) for name in relevant))
        stats, error = self._stats(topic) if loaded and relevant else (None, "")
        if stats is not None:
            publishers, found = len(stats.get("publishers") or ()), _cursors_by_stats(relevant, stats)
        else:
            publishers, found = None, tuple(self._by_nodes(info, name, cursor) for name, cursor in relevant.items())
        seen = replace(seen, publishers=publishers, cursors=found, error=error)
        if not flagged or expected is None:
            return seen
        # Consumers stay on blue until they have read what it has.
        readers = expected.read_by if seen.is_read else ()
        lacking = self._lacking_on_green(topic, ("", *readers) if expected.had_producer else readers)
        return replace(seen, green_lacks_producer="" in lacking, green_lacks=tuple(name for name in lacking if name))

    def _by_nodes(self, info: ManagedLedgerInfo, name: str, cursor: CursorInfo) -> CursorStatus:
        return CursorStatus(name, unread_entries(info, self._nodes.mark_delete(cursor)))

    def _stats(self, topic: str) -> tuple[Mapping[str, Any] | None, str]:
        asked_at = self._unanswered.get(topic)
        if asked_at is not None and time.monotonic() - asked_at < _ASKED_AGAIN_AFTER_S:
            return None, f"{topic}: its broker gave no answer in time, and is asked for its stats again after a minute"
        try:
            found = self._blue.admin.stats(topic)
        except NotFoundError:
            return None, ""
        except PulsarTimeoutError as error:
            self._unanswered[topic] = time.monotonic()
            return None, f"{topic}: {error}"
        except (PulsarError, FormatError) as error:
            return None, f"{topic}: {error}"
        self._unanswered.pop(topic, None)
        return found, ""

    def _lacking_on_green(self, topic: str, wanted: Sequence[str]) -> list[str]:
        """Return which of these subscriptions had no consumer on green yet; "" stands for the producers."""
        left = [name for name in wanted if (topic, name) not in self._found_on_green]
        if self._green is None or not left:
            return []
        try:
            stats = self._green.admin.stats(topic)
        except BookwardenError:
            return left
        subscriptions = stats.get("subscriptions") or {}
        found = [name for name in left if name and (subscriptions.get(name) or {}).get("consumers")]
        found += [""] if stats.get("publishers") else []
        self._found_on_green.update((topic, name) for name in found)
        return [name for name in left if name not in found]


class _PartlyLoaded(frozenset[str]):
    """The topics that some of the brokers have: of another one it is not known whether it is loaded."""


def _is_loaded(topic: str, loaded: Collection[str] | None) -> bool | None:
    if loaded is None or (topic not in loaded and isinstance(loaded, _PartlyLoaded)):
        return None
    return topic in loaded


def _cursors_by_stats(relevant: Collection[str], stats: Mapping[str, Any]) -> tuple[CursorStatus, ...]:
    subscriptions, replication = stats.get("subscriptions") or {}, stats.get("replication") or {}
    seen = []
    for name in sorted(relevant):
        found = subscriptions.get(name)
        if found is not None:
            seen.append(CursorStatus(name, _count(found, "msgBacklog"), len(found.get("consumers") or ())))
        else:
            remote = replication.get(name.rpartition(".")[2])
            seen.append(CursorStatus(name, None if remote is None else _count(remote, "replicationBacklog"), 0))
    return tuple(seen)


def _count(found: Mapping[str, Any], name: str) -> int | None:
    value = found.get(name)
    return value if isinstance(value, int) and value >= 0 else None
