"""The story of a live switch: two bookie clusters, real producers and consumers, there and back again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.config import Settings
from bookwarden.demo.ledger_places import ClusterLedgers, LedgerPlaces, find_places
from bookwarden.demo.load import Load, TopicTally
from bookwarden.devcluster.bookie_clusters import RunBookies, SwitchablePulsar
from bookwarden.errors import ServerError
from bookwarden.switching.followers import read_followers
from bookwarden.switching.registering import Wanted
from bookwarden.wiring.switching import SwitchingContext, place_of_uri

TOPICS: Final = 6
PER_SECOND: Final = 40
_NAMESPACE: Final = "demo/live"
# More than a ledger of each topic, and not much more.
_MESSAGES: Final = 150
_PATIENCE_S: Final = 120.0
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TopicEnd:
    """A topic at the end of the story."""

    tally: TopicTally
    unread: int  #: Acknowledged messages that a reader from the beginning did not find.
    ledgers: Mapping[str, int]  #: Number of its ledgers in each bookie cluster.


@dataclass(frozen=True, slots=True)
class Turn:
    """A switch, as it went."""

    source: str
    target: str
    followed_s: float  #: From the change of the registry until all brokers followed it.
    longest_gap_s: float  #: Longest time without a confirmed message of some topic, from the switch on.


@dataclass(frozen=True, slots=True)
class SwitchFinale:
    """The end of the story."""

    topics: tuple[TopicEnd, ...]
    turns: tuple[Turn, ...]
    astray: tuple[str, ...]  #: Ledgers that name a bookie of another cluster.

    @property
    def lost(self) -> int:
        """Messages that a consumer or a reader missed."""
        return sum(max(end.tally.lost, end.unread) for end in self.topics)

    @property
    def as_it_should(self) -> bool:
        """Whether nothing was lost, no send failed, and every topic has ledgers on all clusters, each in its own."""
        return (
            self.lost == 0
            and not self.astray
            and all(end.tally.sent and not end.tally.send_errors for end in self.topics)
            and all(all(end.ledgers.values()) for end in self.topics)
        )


class SwitchStory:
    """Plays the acts in order, on servers that do not run yet; ``settings`` are bookwarden's on them."""

    def __init__(self, pulsar: SwitchablePulsar, settings: Settings, say: Say) -> None:
        self._pulsar = pulsar
        self._say = say
        self._context = SwitchingContext(settings)
        self._turns: list[Turn] = []

    def play(self) -> SwitchFinale:
        """Play all acts; raises BookwardenError where one cannot go on."""
        with self._context:
            self._pulsar.start_bookies()
            first, second = self._pulsar.clusters.values()
            self._register(first, bootstrap=True)
            self._pulsar.start_brokers()
            self._wait_for_brokers()
            topics = self._create_topics()
            with Load(self._pulsar.connection(), topics, PER_SECOND) as load:
                self._say(f"{TOPICS} producers and consumers, {PER_SECOND} messages a second each")
                load.start()
                load.wait_for(_MESSAGES, _PATIENCE_S)
                self._register(second)
                self._wait_for_brokers()
                self._turn(load, second.name)
                self._turn(load, first.name)
                self._say("the producers stop; each message is looked for")
                tallies = load.stop()
                unread = load.lost_to_a_reader(self._pulsar.connection())
            return self._finale(tallies, unread)

    def _register(self, bookies: RunBookies, *, bootstrap: bool = False) -> None:
        uri = bookies.metadata_service_uri
        self._say(f"bookie cluster {bookies.name} is registered: {uri}")
        wanted = Wanted(bookies.name, uri, place_of_uri(uri), bootstrap=bootstrap, shared=False)
        self._context.registration.carry_out(wanted)

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

    def _turn(self, load: Load, target: str) -> None:
        """Switch, and let some messages pass."""
        seen = self._context.registry.require()
        source = seen.registry.active
        begin = time.monotonic()
        self._context.registry.replace(seen, seen.registry.switched(target, "demo", int(time.time() * 1000)))
        followed = self._wait_for_brokers() - begin
        load.wait_for(_MESSAGES, _PATIENCE_S)
        self._turns.append(Turn(source, target, followed, load.longest_gap(begin, time.monotonic())))
        self._say(
            f"switched from {source} to {target} while they ran: all brokers followed in {followed * 1000:.0f} ms"
        )

    def _wait_for_brokers(self) -> float:
        """Wait until each broker follows the registry as it is now; return when that was seen."""
        epoch, deadline = self._context.registry.require().registry.epoch, time.monotonic() + _PATIENCE_S
        while True:
            followed = [follower.epoch for follower in read_followers(self._context.pulsar_store)]
            now = time.monotonic()
            if followed == [epoch] * len(self._pulsar.brokers):
                return now
            if now > deadline:
                raise ServerError(f"the brokers follow epochs {followed} of the registry, not {epoch}: see their logs")
            time.sleep(0.002)

    def _finale(self, tallies: list[TopicTally], unread: Mapping[str, int]) -> SwitchFinale:
        places = self._places()
        ends = [
            TopicEnd(tally, unread[tally.topic], places.of_topic(self._context.pulsar_store, tally.topic))
            for tally in tallies
        ]
        return SwitchFinale(tuple(ends), tuple(self._turns), places.astray)

    def _places(self) -> LedgerPlaces:
        return find_places(
            {
                name: ClusterLedgers(self._context.store_at(bookies.store_url), bookies.ledgers_root, bookies.ids)
                for name, bookies in self._pulsar.clusters.items()
            }
        )
