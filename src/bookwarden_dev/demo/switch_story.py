"""The story of a live switch: two bookie clusters, real producers and consumers, there and back again."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bookwarden.bookie_clusters.brokers import read_followers
from bookwarden.bookie_clusters.operation import SwitchOptions
from bookwarden.bookie_clusters.registering import ClusterSpec
from bookwarden.clusters.bookkeeper.service_uris import place_for_brokers
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.config import Settings
from bookwarden.errors import ServerError
from bookwarden.ledgers.metadata import StoredLedger
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.wiring.bookie_clusters import SwitchOperations, registration_of
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.deletion import PhaseOne
from bookwarden_dev.demo.ledger_places import ClusterLedgers, LedgerPlaces, find_places, ledgers_of_topic
from bookwarden_dev.demo.load import Load, TopicTally
from bookwarden_dev.demo.story import command_process, wait_for
from bookwarden_dev.devcluster import ServerProcess
from bookwarden_dev.devcluster.bookie_clusters import RunBookies, SwitchablePulsar

TOPICS: Final = 6
PER_SECOND: Final = 40
_NAMESPACE: Final = "demo/live"
# More than a ledger of each topic, and not much more.
_MESSAGES: Final = 150
_PATIENCE_S: Final = 120.0
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SwitchedTopic:
    """A topic at the end of the story."""

    tally: TopicTally
    unread: int  #: Acknowledged messages that a reader from the beginning did not find.
    ledgers: Mapping[str, int]  #: Number of its ledgers in each bookie cluster.


@dataclass(frozen=True, slots=True)
class SwitchTurn:
    """A switch, as it went."""

    source: str
    target: str
    followed_s: float  #: From the change of the registry until all brokers followed it.
    longest_gap_s: float  #: Longest time without a confirmed message of some topic, from the switch on.


@dataclass(frozen=True, slots=True)
class SwitchFinale:
    """The end of the story."""

    topics: tuple[SwitchedTopic, ...]  #: All that had producers.
    turns: tuple[SwitchTurn, ...]  #: In their order.
    astray: tuple[str, ...]  #: Ledgers that name a bookie of another cluster.
    swept: Mapping[str, int]  #: Number of marks by the outcome of the sweep, which ran across all switches.
    directives: tuple[str, ...]  #: What its rows say of the switch directives.
    left: int  #: Ledgers of the deleted topic that are still there.

    @property
    def lost(self) -> int:
        """Messages that a consumer or a reader missed."""
        return sum(max(end.tally.lost, end.unread) for end in self.topics)

    @property
    def as_it_should(self) -> bool:
        """Whether nothing was lost, no send failed, and every topic has ledgers on all clusters, each in its own.

        And whether the sweep saw each switch, and all of the deleted topic is gone.
        """
        return (
            self.lost == 0
            and not self.astray
            and self.left == 0
            and sum(self.swept.values()) > 0
            and len(self.directives) == len(self.turns)
            and all(end.tally.sent and not end.tally.send_errors for end in self.topics)
            and all(all(end.ledgers.values()) for end in self.topics)
        )


class SwitchStory:
    """Plays the acts in order, on servers that do not run yet; ``settings`` are bookwarden's on them, from a file."""

    def __init__(self, pulsar: SwitchablePulsar, settings: Settings, settings_file: Path, say: Say) -> None:
        self._pulsar = pulsar
        self._settings = settings
        self._file = settings_file
        self._say = say
        self._cluster = Cluster(settings)
        self._operations = SwitchOperations(self._cluster)
        self._turns: list[SwitchTurn] = []

    def play(self) -> SwitchFinale:
        """Play all acts; raises BookwardenError where one cannot go on."""
        with self._cluster:
            self._pulsar.start_bookies()
            first, second = self._pulsar.clusters.values()
            self._register(first, bootstrap=True)
            self._pulsar.start_brokers()
            self._wait_for_brokers()
            topics = self._create_topics()
            with self._sweeping() as sweep, Load(self._pulsar.connection(), topics, PER_SECOND) as load:
                self._say(f"{TOPICS} producers and consumers, {PER_SECOND} messages a second each")
                load.start()
                load.wait_for(_MESSAGES, _PATIENCE_S)
                self._register(second)
                self._wait_for_brokers()
                self._turn(load, second.name, sweep)
                self._turn(load, first.name, sweep)
                self._say("the producers stop; each message is looked for")
                tallies = load.stop()
                unread = load.lost_to_a_reader(self._pulsar.connection())
                places = self._places()
                ends = [
                    SwitchedTopic(
                        tally, unread[tally.topic], places.of_topic(self._cluster.registry.store, tally.topic)
                    )
                    for tally in tallies
                ]
                left = self._delete(topics[-1], sweep)
            rows = self._rows()
            swept = Counter(row["outcome"] for row in rows if row["ledger_id"] is not None)
            return SwitchFinale(tuple(ends), tuple(self._turns), places.astray, swept, _directives(rows), left)

    @contextmanager
    def _sweeping(self) -> Iterator[ServerProcess]:
        self._say("a sweep runs across all that follows (Spark)")
        with Cluster(self._settings) as cluster:
            cluster.deletion_topics.setup().run()
        sweep = command_process(self._file, "sweep")
        sweep.start()
        try:
            yield sweep
        finally:
            sweep.stop()

    def _delete(self, topic: str, sweep: ServerProcess) -> int:
        """Delete a topic that has ledgers on both clusters, and wait for the sweep; return how many are left."""
        store = self._cluster.registry.store
        ledger_ids = sorted(ledgers_of_topic(store, topic))
        with Cluster(self._settings) as cluster:
            topics = cluster.deletion_topics
            plan = PhaseOne(cluster).removal.plan_topic(topic, force=True)
            if not (done := plan.carry_out()).done:
                raise ServerError(f"delete {topic}: {done.problem}")
            self._say(f"topic {topic} is deleted, and its {len(ledger_ids)} ledgers on both clusters are marked")
            wait_for("nothing to be in flight", lambda: not topics.in_flight().messages, self._file.parent, sweep)
            readings = cluster.bookkeeper.catalog.read_many(ledger_ids)
        return sum(isinstance(reading, StoredLedger) for reading in readings)

    def _rows(self) -> list[dict[str, Any]]:
        # Imported late: it needs the extra `spark`, which the demo's help does not.
        from bookwarden.pipelines.streams.outcome_table import read_outcomes

        return read_outcomes(self._settings.sweep.outcomes)

    def _register(self, bookies: RunBookies, *, bootstrap: bool = False) -> None:
        uri = bookies.metadata_service_uri
        self._say(f"bookie cluster {bookies.name} is registered: {uri}")
        wanted = ClusterSpec(bookies.name, uri, place_for_brokers(uri), bootstrap=bootstrap, shared=False)
        registration_of(self._cluster).register(wanted, wait_s=_PATIENCE_S)

    def _create_topics(self) -> list[str]:
        topics = [f"persistent://{_NAMESPACE}/topic-{number}" for number in range(1, TOPICS + 1)]
        with closing(PulsarAdmin(self._pulsar.connection(), timeout_s=_PATIENCE_S)) as admin:
            clusters = [name for name in admin.get_json("/clusters") if name != "global"]
            admin.put(f"/tenants/{_NAMESPACE.partition('/')[0]}", {"allowedClusters": clusters})
            admin.put(f"/namespaces/{_NAMESPACE}")
            keep = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
            admin.post(f"/namespaces/{_NAMESPACE}/retention", keep)
            for topic in topics:
                admin.put(topic_path(topic))
        return topics

    def _turn(self, load: Load, target: str, sweep: ServerProcess) -> None:
        """Switch as the command does, and let some messages pass, until the sweep has seen it too."""
        switch = self._operations.switch
        begin = time.monotonic()
        result = switch.run(switch.plan(target), SwitchOptions(wait_s=_PATIENCE_S), self._operations.observer)
        switched, precheck = result.switched, result.precheck
        if switched is None:
            failing = precheck.failing if precheck is not None else ()
            raise ServerError(f"nothing was switched to {target}: {'; '.join(one.seen for one in failing)}")
        if not switched.is_whole:
            raise ServerError(f"the switch to {target} is not whole: {', '.join(switched.order.errors)}")
        source, followed = switched.order.source, max(one.seconds for one in switched.followed)
        load.wait_for(_MESSAGES, _PATIENCE_S)
        home = self._file.parent
        wait_for("the row of the switch", lambda: len(_directives(self._rows())) > len(self._turns), home, sweep)
        self._turns.append(SwitchTurn(source, target, followed, load.longest_gap(begin, time.monotonic())))
        self._say(
            f"switched from {source} to {target} while they ran: all brokers followed in {followed * 1000:.0f} ms"
        )

    def _wait_for_brokers(self) -> float:
        """Wait until each broker follows the registry as it is now; return when that was seen."""
        epoch, deadline = self._cluster.registry.require().registry.epoch, time.monotonic() + _PATIENCE_S
        while True:
            followed = [follower.epoch for follower in read_followers(self._cluster.registry.store)]
            now = time.monotonic()
            if followed == [epoch] * len(self._pulsar.brokers):
                return now
            if now > deadline:
                raise ServerError(f"the brokers follow epochs {followed} of the registry, not {epoch}: see their logs")
            time.sleep(0.002)

    def _places(self) -> LedgerPlaces:
        stores = self._cluster.registry.stores
        return find_places(
            {
                name: ClusterLedgers(stores.at(bookies.store_url), bookies.ledgers_root, bookies.ids)
                for name, bookies in self._pulsar.clusters.items()
            }
        )


def _directives(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(row["reason"] for row in rows if row["outcome"] == Outcome.DIRECTIVE.value)
