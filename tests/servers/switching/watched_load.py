"""Topics under load while bookie clusters are switched, and what became of their messages and ledgers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from bookwarden.bookie_clusters.brokers import read_brokers
from bookwarden.bookie_clusters.operation import find_order
from bookwarden.bookie_clusters.order import Phase, phase_of
from bookwarden_dev.demo.ledger_places import ledgers_of_topic
from bookwarden_dev.demo.load import Load
from servers.switching.site import SwitchingSite

_TOPICS: Final = 4
_PER_SECOND: Final = 10
_MESSAGES: Final = 10
_PATIENCE_S: Final = 180.0
# The other one where nothing was switched yet.
_ENDS: Final = (Phase.DONE, Phase.REGISTERED)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures, over all topics."""

    sent: int  #: Acknowledged messages.
    send_errors: int
    lost: int  #: Acknowledged, and the subscription never got them.
    unread: int  #: Acknowledged, and a new reader does not find them.
    disordered: int  #: The subscription got them after a later one, for the first time.
    doubled: int  #: Came again to the subscription: what was unacknowledged when a broker went.
    longest_gap_s: float  #: Between two acknowledgements of a topic.
    ledgers: dict[str, int]  #: Of all topics, by bookie cluster.
    astray: tuple[str, ...]  #: Ledgers that name a bookie of another cluster.
    refusals: tuple[str, ...]  #: What the jar of a broker refused.
    unordered: tuple[str, ...]  #: Ledgers that came into a list before others.
    phase: Phase  #: Of the newest switch.

    @property
    def harm(self) -> dict[str, object]:
        """What must not be."""
        found = {
            "nothing sent": self.sent == 0,
            "send errors": self.send_errors,
            "lost": self.lost,
            "unread": self.unread,
            "disordered": self.disordered,
            "astray": self.astray,
            "refusals": self.refusals,
            "unordered": self.unordered,
            "phase": None if self.phase in _ENDS else self.phase,
        }
        return {name: value for name, value in found.items() if value}


class WatchedLoad:
    """A load on topics whose lists of ledgers are watched."""

    def __init__(self, site: SwitchingSite, topics: Sequence[str], load: Load) -> None:
        self.topics = tuple(topics)
        self._site = site
        self._load = load
        self._listed = {topic: frozenset[int]() for topic in topics}
        self._unordered: list[str] = []
        self._refusals: set[str] = set()

    def goes_on(self) -> None:
        """Wait until all topics took more messages; PulsarError if they do not. Then look at their lists."""
        self._load.wait_for(_MESSAGES, _PATIENCE_S)
        self.look()

    def look(self) -> None:
        """Read all lists, what is new in one has to sort after all that was there; and what brokers count."""
        counted = zip(self._site.brokers, self._site.metric("refusals_total"), strict=True)
        self._refusals |= {f"{broker.broker_id} counts {count:g}" for broker, count in counted if count}
        self._site.store.sync()
        for topic, known in self._listed.items():
            listed = ledgers_of_topic(self._site.store, topic)
            late = sorted(ledger for ledger in listed - known if ledger < max(known, default=0))
            self._unordered += [f"{topic} got {late} after {max(known)}"] if late else []
            self._listed[topic] = known | listed

    def end(self) -> Outcome:
        """Stop, and look at everything."""
        tallies = self._load.stop()
        unread = self._load.lost_to_a_reader(self._site.connection)
        self.look()
        places = self._site.places()
        found = find_order(self._site.store)
        listed = frozenset[int]().union(*self._listed.values())
        return Outcome(
            sent=sum(each.sent for each in tallies),
            send_errors=sum(each.send_errors for each in tallies),
            lost=sum(each.lost for each in tallies),
            unread=sum(unread.values()),
            disordered=sum(each.disordered for each in tallies),
            doubled=sum(each.doubled for each in tallies),
            longest_gap_s=max(each.longest_gap_s for each in tallies),
            ledgers={name: len(ids & listed) for name, ids in places.by_cluster.items()},
            astray=places.astray,
            refusals=(*sorted(self._refusals), *_logged_refusals(self._site)),
            unordered=tuple(self._unordered),
            phase=phase_of(self._site.registry(), found.order if found else None, read_brokers(self._site.store)),
        )


@contextlib.contextmanager
def watched_load(site: SwitchingSite, count: int = _TOPICS, per_second: float = _PER_SECOND) -> Iterator[WatchedLoad]:
    """Send to and receive from so many new topics in the block."""
    topics = site.new_topics(count)
    with Load(site.connection, topics, per_second) as load:
        load.start()
        watched = WatchedLoad(site, topics, load)
        watched.goes_on()
        yield watched


def _logged_refusals(site: SwitchingSite) -> tuple[str, ...]:
    """Return what the brokers logged, since their first start: their counters begin anew with each."""
    logs = [broker.process.spec.log_file for broker in site.brokers]
    return tuple(
        line
        for log in logs
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines()
        if " bookwarden.broker." in line and "refused: " in line
    )
