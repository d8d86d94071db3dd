"""The story of the trash: topics are deleted by mistake under their consumers and come back; another one expires."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import pulsar
from pulsar.schema import Integer, JsonSchema, Record, String

from bookwarden.cli.shell.output import counted, moment
from bookwarden.clusters.pulsar.broker_marks import Outbox
from bookwarden.clusters.pulsar.metadata.paths import cursor_path, managed_ledger_path
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.clusters.pulsar.trash import TrashedLedgers, TrashLeaseNode
from bookwarden.config import Settings
from bookwarden.errors import NotFoundError, RefusedError, ServerError
from bookwarden.ledgers.metadata import StoredLedger
from bookwarden.ledgers.names import TopicName, encode_local_name
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.trash.generations import TrashedGeneration
from bookwarden.trash.records import TrashRecords
from bookwarden.wire.cursor import at_position, decode_cursor
from bookwarden.wiring.cluster import Cluster
from bookwarden_dev.demo.evidence import Evidence
from bookwarden_dev.demo.ledger_places import ledgers_of_topic
from bookwarden_dev.demo.story import command_process, wait_for
from bookwarden_dev.demo.topics import Order
from bookwarden_dev.devcluster import DevCluster, ServerProcess

SHOP: Final = "persistent://demo/shop/orders"
BILLING: Final = "persistent://demo/billing/invoices"
SCRATCH: Final = "persistent://demo/scratch/carts"
#: Those that come back.
RESTORED: Final = (BILLING, SHOP)
FULL, HALF, HOLES = "full", "half", "holes"
# The last ledger has some of them, and is open.
HALF_OF_MESSAGES: Final = 35
MESSAGES: Final = 2 * HALF_OF_MESSAGES
#: Sent to the topic that a client makes again, and to each topic once it is restored.
LIVE_MESSAGES: Final = 10
LATER_MESSAGES: Final = 5
_KEPT_S: Final = 25
_TRASH_RULES: Final = (
    {"namespaces": "demo/scratch", "keep_deleted_hours": _KEPT_S / 3600},
    {"namespaces": "demo/*", "keep_deleted_hours": 1},
)
#: Settings of the sweep.
TRASH_SETTINGS: Final[Mapping[str, Any]] = {
    "rules": list(_TRASH_RULES),
    # Its bookies share the disk of this machine, however full that is.
    "min_free_disk_ratio": 0,
}
#: Lines of broker.conf: each acknowledgement is in its ledger within a second, so that no position is older.
BROKER_SETTINGS: Final[Mapping[str, str]] = {
    "bookwardenMarks": "two-phase",
    "managedLedgerDefaultMarkDeleteRateLimit": "1000",
    "managedLedgerCursorPositionFlushSeconds": "1",
}
_RECEIVE_MS: Final = 30_000
Say = Callable[[str], None]


class PricedOrder(Record):  # type: ignore[misc]  # pulsar-client ships no types
    """The messages' second schema."""

    number = Integer()
    note = String()
    price = Integer()


class CursorState(NamedTuple):
    """The acknowledgements of a subscription."""

    mark_delete: str  #: LEDGER:ENTRY.
    ranges: str  #: What is acknowledged behind it, as brokers write it.


@dataclass(frozen=True, slots=True)
class SubscriptionEnd:
    """A subscription before the delete, and at the end."""

    name: str  #: Of the subscription.
    was: CursorState  #: Before the delete.
    restored: CursorState  #: Right after the restore.
    joined: bool  #: A consumer had made it again, so that it stands further than it was.
    expected: int  #: Messages that it had to be given once it was restored; of the connected one, from the beginning.
    lost: int  #: Those that it was not given.
    doubled: int  #: Those that it was given again, or had acknowledged before.

    @property
    def as_it_should(self) -> bool:
        """Whether it is where it was, and gave each message that was left, once."""
        return not self.lost and not self.doubled and (self.joined or self.restored == self.was)


@dataclass(frozen=True, slots=True)
class TopicEnd:
    """A topic that was restored."""

    topic: str  #: Full name.
    under_live: bool  #: Whether a client had made it again.
    ledgers: int  #: That it had before the delete.
    ledgers_back: int  #: Those of them that its list names again.
    sent: int  #: Messages that the broker confirmed.
    read: int  #: Different messages that a reader from the beginning found, in the order in which they were sent.
    versions: Mapping[str, int]  #: Messages by the version of their schema.
    expected_versions: Mapping[str, int]  #: The same, as sent.
    subscriptions: tuple[SubscriptionEnd, ...]  #: All of them, by their state before.

    @property
    def as_it_should(self) -> bool:
        """Whether all of it came back."""
        return (
            self.ledgers == self.ledgers_back > 0
            and self.sent == self.read > 0
            and self.versions == self.expected_versions
            and len(self.subscriptions) == len((FULL, HALF, HOLES))
            and all(each.as_it_should for each in self.subscriptions)
        )


@dataclass(frozen=True, slots=True)
class TrashFinale:
    """The end of the story."""

    topics: tuple[TopicEnd, ...]  #: That were restored.
    refusal: str  #: What the restore said of the topic that was there again.
    expired: str  #: The topic whose time was over.
    expired_ledgers: int  #: That it had.
    expired_left: int  #: Those that BookKeeper still has.
    expired_outcomes: Mapping[str, int]  #: What the sweep did with them.
    too_late: str  #: What the restore said of it then.
    in_trash: tuple[str, ...]  #: The topics of the story of which the trash still has something.

    @property
    def as_it_should(self) -> bool:
        """Whether all came back that was restored, and all is gone that was not."""
        return (
            len(self.topics) == len(RESTORED)
            and all(end.as_it_should for end in self.topics)
            and "--under-live" in self.refusal
            and self.expired_ledgers > self.expired_left == 0
            and {Outcome.DELETED.value}
            <= set(self.expired_outcomes)
            <= {Outcome.DELETED.value, Outcome.ALREADY_GONE.value}
            and bool(self.too_late)
            and not self.in_trash
        )


@dataclass(frozen=True, slots=True)
class _Before:
    """A topic before it was deleted."""

    ledgers: frozenset[int]
    cursors: Mapping[str, CursorState]


def keeps_dropped(opened: Cluster, probes: str) -> Callable[[], bool]:
    """Return what says whether the broker has read the lease; ``probes`` begins the names of topics that it drops."""
    numbers, trashed = itertools.count(), TrashedLedgers([opened.store])
    before = trashed.read()

    def keeps() -> bool:
        # Once it has, it keeps what a topic of no account drops.
        probe = topic_path(f"{probes}-{next(numbers)}")
        opened.admin.put(probe)
        opened.admin.delete(probe)
        return bool(trashed.read() - before)

    return keeps


class TrashStory:
    """Plays the acts in order, on a cluster that runs; ``settings`` are bookwarden's on it, from a file."""

    def __init__(self, cluster: DevCluster, settings: Settings, settings_file: Path, say: Say) -> None:
        self._cluster = cluster
        self._settings = settings
        self._file = settings_file
        self._say = say
        self._sent: dict[str, list[int]] = {}

    def play(self) -> TrashFinale:
        """Play all acts; raises BookwardenError where one cannot go on."""
        with Cluster(self._settings) as opened, closing(self._cluster.connection().client()) as client:
            opened.deletion_topics.setup().run()
            opened.deletion_topics.publish()
            with self._sweeping() as sweep:
                clients = _Clients(client, self._say)
                self._fill(opened, clients)
                self._wait_for_trash(opened, sweep)
                consumers = {topic: clients.connect(topic) for topic in RESTORED}
                before = {topic: self._before(opened, topic) for topic in (*RESTORED, SCRATCH)}
                scratch = before[SCRATCH].ledgers | _cursor_ledgers(opened, SCRATCH)
                self._delete(opened, sweep)
                self._have_made_again(opened, clients, sweep)
                self._list()
                restored = self._restore(opened)
                refusal = self._restore_under_live()
                restored[SHOP] = _states(opened, SHOP)
                ends = tuple(
                    self._count(opened, clients, topic, before[topic], restored[topic], consumers[topic])
                    for topic in RESTORED
                )
                too_late = self._expire(opened, sweep)
            return TrashFinale(
                ends,
                refusal,
                SCRATCH,
                len(scratch),
                sum(isinstance(one, StoredLedger) for one in opened.bookkeeper.catalog.read_many(sorted(scratch))),
                self._outcomes(scratch),
                too_late,
                (
                    *(topic for topic in RESTORED if _is_deleted_life_in_trash(opened, topic)),
                    *((SCRATCH,) if _in_trash(opened, SCRATCH) else ()),
                ),
            )

    @contextmanager
    def _sweeping(self) -> Iterator[ServerProcess]:
        self._say("a sweep runs from now on (Spark): it lets the broker keep what it drops, and expires it")
        sweep = command_process(self._file, "sweep")
        sweep.start()
        try:
            yield sweep
        finally:
            sweep.stop()

    def _fill(self, opened: Cluster, clients: _Clients) -> None:
        admin = opened.admin
        names = [name for name in admin.get_json("/clusters") if name != "global"]
        admin.put("/tenants/demo", {"allowedClusters": names})
        for topic in (*RESTORED, SCRATCH):
            name = TopicName.parse(topic)
            namespace = f"/namespaces/{name.tenant}/{name.namespace}"
            admin.put(namespace)
            admin.post(f"{namespace}/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
            # The versions of a schema are records of different names.
            admin.put(f"{namespace}/schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE")
            if topic == BILLING:
                admin.post(f"{namespace}/autoTopicCreation", {"allowAutoTopicCreation": False})
            admin.put(topic_path(topic))
            self._sent[topic] = clients.fill(topic)
        for topic in (*RESTORED, SCRATCH):
            self._say(f"{topic}: {MESSAGES} messages in two versions of a schema; {FULL}, {HALF} and {HOLES} subscribe")
            self._wait("the positions to be written", partial(_are_persisted, opened, topic))

    def _wait_for_trash(self, opened: Cluster, sweep: ServerProcess) -> None:
        lease = TrashLeaseNode(opened.store)
        self._wait("the lease of the trash", lambda: lease.read() is not None, sweep)
        self._wait("the broker to keep what it drops", keeps_dropped(opened, f"{SCRATCH}-probe"), sweep)
        self._say("the sweep has written its lease, and the broker keeps what it drops")

    @staticmethod
    def _before(opened: Cluster, topic: str) -> _Before:
        return _Before(ledgers_of_topic(opened.store, topic), _states(opened, topic))

    def _delete(self, opened: Cluster, sweep: ServerProcess) -> None:
        """Delete all, and wait until the trash has them, and nothing is on its way."""
        outbox = Outbox(opened.store)
        for topic in (*RESTORED, SCRATCH):
            connected = ", under its connected consumer" if topic in RESTORED else ""
            self._say(f"by mistake: pulsar-admin topics delete --force {topic}{connected}")
            opened.topics.delete_topic(topic, force=True)
        for topic in (*RESTORED, SCRATCH):
            self._wait(f"{topic} to be in the trash", partial(_is_whole_in_trash, opened, topic), sweep)
        self._wait("the outbox of the broker to be empty", lambda: not outbox.size().nodes, sweep)

    def _have_made_again(self, opened: Cluster, clients: _Clients, sweep: ServerProcess) -> None:
        path = managed_ledger_path(TopicName.parse(SHOP).managed_ledger)
        self._wait(f"the consumer to make {SHOP} again", lambda: opened.store.get(path) is not None, sweep)
        self._say(f"{SHOP} is there again, and empty: its consumer made it by auto-creation, as clients do at once")
        self._say(f"{BILLING} is not: its namespace has auto-creation disabled")
        numbers = range(MESSAGES, MESSAGES + LIVE_MESSAGES)
        clients.send(SHOP, Order, numbers)
        self._sent[SHOP] += numbers
        self._say(f"a producer sends {LIVE_MESSAGES} messages to it")

    def _list(self) -> None:
        listed = self._run("list", "demo/shop"), self._run("list", "demo/billing"), self._run("list", SCRATCH)
        self._say("bookwarden trash list")
        for one in (one for run in listed for one in run.data["generations"]):
            subscriptions = ", ".join(one["subscriptions"])
            until = moment(one["expires_ms"]) if one["expires_ms"] else "-"
            self._say(
                f"  {one['topic']}: {counted(one['ledgers'], 'ledger')}, {counted(one['bytes'], 'byte')}, "
                f"subscriptions {subscriptions}, until {until}"
            )

    def _restore(self, opened: Cluster) -> dict[str, Mapping[str, CursorState]]:
        self._say(f"bookwarden trash restore {BILLING}")
        (plan,) = self._run("restore", BILLING).data["topics"]
        self._say(
            f"  a plan: {counted(len(plan['ledgers']), 'ledger')} with {plan['entries']} entries, "
            f"{counted(len(plan['subscriptions']), 'subscription')}, schema of {plan['schema_versions']} versions"
        )
        self._say(f"bookwarden trash restore {BILLING} --execute")
        self._run("restore", BILLING, "--execute")
        return {BILLING: _states(opened, BILLING)}

    def _restore_under_live(self) -> str:
        """Restore the topic that is there again, first without and then with the option; return the refusal."""
        self._say(f"bookwarden trash restore {SHOP} --execute")
        refusal = self._run("restore", SHOP, "--execute", code=RefusedError.exit_code).error
        self._say(f"  {refusal}")
        self._say(f"bookwarden trash restore {SHOP} --under-live --execute")
        self._run("restore", SHOP, "--under-live", "--execute")
        return refusal

    def _count(
        self,
        opened: Cluster,
        clients: _Clients,
        topic: str,
        before: _Before,
        restored: Mapping[str, CursorState],
        consumer: _Connected,
    ) -> TopicEnd:
        """Send some more, then count every message and every position."""
        numbers = range(MESSAGES + LIVE_MESSAGES, MESSAGES + LIVE_MESSAGES + LATER_MESSAGES)
        clients.send(topic, PricedOrder, numbers)
        sent = self._sent[topic]
        sent += numbers
        self._wait(f"the consumer of {topic} to come back", lambda: consumer.received >= set(numbers))
        self._say(f"{topic}: its consumer is back, and reads on; each message and each position is counted")
        after = sent[MESSAGES:]
        given = {name: clients.receive_all(opened, topic, name) for name in (HALF, HOLES)}
        wanted = {HALF: [*range(HALF_OF_MESSAGES, MESSAGES), *after], HOLES: [*_holes(), *after]}
        # What it had received before it connected for good was another consumer's.
        given[FULL], wanted[FULL] = consumer.numbers, after
        found = clients.read(topic)
        return TopicEnd(
            topic,
            topic == SHOP,
            len(before.ledgers),
            len(before.ledgers & ledgers_of_topic(opened.store, topic)),
            len(sent),
            len(found) if list(found) == sent else 0,
            Counter(found.values()),
            Counter({"0": HALF_OF_MESSAGES + len(after) - LATER_MESSAGES, "1": HALF_OF_MESSAGES + LATER_MESSAGES}),
            tuple(
                SubscriptionEnd(
                    name,
                    before.cursors[name],
                    restored[name],
                    topic == SHOP and name == FULL,
                    len(wanted[name]),
                    len(set(wanted[name]) - set(given[name])),
                    (Counter(given[name]) - Counter(set(wanted[name]))).total(),
                )
                for name in (FULL, HALF, HOLES)
            ),
        )

    def _expire(self, opened: Cluster, sweep: ServerProcess) -> str:
        self._say(f"waiting until {SCRATCH}, of which {_KEPT_S} s are kept, expires and is swept")
        self._wait("it to leave the trash", lambda: not _in_trash(opened, SCRATCH), sweep)
        topics = opened.deletion_topics
        self._wait("nothing to be in flight", lambda: not topics.in_flight().messages, sweep)
        self._say(f"bookwarden trash restore {SCRATCH} --execute")
        too_late = self._run("restore", SCRATCH, "--execute", code=NotFoundError.exit_code).error
        self._say(f"  {too_late}")
        return too_late

    def _outcomes(self, ledger_ids: Iterable[int]) -> Mapping[str, int]:
        outcomes = Evidence(self._settings).outcomes()
        return Counter(outcome for number in ledger_ids for outcome in outcomes.get(number, ["none"])[-1:])

    def _run(self, *arguments: str, code: int = 0) -> _Run:
        """Run a command of `trash` as a user does; ServerError where it ends otherwise."""
        line = [sys.executable, "-m", "bookwarden.cli", "--config", str(self._file), "-o", "json", "trash", *arguments]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        if done.returncode != code:
            raise ServerError(f"trash {' '.join(arguments)} ended with {done.returncode}: {done.stderr.strip()}")
        if code:
            return _Run({}, json.loads(done.stderr.splitlines()[-1])["error"])
        return _Run(json.loads(done.stdout), "")

    def _wait(self, what: str, condition: Callable[[], bool], process: ServerProcess | None = None) -> None:
        wait_for(what, condition, self._cluster.home, process)


class _Run(NamedTuple):
    data: Mapping[str, Any]
    error: str  #: What it said where it failed.


class _Connected:
    """A consumer that stays connected, whatever becomes of its topic."""

    def __init__(self, client: pulsar.Client, topic: str) -> None:
        self.numbers: list[int] = []
        self._consumer = client.subscribe(
            topic, FULL, consumer_type=pulsar.ConsumerType.Shared, message_listener=self._take
        )

    @property
    def received(self) -> set[int]:
        return set(self.numbers)

    def _take(self, consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        self.numbers.append(_number(message))
        consumer.acknowledge(message)


class _Clients:
    """Producers, consumers and readers of the story."""

    def __init__(self, client: pulsar.Client, say: Say) -> None:
        self._client = client
        self._say = say

    def connect(self, topic: str) -> _Connected:
        return _Connected(self._client, topic)

    def fill(self, topic: str) -> list[int]:
        """Send all messages, and acknowledge what the subscriptions have of them; return their numbers."""
        for subscription in (FULL, HALF, HOLES):
            self._consumer(topic, subscription).close()
        self.send(topic, Order, range(HALF_OF_MESSAGES))
        self.send(topic, PricedOrder, range(HALF_OF_MESSAGES, MESSAGES))
        self._acknowledge(topic, FULL, range(MESSAGES))
        self._acknowledge(topic, HALF, range(HALF_OF_MESSAGES))
        self._acknowledge(topic, HOLES, set(range(MESSAGES)) - set(_holes()))
        return list(range(MESSAGES))

    def send(self, topic: str, record: type[Record], numbers: Iterable[int]) -> None:
        """Send messages one by one, so that each is an entry."""
        producer = self._client.create_producer(topic, schema=JsonSchema(record), batching_enabled=False)
        for number in numbers:
            producer.send(record(number=number, note=f"order {number}"))
        producer.close()

    def receive_all(self, opened: Cluster, topic: str, subscription: str) -> list[int]:
        """Receive and acknowledge until the subscription has no more; return the numbers."""
        consumer, found = self._consumer(topic, subscription), []
        while _backlog(opened, topic, subscription):
            try:
                message = consumer.receive(timeout_millis=1_000)
            except pulsar.Timeout:
                # What was acknowledged last may not be counted yet.
                continue
            found.append(_number(message))
            consumer.acknowledge(message)
        consumer.close()
        return found

    def read(self, topic: str) -> dict[int, str]:
        """Read the topic from its beginning; return the numbers in their order, each with its schema's version."""
        reader, found = self._client.create_reader(topic, pulsar.MessageId.earliest), {}
        while reader.has_message_available():
            message = reader.read_next(timeout_millis=_RECEIVE_MS)
            found[_number(message)] = str(int.from_bytes(message.schema_version().encode("latin-1"), "big"))
        reader.close()
        return found

    def _acknowledge(self, topic: str, subscription: str, numbers: Iterable[int]) -> None:
        consumer, wanted = self._consumer(topic, subscription), set(numbers)
        while wanted:
            message = consumer.receive(timeout_millis=_RECEIVE_MS)
            if _number(message) in wanted:
                wanted.remove(_number(message))
                consumer.acknowledge(message)
        consumer.close()

    def _consumer(self, topic: str, subscription: str) -> pulsar.Consumer:
        return self._client.subscribe(topic, subscription, consumer_type=pulsar.ConsumerType.Shared)


def _number(message: pulsar.Message) -> int:
    return int(json.loads(message.data())["number"])


def _holes() -> list[int]:
    """Return the numbers that are left between those that the third subscription acknowledged."""
    return [number for number in range(MESSAGES) if number % 3]


def _states(opened: Cluster, topic: str) -> dict[str, CursorState]:
    cursors = opened.topics.internal_stats(topic)["cursors"]
    return {
        name: CursorState(of["markDeletePosition"], of["individuallyDeletedMessages"]) for name, of in cursors.items()
    }


def _backlog(opened: Cluster, topic: str, subscription: str) -> int:
    stats = opened.admin.get_json(f"{topic_path(topic)}/stats", params={"getPreciseBacklog": True})
    return int(stats["subscriptions"][subscription]["msgBacklog"])


def persisted(opened: Cluster, topic: str, subscription: str) -> tuple[tuple[int, int], int]:
    """Return the position of a subscription in its ledger, and the number of ranges behind it."""
    node = opened.store.get(cursor_path(TopicName.parse(topic).managed_ledger, encode_local_name(subscription)))
    if node is None:
        raise NotFoundError(f"{topic} has no subscription {subscription}")
    own = decode_cursor(node.value).cursors_ledger_id
    entry = None if own is None else opened.bookkeeper.last_entries.last_entry(own)
    # Brokers from 4.1 on write ranges as bits.
    info = decode_cursor(at_position(node.value, entry))
    if info.mark_delete is None:
        raise ServerError(f"subscription {subscription} of {topic} has no position")
    return info.mark_delete, len(info.acknowledged)


def _are_persisted(opened: Cluster, topic: str) -> bool:
    """Return whether the ledgers of all subscriptions have what these acknowledged."""
    positions = opened.topics.mark_delete_positions(topic)
    # Of what the third acknowledged the first is at its mark.
    ranges = {FULL: 0, HALF: 0, HOLES: MESSAGES - len(_holes()) - 1}
    return all(
        persisted(opened, topic, name) == ((positions[name].ledger_id, positions[name].entry_id), number)
        for name, number in ranges.items()
    )


def _cursor_ledgers(opened: Cluster, topic: str) -> frozenset[int]:
    managed_ledger = TopicName.parse(topic).managed_ledger
    nodes = opened.store.get_many([cursor_path(managed_ledger, name) for name in (FULL, HALF, HOLES)])
    found = (decode_cursor(node.value).cursors_ledger_id for node in nodes if node is not None)
    return frozenset(number for number in found if number is not None)


def _generations(opened: Cluster, topic: str) -> list[TrashedGeneration]:
    managed_ledger = TopicName.parse(topic).managed_ledger
    return [one for one in TrashRecords(opened.store).read().generations if one.managed_ledger == managed_ledger]


def _in_trash(opened: Cluster, topic: str) -> bool:
    return bool(_generations(opened, topic))


def _is_deleted_life_in_trash(opened: Cluster, topic: str) -> bool:
    """Return whether a life of the topic that ended is there, whatever the one that goes on has dropped since."""
    return any(one.topic is not None for one in _generations(opened, topic))


def _is_whole_in_trash(opened: Cluster, topic: str) -> bool:
    found = next(iter(_generations(opened, topic)), None)
    return found is not None and found.topic is not None and set(found.cursors) == {FULL, HALF, HOLES}
