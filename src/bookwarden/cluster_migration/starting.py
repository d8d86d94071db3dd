"""The begin of a migration of a namespace: every topic loaded, the flag set, and each topic proven to be marked."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from bookwarden.cluster_migration.green_resources import GreenResources
from bookwarden.cluster_migration.observing import MigrationObserver, MigrationSnapshot
from bookwarden.cluster_migration.readiness.findings import CheckResult, Override
from bookwarden.cluster_migration.readiness.topics import readers_text
from bookwarden.cluster_migration.record import ABORTED, MigrationRecord
from bookwarden.cluster_migration.scope import is_brokers_own, is_subscription
from bookwarden.cluster_migration.sides.cluster import ClusterSide
from bookwarden.cluster_migration.states import ExpectedTopic, TopicState, entries_of
from bookwarden.errors import BookwardenError, PulsarError, RefusedError
from bookwarden.ledgers.names import TopicName
from bookwarden.redirects import ClusterFlag, RedirectUrls

_AT_ONCE: Final = 16
_INTERVAL: Final = "clusterMigrationCheckDurationSeconds"
# Rounds until each topic must be marked, the one under way not counted.
ROUNDS: Final = 2
# For a broker that takes long over many topics, in addition to the rounds.
_SPARE_S: Final = 10.0
_LOOK_EVERY_S: Final = 0.5
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class StartResult:
    """The result for one namespace; ``left`` are the topics that were not marked, and then the flag is off again."""

    namespace: str  #: Its name.
    topics: int  #: Topics and partitions that were there.
    marked: int  #: Those of them that are marked.
    left: tuple[str, ...] = ()  #: Those that are not.
    took_back: bool = False  #: The flag is off again.
    trouble: str = ""  #: Why blue could not be looked at, or green not be given what it lacks.
    refused: bool = False  #: It was not ready any more right before its flag, which was not set.

    @property
    def ok(self) -> bool:
        """True where each topic is proven to be marked."""
        return not self.left and not self.took_back and not self.trouble and not self.refused


class MigrationStarter:
    """Begins migrations on blue; ``urls`` are where clients are sent.

    May be killed at any moment and run again: what was begun is recorded before the flag is set, and a namespace whose
    flag is set already goes on with the proof. ``resources`` follow blue from before the first flag on, until they are
    closed.
    """

    def __init__(
        self,
        blue: ClusterSide,
        observer: MigrationObserver,
        record: MigrationRecord,
        urls: RedirectUrls,
        resources: GreenResources,
        say: Say = lambda _line: None,
    ) -> None:
        self._blue = blue
        self._admin = blue.admin
        self._observer = observer
        self._record = record
        self._urls = urls
        self._resources = resources
        self._say = say
        #: Namespaces whose proof is over: their subscriptions are made on green while others are begun.
        self._proven: list[str] = []

    def round_seconds(self) -> float:
        """Return how often a broker looks at the flags; RefusedError where it never does."""
        text = self._admin.settings().get(_INTERVAL, "0")
        seconds = float(text) if text.replace(".", "", 1).isdigit() else 0.0
        if seconds <= 0:
            raise RefusedError(
                f"{_INTERVAL} is {text} on blue's broker: topics that are loaded would stay on blue while others go to "
                "green; set it in broker.conf, restart the brokers, and start then"
            )
        return seconds

    def set_urls(self) -> None:
        """Set the URLs without the flag, and read both back; RefusedError if the whole cluster is migrated already."""
        cluster = self._blue.cluster
        if cluster not in self._admin.clusters():
            raise RefusedError(f"blue has no cluster {cluster!r}: the broker would make one, and migrate nothing")
        wanted = ClusterFlag(False, self._urls)
        found = self._admin.read_flag(cluster)
        if found is not None and found.migrated:
            raise RefusedError(
                f"all of cluster {cluster} is migrated already: that also moves the deletion topics; take that flag "
                "off (`cluster-migration abort`), and migrate namespace by namespace"
            )
        if found != wanted:
            self._record.append("urls", cluster=cluster, former=None if found is None else asdict(found))
            self._admin.write_flag(cluster, wanted)
        now = self._admin.read_flag(cluster)
        if now != wanted:
            raise PulsarError(f"blue was given the URLs of green, and says now that they are {now}: nothing was begun")

    def start(
        self, namespace: str, accepted: Sequence[str] = (), is_ready: Callable[[str], bool] = lambda _namespace: True
    ) -> StartResult:
        """Load every topic, set the flag, read it back, and prove within two rounds that each topic was marked.

        ``accepted`` are the cases that cannot be made safe and that the operator accepts, for the record. Where a topic
        was not marked, the flag is taken off again: no client would reach topics that no broker loads.

        What blue has got since `prepare` is made on green before the flag; then ``is_ready`` is asked, and where it
        says no the flag is not set. What comes between that and the mark is made on green while the proof runs, and
        what comes then while other namespaces are begun by this object.
        """
        round_s = self.round_seconds()
        self._resources.follow([namespace])
        if self._admin.is_migrated(namespace):
            self._say(f"{namespace}: its flag is set already; the proof goes on")
        else:
            self._complete(namespace)
            if not is_ready(namespace):
                return StartResult(namespace, len(self._topics(namespace)), 0, refused=True)
            expected = self._complete(namespace)
            self._record.starting(namespace, expected, accepted, self._blue.cluster)
            self._admin.set_migrated(namespace, True)
        if not self._admin.is_migrated(namespace):
            raise PulsarError(f"{namespace} was flagged, and its broker says that it is not: nothing was begun")
        return self._prove(namespace, round_s)

    def _complete(self, namespace: str) -> list[ExpectedTopic]:
        """Load all topics, and make on green what it lacks of them."""
        expected = self._load_all(namespace)
        redirects = self._record.has_moved(namespace)
        self._resources.complete({one.topic: one.subscriptions for one in expected}, redirects=redirects)
        return expected

    def _load_all(self, namespace: str) -> list[ExpectedTopic]:
        topics = self._topics(namespace)
        self._say(f"{namespace}: loading {len(topics)} topics")
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="load") as pool:
            found = list(pool.map(self._admin.stats, topics))
        loaded = self._blue.loaded_topics()
        missing = [topic for topic in topics if topic not in loaded]
        if missing:
            raise RefusedError(
                f"{missing[0]} ({len(missing)} of {len(topics)}) is not loaded although its broker was asked: a topic "
                "that is not loaded when the flag is set never moves; nothing was begun, try again"
            )
        return [_expected(topic, stats) for topic, stats in zip(topics, found, strict=True)]

    def _topics(self, namespace: str) -> list[str]:
        return [topic for topic in self._admin.topics(namespace) if not is_brokers_own(TopicName.parse(topic))]

    def _prove(self, namespace: str, round_s: float) -> StartResult:
        self._say(f"{namespace}: flagged; its topics are marked within {ROUNDS} rounds of {round_s:g} s")
        deadline = time.monotonic() + (ROUNDS + 1) * round_s + _SPARE_S
        trouble, snapshot = "", MigrationSnapshot(0)
        while True:
            try:
                snapshot, trouble = self._observer.snapshot([namespace]), ""
                self._resources.complete_snapshot(snapshot)
                if self._proven:
                    self._resources.complete_snapshot(self._observer.snapshot(self._proven))
            except BookwardenError as error:
                trouble = str(error)
            lost = snapshot.of_state(TopicState.STRANDED, TopicState.UNMARKED)
            waiting = snapshot.of_state(TopicState.WAITING, TopicState.UNKNOWN)
            if not trouble and not lost and not [seen for seen in waiting if not seen.is_marked]:
                self._record.marked(namespace, {one.topic: entries_of(one.info) for one in snapshot.topics if one.info})
                self._proven.append(namespace)
                return StartResult(namespace, len(snapshot.topics), sum(seen.is_marked for seen in snapshot.topics))
            if lost or time.monotonic() > deadline:
                return self._take_back(namespace, snapshot, trouble)
            time.sleep(min(_LOOK_EVERY_S, round_s))

    def _take_back(self, namespace: str, snapshot: MigrationSnapshot, trouble: str) -> StartResult:
        left = snapshot.of_state(TopicState.WAITING, TopicState.UNKNOWN, TopicState.UNMARKED, TopicState.STRANDED)
        self._say(f"{namespace}: {len(left)} topics were not marked; its flag is taken off again")
        self._admin.set_migrated(namespace, False)
        self._record.append(ABORTED, namespace=namespace, by="start")
        if self._admin.is_migrated(namespace):
            raise PulsarError(f"{namespace} is still flagged although its flag was taken off: run `abort`")
        marked = sum(seen.is_marked for seen in snapshot.topics)
        names = tuple(seen.topic for seen in left)
        return StartResult(namespace, len(snapshot.topics), marked, names, took_back=True, trouble=trouble)


def without_moved(
    findings: Iterable[CheckResult], expected: Mapping[str, ExpectedTopic], read_by_readers: Collection[str] = ()
) -> list[CheckResult]:
    """Leave out data of topics without a subscription that had some when an earlier start found them.

    Blue deletes a subscription of a marked topic once it was drained: what it held was read. Topics that readers read
    now stay.
    """
    held = {topic for topic, one in expected.items() if one.subscriptions and one.entries is not None}
    found = []
    for one in findings:
        left = tuple(topic for topic in one.evidence if topic not in held or topic in read_by_readers)
        if one.override is not Override.READERS or left == one.evidence:
            found.append(one)
        elif left:
            found.append(replace(one, seen=readers_text(list(left)), evidence=left))
    return found


def _expected(topic: str, stats: Any) -> ExpectedTopic:
    subscriptions = [name for name in stats.get("subscriptions") or {} if is_subscription(name)]
    durable = [name for name in subscriptions if stats["subscriptions"][name].get("durable", True)]
    read_by = [name for name in durable if stats["subscriptions"][name].get("consumers")]
    return ExpectedTopic(topic, tuple(sorted(durable)), bool(stats.get("publishers")), tuple(sorted(read_by)))
