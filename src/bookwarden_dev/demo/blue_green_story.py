"""The story of a move from blue to green: two real clusters, and producers and consumers that run all the while."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from bookwarden.cluster_migration.finishing import MigrationFinisher, MigrationVerification, verify_migration
from bookwarden.cluster_migration.green_resources import GreenResources
from bookwarden.cluster_migration.observing import MigrationSnapshot
from bookwarden.cluster_migration.preparing.operation import Preparation
from bookwarden.cluster_migration.readiness.checks import evaluate
from bookwarden.cluster_migration.readiness.findings import CheckResult, Override, blocking
from bookwarden.cluster_migration.releasing import ContinuousReleaser, TopicReleaser
from bookwarden.cluster_migration.starting import MigrationStarter, StartResult
from bookwarden.cluster_migration.states import TopicState
from bookwarden.cluster_migration.watching import BrokerHealth, DrainOutcome, follow
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.config import Settings
from bookwarden.errors import RefusedError, ServerError
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.cluster_migration import ClusterMigration, redirect_urls
from bookwarden_dev.demo.traffic import FAILOVER, KEY_SHARED, SHARED, Account, Flow, Traffic
from bookwarden_dev.devcluster.blue_green import BlueAndGreen

NAMESPACE: Final = "demo/live"
_ACCEPTED: Final = (Override.IDLE_SUBSCRIPTIONS,)
_MESSAGES: Final = 100
_PATIENCE_S: Final = 120.0
_LOOK_EVERY_S: Final = 1.0
# Longer than a client that is well needs to get to green.
_HANGING_S: Final = 15.0
Say = Callable[[str], None]


def _flows() -> list[Flow]:
    def topic(name: str) -> str:
        return f"persistent://{NAMESPACE}/{name}"

    return [
        Flow(topic("quick")),
        Flow(topic("backlog"), per_second=25, pause_s=0.05),
        Flow(topic("failover"), kind=FAILOVER, consumers=2),
        Flow(topic("by-key"), kind=KEY_SHARED, consumers=2, keys=7),
        Flow(topic("partitioned"), kind=SHARED),
        Flow(topic("delayed"), per_second=5, kind=SHARED, deliver_after_s=6),
        Flow(topic("consumer-away"), is_away=True),
    ]


@dataclass(frozen=True, slots=True)
class MovedTopic:
    """A topic at the end of the story."""

    account: Account
    on_blue: int  #: Entries that blue had when it was marked.
    on_green: int  #: Entries of green.
    kept: int  #: Partitions that blue still has a node of.


@dataclass(frozen=True, slots=True)
class MoveFinale:
    """The end of the story."""

    topics: tuple[MovedTopic, ...]
    drained_s: float  #: From the flag until blue had nothing left to read.
    marks: int  #: Pending deletions sent for what blue had.
    faults: tuple[str, ...]  #: What `verify` found.
    leftovers: tuple[str, ...]  #: Topics that brokers keep for themselves.

    @property
    def lost(self) -> int:
        """Messages that no consumer received."""
        return sum(end.account.tally.lost for end in self.topics)

    @property
    def as_it_should(self) -> bool:
        """Whether every message arrived once, on both clusters together, and blue kept no topic."""
        return (
            self.lost == 0
            and not self.faults
            and all(not end.account.tally.doubled and not end.account.tally.send_errors for end in self.topics)
            and all(end.on_blue and end.on_green and not end.kept for end in self.topics)
        )


class MoveStory:
    """Plays the acts in order, on clusters that run; ``settings`` are bookwarden's on them."""

    def __init__(self, clusters: BlueAndGreen, settings: Settings, say: Say) -> None:
        self._clusters = clusters
        self._settings = settings
        self._say = say

    def play(self) -> MoveFinale:
        """Play all acts; raises BookwardenError where one cannot go on."""
        flows = _flows()
        self._create_topics(flows)
        with Cluster(self._settings) as cluster:
            topics = cluster.deletion_topics
            topics.setup(dry_run=False).run()
        with ClusterMigration(self._settings) as migration, Traffic(self._clusters.blue.connection(), flows) as traffic:
            self._say(f"{len(flows)} topics with producers and consumers on blue; one consumer leaves")
            traffic.start()
            traffic.wait_for(_MESSAGES, _PATIENCE_S)
            self._prepare(migration)
            begin = time.monotonic()
            self._start(migration)
            self._watch(migration, traffic)
            drained_s = time.monotonic() - begin
            traffic.wait_for(_MESSAGES, _PATIENCE_S)
            self._say("the producers stop; each message is looked for")
            accounts = traffic.stop()
            return self._finish(migration, accounts, drained_s)

    def _create_topics(self, flows: Iterable[Flow]) -> None:
        with closing(PulsarAdmin(self._clusters.blue.connection(), timeout_s=_PATIENCE_S)) as admin:
            admin.put(f"/tenants/{NAMESPACE.partition('/')[0]}", {"allowedClusters": ["blue"]})
            admin.put(f"/namespaces/{NAMESPACE}", {"replication_clusters": ["blue"]})
            for flow in flows:
                is_partitioned = flow.topic.endswith("/partitioned")
                path = topic_path(flow.topic)
                admin.put(f"{path}/partitions", 3) if is_partitioned else admin.put(path)

    def _prepare(self, migration: ClusterMigration) -> None:
        def blocked() -> list[CheckResult]:
            return blocking(evaluate(migration.preflight.observe([NAMESPACE])), _ACCEPTED)

        before = blocked()
        self._say(f"preflight: {len(before)} checks block: {', '.join(one.check for one in before)}")
        preparation = Preparation(migration.preflight, [NAMESPACE], migration.journal)
        done = preparation.execute(preparation.plan())
        self._say(f"prepare: {len(done.done)} steps, on green what it lacks, on blue that nothing is deleted")
        left = blocked()
        if left:
            raise RefusedError(f"{left[0].check} blocks after the preparation: {left[0].seen}")

    def _start(self, migration: ClusterMigration) -> None:
        blue, urls = migration.blue, redirect_urls(migration.clients)
        with closing(GreenResources(blue, migration.green, migration.record)) as resources:
            starting = MigrationStarter(blue, migration.observer, migration.record, urls, resources, self._say)
            starting.set_urls()
            started: StartResult = starting.start(NAMESPACE, [one.value for one in _ACCEPTED])
        if not started.ok:
            raise ServerError(f"{started.left[0] if started.left else NAMESPACE} was not marked; see blue's broker log")
        self._say(f"start: {started.marked} of {started.topics} topics and partitions are marked")

    def _watch(self, migration: ClusterMigration, traffic: Traffic) -> None:
        expected, shown = migration.record.expected([NAMESPACE]), ""
        deadline, arrived = time.monotonic() + _PATIENCE_S, False
        as_it_goes = ContinuousReleaser(TopicReleaser(migration.blue, migration.observer, migration.record))
        health, stalled = BrokerHealth(migration.blue), _Stalled()

        def snapshot() -> MigrationSnapshot:
            return migration.observer.snapshot([NAMESPACE], expected)

        for step in follow(snapshot, every_s=_LOOK_EVERY_S, health=health, unanswered=lambda: as_it_goes.timed_out):
            states = ", ".join(f"{state.value} {count}" for state, count in step.snapshot.states.items())
            if states != shown:
                self._say(f"watch: {states}; {step.snapshot.unread} entries unread")
                shown = states
            hanging = stalled.after(step.snapshot)
            if hanging:
                self._say(
                    f"consumers of {', '.join(hanging)} hang in the client, and are restarted, as the runbook says"
                )
                traffic.restart_consumers(hanging)
            if not arrived and all(seen.topic.endswith("/consumer-away") for seen in step.holding):
                self._say("the consumer that was away comes back, with blue's URL")
                traffic.arrive()
                arrived = True
            for reason in as_it_goes.take(step.snapshot.topics):
                self._say(f"not released: {reason}")
            if step.ending is DrainOutcome.DRAINED:
                return
            if step.ending is DrainOutcome.DEADLOCKED:
                raise ServerError(
                    f"broker {', '.join(step.deadlocked)} of blue is deadlocked, as released brokers can be where a "
                    "migrated topic ends (docs/cluster-migration.md, 'A deadlocked broker'); run the demo again"
                )
            if time.monotonic() > deadline:
                raise ServerError(f"not drained within {_PATIENCE_S:.0f} s: {states}")

    def _finish(self, migration: ClusterMigration, accounts: list[Account], drained_s: float) -> MoveFinale:
        blue, green, observer, record = migration.blue, migration.green, migration.observer, migration.record
        verified = verify_migration(blue, green, observer, record, [NAMESPACE], [one.value for one in _ACCEPTED])
        faults = [f"{one.topic}: {fault}" for one in verified.topics for fault in one.faults]
        self._say(f"verify: {len(verified.topics)} topics and partitions, {len(faults)} not done")
        finishing = MigrationFinisher(blue, green, observer, migration.removal, record)
        plan = finishing.plan([NAMESPACE], verified)
        removed = list(finishing.carry_out(plan))
        finishing.close([NAMESPACE], plan, removed)
        marks = sum(one.marks for one in removed)
        self._say(f"finish: {sum(one.done for one in removed)} topics removed from blue, {marks} ledgers marked")
        left = [seen.topic for seen in observer.snapshot([NAMESPACE]).topics]
        topics = tuple(_moved(account, verified, left) for account in accounts)
        faults += list(verified.faults) + [one.problem for one in removed if one.problem]
        return MoveFinale(topics, drained_s, marks, tuple(faults), plan.leftovers)


class _Stalled:
    """Topics whose consumers reach neither side: the C++ client can hang where it is migrated (docs/findings.md)."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._shown: set[str] = set()

    def after(self, snapshot: MigrationSnapshot) -> list[str]:
        """Return those that have been so for some time now, each once."""
        now = time.monotonic()
        stalled = [*snapshot.of_state(TopicState.CONSUMERS_LEFT), *snapshot.of_state(TopicState.STUCK)]
        topics = {seen.topic.partition("-partition-")[0] for seen in stalled}
        topics = {topic for topic in topics if not topic.endswith("/consumer-away")} - self._shown
        self._since = {topic: self._since.get(topic, now) for topic in topics}
        found = sorted(topic for topic, since in self._since.items() if now - since > _HANGING_S)
        self._shown |= set(found)
        return found


def _moved(account: Account, verified: MigrationVerification, left: list[str]) -> MovedTopic:
    own = [one for one in verified.topics if one.topic.partition("-partition-")[0] == account.flow.topic]
    kept = [topic for topic in left if topic.partition("-partition-")[0] == account.flow.topic]
    return MovedTopic(
        account, sum(one.began_with or 0 for one in own), sum(one.on_green or 0 for one in own), len(kept)
    )
