"""A place on a cluster whose broker keeps what it drops: topics filled there, deleted, restored, and counted."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import pulsar
import yaml

from bookwarden.clusters.pulsar.metadata.paths import managed_ledger_path, schema_path
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.clusters.pulsar.rest.topics import Topics
from bookwarden.deletion.phase_one.mark import Marker
from bookwarden.errors import NotFoundError, PulsarConflictError, PulsarUnavailableError
from bookwarden.ledgers.metadata import AbsentLedger
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.ledgers.trash import KeepRule
from bookwarden.trash.generations import FoundRecord, TrashedGeneration
from bookwarden.trash.keeper import TrashKeeper
from bookwarden.trash.records import by_node
from bookwarden.trash.release import release
from bookwarden.wire.cursor import decode_cursor
from bookwarden.wire.managed_ledger import decode_managed_ledger
from bookwarden.wire.schema_locator import decode_schema_locator
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.deletion import marker_of
from bookwarden.wiring.trash import TrashOperations
from bookwarden_dev.demo.trash_story import keeps_dropped, persisted
from bookwarden_dev.devcluster import DevCluster
from servers.follow.site import site_of
from servers.marking_brokers import nodes_in_outbox
from servers.sweeping_site import SweepingSite
from servers.topic_contents import acknowledge_each, managed_ledger_of, retain
from servers.trashed_topics import keep_dropped
from servers.waiting import eventually

#: Subscriptions of each topic: what the first acknowledged is one range, the second has holes, the third has nothing.
HALF, HOLES, IDLE = "half", "holes", "idle"
SUBSCRIPTIONS: Final = (HALF, HOLES, IDLE)
#: So many things are done at a time, most of which wait.
HANDS: Final = 4
_PATIENCE_S: Final = 120.0
_RECEIVE_MS: Final = 50
#: A subscription that has a backlog and is given nothing for so long is stuck.
_STUCK_S: Final = 15.0


@dataclass
class Topic:
    """A topic, everything that was confirmed to its producers, and what its subscriptions acknowledged."""

    name: str
    sent: dict[int, int] = field(default_factory=dict)  #: The ledger of each message, by its number.
    acknowledged: dict[str, set[int]] = field(default_factory=lambda: {name: set() for name in SUBSCRIPTIONS})

    def in_ledgers(self, ledgers: Collection[int]) -> set[int]:
        """Return the messages in these ledgers."""
        return {number for number, ledger in self.sent.items() if ledger in ledgers}


class Ground:
    """Topics in the namespace "life" of a tenant, deletion topics beside it, and the operations of the trash."""

    def __init__(self, cluster: DevCluster, tenant: str, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.cluster = cluster
        self.namespace = f"{tenant}/life"
        self.site = site_of(cluster, tenant, folder)
        self.folder = folder
        self.admin = PulsarAdmin(cluster.connection(), timeout_s=60)
        self.client = cluster.connection().client(operation_timeout_seconds=60)
        self.opened = Cluster(self.site.settings)
        self.operations = TrashOperations(self.opened, operator="soak")
        self.swept = SweepingSite(self.site.settings)
        self.prepare(self.namespace)
        self.opened.deletion_topics.publish()

    def close(self) -> None:
        """Close all clients."""
        self.swept.close()
        self.opened.close()
        self.client.close()
        self.admin.close()

    def prepare(self, namespace: str) -> None:
        """Keep all messages of a namespace, and write each acknowledgement at once."""
        retain(self.admin, namespace)
        acknowledge_each(self.admin, namespace)
        self.admin.put(f"/namespaces/{namespace}/schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE")

    def keep(self, *others: str) -> TrashKeeper:
        """Have the broker keep for an hour what it drops, of other namespaces too; run what is returned every few
        minutes, as a sweep would.
        """
        keeper = keep_dropped(self.opened, self.namespace)
        for other in others:
            keeper.rules = (*keeper.rules, KeepRule(other, 3600))
            keeper.run()
            eventually(keeps_dropped(self.opened, f"persistent://{other}/probe"), 30)
        return keeper

    def settings_file(self) -> Path:
        """Write the settings into a file, for commands."""
        file = self.folder / "settings.yaml"
        file.write_text(yaml.safe_dump(self.site.settings.model_dump(mode="json", exclude_defaults=True)))
        return file

    def topic(self, name: str) -> Topic:
        """Return a topic that is not made yet."""
        return Topic(f"persistent://{self.namespace}/{name}")

    def send(self, topic: Topic, count: int, schema: pulsar.schema.Schema | None = None) -> None:
        """Send so many more messages, with their numbers."""
        options: dict[str, Any] = {} if schema is None else {"schema": schema}
        producer = self.client.create_producer(topic.name, batching_enabled=False, **options)
        first = max(topic.sent, default=-1) + 1
        for number in range(first, first + count):
            value = str(number) if schema is not None else str(number).encode()
            topic.sent[number] = producer.send(value).ledger_id()
        producer.close()

    def fill(self, topic: Topic, count: int = 25) -> None:
        """Send messages with a schema, and have subscriptions acknowledge some of them."""
        for name in SUBSCRIPTIONS:
            self.client.subscribe(topic.name, name, consumer_type=pulsar.ConsumerType.Shared).close()
        self.send(topic, count, pulsar.schema.StringSchema())
        self.acknowledge(topic, HALF, range(count // 2))
        self.acknowledge(topic, HOLES, [number for number in range(count) if number % 3 == 0])

    def fill_all(self, topics: Sequence[Topic]) -> None:
        """Fill some, and wait until the ledgers of their subscriptions have what these acknowledged."""
        with ThreadPoolExecutor(HANDS) as pool:
            for _ in pool.map(self.fill, topics):
                pass
            for _ in pool.map(self.wait_until_written, topics):
                pass

    def acknowledge(self, topic: Topic, subscription: str, numbers: Collection[int]) -> None:
        """Acknowledge these of the messages that a subscription is given."""
        left = set(numbers)
        consumer = self.client.subscribe(topic.name, subscription, consumer_type=pulsar.ConsumerType.Shared)
        while left:
            message = consumer.receive(timeout_millis=60_000)
            if int(message.data()) in left:
                consumer.acknowledge(message)
                left.discard(int(message.data()))
        consumer.close()
        topic.acknowledged[subscription] |= set(numbers)

    def wait_until_written(self, topic: Topic) -> None:
        """Wait until the ledgers of the subscriptions have what these acknowledged."""
        for name in (HALF, HOLES):
            acknowledged = sorted(topic.acknowledged[name])
            # Of a range the first message has a number that is as far from its place as that of all others.
            ranges = sum(1 for _ in groupby(enumerate(acknowledged), lambda each: each[1] - each[0]))
            expected = ranges - (acknowledged[0] == min(topic.sent))

            def is_written(name: str = name, expected: int = expected) -> bool:
                mark, found = persisted(self.opened, topic.name, name)
                # A range that ends with a ledger may go on in the next one, as another one.
                return mark > (0, -1) and found >= expected

            eventually(is_written, _PATIENCE_S)

    def delete(self, topics: Iterable[Topic]) -> None:
        """Have the broker delete topics, and wait until the trash has them."""
        names = [topic.name for topic in topics]
        for name in names:
            self.admin.delete(topic_path(name), params={"force": True})
        self.wait_until_kept()

    def wait_until_kept(self) -> None:
        """Wait until everything that was dropped is in the trash, or was sent."""
        eventually(lambda: nodes_in_outbox(self.opened.store) == 0, _PATIENCE_S, 0.2)

    def trashed(self) -> dict[str, list[TrashedGeneration]]:
        """Return what the trash has, by topic, the newest life first."""
        found: dict[str, list[TrashedGeneration]] = {}
        for one in self.operations.records.read().generations:
            found.setdefault(str(TopicName.of_managed_ledger(one.managed_ledger)), []).append(one)
        return found

    def sweep(self) -> SweepingSite:
        """Make one more sweep, of what is given to it."""
        return SweepingSite(self.site.settings)

    def marker(self) -> Marker:
        """Return what sends marks to the deletion topic."""
        return marker_of(self.opened)

    def purge(self, found: Iterable[FoundRecord], opened: Cluster | None = None) -> int:
        """Let go of records, as `trash purge` does; return how many nodes of the trash still have some."""
        cluster = opened or self.opened
        operations = TrashOperations(cluster)
        under_way = operations.restore.under_way()
        free = [one for one in found if one.record.managed_ledger not in under_way]
        catalog = cluster.bookkeeper.deletion_catalog
        return len(release(operations.records.nodes, marker_of(cluster), by_node(free).items(), "purged", catalog).kept)

    def sweep_out(self, topics: Iterable[Topic], counts: Counter[str]) -> None:
        """Delete topics for good: purge and sweep them, and count what is left then of all that the trash had."""
        names = {topic.name for topic in topics}
        for name in names:
            with suppress(NotFoundError):
                self.admin.delete(topic_path(name), params={"force": True})
        self.wait_until_kept()
        trashed = [one for name, found in self.trashed().items() if name in names for one in found]
        marks = {mark.ledger_id: mark for one in trashed for each in one.found for mark in each.record.marks("soak")}
        counts["records that could not be purged"] += self.purge(each for one in trashed for each in one.found)
        for row in self.swept.sweep(*(marks[one] for one in sorted(marks))):
            if row.outcome not in (Outcome.DELETED, Outcome.ALREADY_GONE):
                counts[f"expired and {row.outcome.value}"] += 1
        left = self.missing(marks)
        counts["expired"] += len(marks)
        counts["expired and left"] += len(marks) - len(left)

    def missing(self, ledgers: Iterable[int]) -> set[int]:
        """Return those of the ledgers that BookKeeper does not have."""
        ids = sorted(set(ledgers))
        readings = self.opened.bookkeeper.catalog.read_many(ids)
        return {one.ledger_id for one in readings if isinstance(one, AbsentLedger)}

    def named(self, topic: Topic) -> dict[str, set[int]]:
        """Return the ledgers that the topic's nodes name, by what names them."""
        store, path = self.opened.store, managed_ledger_path(managed_ledger_of(topic.name))
        found: dict[str, set[int]] = {}
        if node := store.get(path):
            listed = decode_managed_ledger(node.value).ledgers
            # A broker that creates the next one has it on the list, and an empty one may go any moment.
            found["list"] = {each.ledger_id for each in listed if each.entries}
        for cursor in store.children_of(path):
            if node := store.get(f"{path}/{cursor}"):
                found[cursor] = set(decode_cursor(node.value).ledger_ids)
        if node := store.get(schema_path(TopicName.parse(topic.name).schema_id)):
            found["schema"] = set(decode_schema_locator(node.value).ledger_ids)
        return found

    def read(self, topic: str) -> list[int]:
        """Read a topic from its beginning; return the numbers of its messages."""
        reader = self.client.create_reader(topic, pulsar.MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(int(reader.read_next(timeout_millis=60_000).data()))
        reader.close()
        return found

    def backlog(self, topic: str, subscription: str) -> int:
        """Return the number of messages that a subscription is still to be given."""

        def ask() -> int | None:
            try:
                stats = self.admin.get_json(f"{topic_path(topic)}/stats", params={"getPreciseBacklog": True})
            except (PulsarUnavailableError, PulsarConflictError):
                return None
            return int(stats["subscriptions"][subscription]["msgBacklog"]) + 1

        # Behind one, so that an empty one is an answer too.
        return (eventually(ask, _PATIENCE_S) or 1) - 1

    def given(self, topic: str, subscription: str, expected: Collection[int]) -> Iterator[int]:
        """Receive and acknowledge all that a subscription is given, until it is not given what is left for a while."""
        left = set(expected)
        consumer = self.client.subscribe(topic, subscription, consumer_type=pulsar.ConsumerType.Shared)
        with closing(consumer):
            until = time.monotonic() + _STUCK_S
            # Brokers count what was acknowledged in ledgers that are gone: with less than nothing left some may be.
            while (left or self.backlog(topic, subscription) > 0) and time.monotonic() < until:
                with suppress(pulsar.Timeout):
                    while True:
                        message = consumer.receive(timeout_millis=_RECEIVE_MS)
                        consumer.acknowledge(message)
                        until = time.monotonic() + _STUCK_S
                        left.discard(int(message.data()))
                        yield int(message.data())

    def count(
        self, topic: Topic, counts: Counter[str], *, gone: Collection[int] = (), without: Collection[str] = ()
    ) -> list[str]:
        """Count what a topic has, and what its subscriptions are given; return what is wrong with it.

        ``gone`` are ledgers that were named as missing, ``without`` the subscriptions that were named as other than
        they had been.
        """
        wrong: list[str] = []
        found, missing = self.read(topic.name), topic.in_ledgers(gone)
        lost = set(topic.sent) - set(found) - missing
        counts["written"] += len(topic.sent)
        counts["read"] += len(set(found))
        counts["in ledgers named as missing"] += len(missing - set(found))
        counts["lost"] += len(lost)
        if lost:
            wrong.append(f"{topic.name} lost {sorted(lost)}")
        # A producer whose topic is unloaded sends again what was not confirmed yet.
        counts["sent twice by their producer"] += len(found) - len(set(found))
        if found != sorted(found):
            wrong.append(f"{topic.name} is read out of order: {found}")
        there = Topics(self.admin).subscriptions(topic.name)
        for name in topic.acknowledged:
            if name in without:
                counts["subscriptions named as changed"] += 1
                if name not in there:
                    continue
            expected = set(topic.sent) - topic.acknowledged[name] - missing
            given = list(self.given(topic.name, name, expected))
            # Below 0 where it had acknowledged some of what is gone.
            if (left := self.backlog(topic.name, name)) > 0:
                counts["backlogs that are never given"] += 1
                stats = self.admin.get_json(f"{topic_path(topic.name)}/internalStats")
                wrong.append(
                    f"{topic.name}: {name} has a backlog of {left}, and is given nothing: {stats}, gone {gone}"
                )
            counts["subscriptions"] += 1
            counts["given"] += len(set(given))
            again = (set(given) & topic.acknowledged[name]) | {one for one in given if given.count(one) > 1}
            if name in without:
                # It goes on from an earlier position, or had acknowledged what is named as missing.
                counts["given again by those"] += len(again)
                again = set()
            counts["given again"] += len(again)
            if again:
                wrong.append(f"{topic.name}: {name} is given {sorted(again)} again")
            if not_given := expected - set(given):
                counts["not given"] += len(not_given)
                wrong.append(f"{topic.name}: {name} is not given {sorted(not_given)}")
        return wrong
