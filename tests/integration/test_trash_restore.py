"""What comes back from the trash on real brokers: topics, subscriptions, ledgers; each message and position counted."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pulsar
import pytest
from click.testing import CliRunner
from pulsar.schema import AvroSchema, Integer, Record, String
from pyspark.sql import SparkSession

from bookwarden.cli.main import cli
from bookwarden.clusters.pulsar.metadata.paths import managed_ledger_path, schema_path
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.clusters.pulsar.rest.topics import Topics
from bookwarden.clusters.pulsar.trash import TrashedLedgers
from bookwarden.errors import BookwardenError, PulsarConflictError, PulsarUnavailableError, RefusedError
from bookwarden.ledgers.kinds import Holder, ManagedLedgerHolder, SchemaHolder
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.outcomes import DropOutcome, Outcome
from bookwarden.ledgers.pending_deletion import mark_of_holder
from bookwarden.metastore.interface import MetadataStore, Versioned
from bookwarden.orphans.classes import LedgerClass
from bookwarden.trash.generations import TrashedGeneration
from bookwarden.trash.plan import RestoreRequest
from bookwarden.trash.restore import RestoreStep
from bookwarden.wire.cursor import decode_cursor
from bookwarden.wire.managed_ledger import with_ledger_entries
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.trash import TrashOperations
from bookwarden_dev.demo.trash_story import persisted
from bookwarden_dev.devcluster import DevCluster
from servers.deletion_site import DeletionSite
from servers.follow.site import FollowingSite
from servers.marking_brokers import MarkingGround, ledgers_of, marking, nodes_in_outbox, received
from servers.pool import ON_OXIA, Clusters
from servers.topic_contents import listed, managed_ledger_of, retain, send
from servers.trashed_topics import delete, keep_dropped
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]
HALF = 30
#: Moments of a load, in seconds: it takes some 20 ms from the open managed ledger to the end.
WITHIN_A_LOAD = tuple(number / 500 for number in range(50))


class First(Record):  # type: ignore[misc]  # pulsar.schema has no types
    note = String()
    number = Integer()


class Second(Record):  # type: ignore[misc]
    # Readers need the schema of the first ones: what comes first there is skipped.
    number = Integer()


class Third(Record):  # type: ignore[misc]
    number = Integer()
    note = String()


class Killed(BaseException):
    """The process ends here."""


class Ground:
    """A broker in mode two-phase, the trash, and topics in which every acknowledgement is written at once."""

    def __init__(self, cluster: DevCluster, site: DeletionSite) -> None:
        self.marks = MarkingGround(cluster.connection(), site)
        self.admin = self.marks.admin
        self.client = cluster.connection().client()
        self.opened = Cluster(site.settings)
        self.operations = TrashOperations(self.opened, operator="tester")
        retain(self.admin, site.namespace)
        self.admin.put(f"/namespaces/{site.namespace}/schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE")
        keep_dropped(self.opened, site.namespace)

    def close(self) -> None:
        self.opened.close()
        self.client.close()
        self.marks.close()

    def run(self, *arguments: str) -> Any:
        """Run a command of `trash`; return what it writes for programs."""
        return self.command("trash", *arguments)

    def command(self, *arguments: str, codes: Collection[int] = (0,)) -> Any:
        """Run a command; return what it writes for programs."""
        site = self.marks.site
        settings = {
            "metadata_store.urls": f"['{site.store_url}']",
            "pulsar.service_url": site.service_url,
            "pulsar.admin_url": site.admin_url,
        }
        settings |= site.overrides
        options = [option for name, value in settings.items() for option in ("--set", f"{name}={value}")]
        result = CliRunner().invoke(cli, ["-o", "json", *options, *arguments])
        assert result.exit_code in codes, result.output
        return json.loads(result.stdout)

    def generations(self, topic: str) -> list[TrashedGeneration]:
        found = self.operations.records.read().generations
        return [one for one in found if one.managed_ledger == managed_ledger_of(topic)]

    def generation(self, topic: str) -> TrashedGeneration:
        (found,) = self.generations(topic)
        return found

    def fill(self, topic: str) -> None:
        """Send 60 messages of two versions of a schema, with four subscriptions in different states."""
        for subscription in ("full", "half", "holes", "idle"):
            self.client.subscribe(topic, subscription, consumer_type=pulsar.ConsumerType.Shared).close()
        for record, first in ((First, 0), (Second, HALF)):
            producer = self.client.create_producer(topic, schema=AvroSchema(record), batching_enabled=False)
            for number in range(first, first + HALF):
                producer.send(record(number=number))
            producer.close()
        self.consume(topic, "full", 2 * HALF)
        self.consume(topic, "half", HALF)
        self.consume(topic, "holes", 2 * HALF, keep=lambda number: number % 3 != 0)
        last = max(Topics(self.admin).mark_delete_positions(topic).values())
        eventually(lambda: persisted(self.opened, topic, "full")[0] == last, 30)
        eventually(lambda: persisted(self.opened, topic, "half")[0] > (0, 0), 30)
        # Of each third, 0 is at the mark.
        eventually(lambda: persisted(self.opened, topic, "holes")[1] == 2 * HALF // 3 - 1, 30)

    def load(self, topic: str) -> None:
        """Have the broker load a topic, unless it is deleted before."""
        with suppress(BookwardenError):
            Topics(self.admin).internal_stats(topic)

    def consume(self, topic: str, subscription: str, count: int, keep: Callable[[int], bool] = lambda _: False) -> None:
        consumer = self.client.subscribe(
            topic, subscription, consumer_type=pulsar.ConsumerType.Shared, schema=AvroSchema(Second)
        )
        for _ in range(count):
            message = consumer.receive(timeout_millis=30_000)
            if not keep(message.value().number):
                consumer.acknowledge(message)
        consumer.close()

    def delivered(self, topic: str, subscription: str) -> list[int]:
        """Receive all that a subscription is given, until its backlog is empty; return the numbers, in order."""
        consumer = self.client.subscribe(
            topic, subscription, consumer_type=pulsar.ConsumerType.Shared, schema=AvroSchema(Second)
        )
        found = []
        while self.backlog(topic, subscription):
            try:
                message = consumer.receive(timeout_millis=2_000)
            except pulsar.Timeout:
                continue
            found.append(message.value().number)
            consumer.acknowledge(message)
        consumer.close()
        return sorted(found)

    def backlog(self, topic: str, subscription: str) -> int:
        stats = self.admin.get_json(f"{topic_path(topic)}/stats", params={"getPreciseBacklog": True})
        return int(stats["subscriptions"][subscription]["msgBacklog"])

    def read(self, topic: str) -> list[int]:
        reader = self.client.create_reader(topic, pulsar.MessageId.earliest, schema=AvroSchema(Second))
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(timeout_millis=30_000).value().number)
        reader.close()
        return found

    def require_marks(self, topic: str, but: set[int]) -> None:
        """Require a mark of each ledger of a topic that no node and no record has, but for some."""
        name, store = managed_ledger_of(topic), self.opened.store
        eventually(lambda: nodes_in_outbox(store) == 0, 30)
        path = managed_ledger_path(name)
        used = set(listed(self.marks.swept, topic))
        for cursor in store.children_of(path):
            node = store.get(f"{path}/{cursor}")
            assert node is not None
            used |= decode_cursor(node.value).ledger_ids
        used |= {one for found in self.operations.records.read().generations for one in found.ledger_ids}
        rest = ledgers_of(self.marks.swept, name).keys() - used
        assert rest >= but
        received(self.marks.connection, self.marks.site, rest - but)

    def state(self, topic: str) -> tuple[int, dict[str, int]]:
        """Return the number of schema versions, and the backlogs of the subscriptions."""
        versions = self.admin.get_json(f"/schemas/{topic.removeprefix('persistent://')}/schemas")
        names = Topics(self.admin).subscriptions(topic)
        return len(versions["getSchemaResponses"]), {name: self.backlog(topic, name) for name in names}


def tried(action: Callable[[], None]) -> bool:
    """Do something that brokers may refuse at this moment; return whether they did not."""
    try:
        action()
    except (PulsarConflictError, PulsarUnavailableError):
        return False
    return True


@pytest.fixture(scope="module", params=["zookeeper", pytest.param("oxia", marks=pytest.mark.slow)])
def cluster(request: pytest.FixtureRequest, clusters: Clusters) -> Iterator[DevCluster]:
    taken = clusters.taken(
        marking(
            ON_OXIA if request.param == "oxia" else None,
            bookwardenMarks="two-phase",
            managedLedgerDefaultMarkDeleteRateLimit="1000",
            managedLedgerCursorPositionFlushSeconds="1",
            managedLedgerCursorMaxEntriesPerLedger="1000",
        )
    )
    yield taken
    taken.kill()


@pytest.fixture
def ground(cluster: DevCluster, make_namespace: Callable[[DevCluster], str], tmp_path: Path) -> Iterator[Ground]:
    with closing(Ground(cluster, DeletionSite.of(cluster, make_namespace(cluster), tmp_path))) as made:
        yield made


def test_a_deleted_topic_comes_back_as_it_was_however_often_the_restore_is_killed(ground: Ground) -> None:
    topic = ground.marks.topic("deleted")
    ground.fill(topic)
    before = ground.state(topic)
    assert before == (2, {"full": 0, "half": HALF, "holes": 2 * HALF * 2 // 3, "idle": 2 * HALF})
    ledgers = listed(ground.marks.swept, topic)
    delete(ground.opened, topic)
    trashed = ground.generation(topic)
    plan = ground.operations.restore.plan(trashed, RestoreRequest())
    assert (len(plan.ledgers), plan.lost, plan.schema_versions) == (len(ledgers), (), 2)
    for step in RestoreStep:

        def kill(reached: RestoreStep, at: RestoreStep = step) -> None:
            if reached is at:
                raise Killed

        with Cluster(ground.marks.site.settings) as opened:
            restore = TrashOperations(opened, operator="tester").restore
            restore.on_step = kill
            with pytest.raises(Killed):
                restore.run(trashed, RestoreRequest())
    result = ground.operations.restore.run(trashed, RestoreRequest())
    assert (result.gone, result.problems, result.left) == ((), (), ())
    assert ground.generations(topic) == []
    assert ground.state(topic) == before
    assert ground.read(topic) == list(range(2 * HALF))
    assert ground.delivered(topic, "full") == []
    assert ground.delivered(topic, "half") == list(range(HALF, 2 * HALF))
    assert ground.delivered(topic, "holes") == [number for number in range(2 * HALF) if number % 3 != 0]
    assert ground.delivered(topic, "idle") == list(range(2 * HALF))


def test_a_topic_that_is_deleted_while_a_broker_loads_it_comes_back_with_its_subscriptions_where_they_were(
    ground: Ground,
) -> None:
    """Its managed ledger is open then, and moves them to the end of the topic before it deletes them."""
    topic = ground.marks.topic("loaded")
    ground.fill(topic)
    before = ground.state(topic)
    moved: set[int] = set()
    pauses = itertools.cycle(WITHIN_A_LOAD)

    def is_deleted_within_its_load() -> bool:
        Topics(ground.admin).unload(topic)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(ground.load, topic)
            threading.Event().wait(next(pauses))
            # While it changes its state brokers refuse it.
            eventually(lambda: tried(lambda: delete(ground.opened, topic)), 30)
        trashed = ground.generation(topic)
        is_moved = {cursor for cursor, record in trashed.cursors.items() if record.cleared is not None}
        moved.update(one for cursor in is_moved for one in trashed.cursors[cursor].cursors)
        result = ground.operations.restore.run(trashed, RestoreRequest())
        assert result.plan is not None
        assert (result.plan.lost, result.problems, result.left) == ((), (), ())
        assert ground.state(topic) == before
        return is_moved == set(trashed.cursors)

    eventually(is_deleted_within_its_load, 300, 0)
    # Those that were made to move subscriptions are left to the scan.
    ground.require_marks(topic, moved)
    assert ground.delivered(topic, "full") == []
    assert ground.delivered(topic, "half") == list(range(HALF, 2 * HALF))
    assert ground.delivered(topic, "holes") == [number for number in range(2 * HALF) if number % 3 != 0]
    assert ground.delivered(topic, "idle") == list(range(2 * HALF))


# On Oxia the kill seldom comes between the two within minutes.
@pytest.mark.parametrize("cluster", ["zookeeper"], indirect=True)
def test_subscriptions_are_where_they_were_although_the_broker_was_killed_when_its_delete_had_moved_them(
    cluster: DevCluster, ground: Ground
) -> None:
    topic, store = ground.marks.topic("killed"), ground.opened.store
    path = managed_ledger_path(managed_ledger_of(topic))
    ground.fill(topic)
    before = ground.state(topic)
    pauses = itertools.cycle(WITHIN_A_LOAD)

    def cursors() -> dict[str, Versioned]:
        read = [(cursor, store.get(f"{path}/{cursor}")) for cursor in ("full", "half", "holes", "idle")]
        return {cursor: node for cursor, node in read if node is not None}

    def is_killed_between() -> bool:
        Topics(ground.admin).unload(topic)
        closed = cursors()

        def are_moving() -> bool:
            return any(node.version != closed[cursor].version for cursor, node in cursors().items())

        with ThreadPoolExecutor(2) as pool:
            pool.submit(ground.load, topic)
            threading.Event().wait(next(pauses))
            deleting = pool.submit(tried, lambda: ground.admin.delete(f"{topic_path(topic)}?force=true"))
            while not deleting.done() and not are_moving():
                pass
            if not deleting.done():
                cluster.broker.kill()
        left = cursors()
        if not cluster.broker.is_running():
            cluster.broker.start()
        deleting.result()
        eventually(lambda: store.get(path) is None or tried(lambda: delete(ground.opened, topic)), 60)
        eventually(lambda: nodes_in_outbox(store) == 0, 60)
        trashed = ground.generation(topic)
        moved = {cursor for cursor, record in trashed.cursors.items() if record.cleared and record.cleared.node}
        result = ground.operations.restore.run(trashed, RestoreRequest())
        assert result.plan is not None
        assert (result.plan.lost, result.problems, result.left) == ((), (), ())
        assert ground.state(topic) == before
        return any(left[cursor].version != closed[cursor].version for cursor in moved & left.keys())

    eventually(is_killed_between, 400, 0)
    assert ground.delivered(topic, "half") == list(range(HALF, 2 * HALF))
    assert ground.delivered(topic, "holes") == [number for number in range(2 * HALF) if number % 3 != 0]


def test_a_deleted_topic_comes_back_under_one_that_was_made_anew(ground: Ground) -> None:
    topic = ground.marks.topic("anew")
    ground.fill(topic)
    delete(ground.opened, topic)
    trashed = ground.generation(topic)
    for record, first in ((First, 60), (Second, 65)):
        producer = ground.client.create_producer(topic, schema=AvroSchema(record), batching_enabled=False)
        # As a consumer does that connects again.
        ground.client.subscribe(
            topic, "half", consumer_type=pulsar.ConsumerType.Shared, initial_position=pulsar.InitialPosition.Earliest
        ).close()
        for number in range(first, first + 5):
            producer.send(record(number=number))
    ground.consume(topic, "half", 10, keep=lambda number: number in (62, 68))
    with pytest.raises(RefusedError, match="--under-live"):
        ground.operations.restore.run(trashed, RestoreRequest())
    # The producer stays connected, and loads the topic again at once.
    result = ground.operations.restore.run(trashed, RestoreRequest(under_live=True))
    assert (result.gone, result.problems) == ((), ())
    for number in range(70, 75):
        producer.send(Second(number=number))
    producer.close()
    assert ground.read(topic) == list(range(75))
    rest = list(range(60, 75))
    assert ground.delivered(topic, "half") == [*range(HALF, 2 * HALF), 62, 68, *range(70, 75)]
    assert ground.delivered(topic, "full") == rest
    assert ground.delivered(topic, "holes") == [*(number for number in range(60) if number % 3 != 0), *rest]
    assert ground.delivered(topic, "idle") == list(range(75))


def test_a_deleted_topic_comes_back_under_another_name_next_to_one_with_other_schemas(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No sweep looks for its policies.
    monkeypatch.setattr("bookwarden.cli.trash._POLICIES_WAIT_S", 0.0)
    topic, other = ground.marks.topic("renumbered"), ground.marks.topic("renamed")
    ground.fill(topic)
    before, ledgers = ground.state(topic), listed(ground.marks.swept, topic)
    delete(ground.opened, topic)
    trashed = ground.generation(topic)
    # Its first version is the former topic's second.
    producer = ground.client.create_producer(topic, schema=AvroSchema(Second), batching_enabled=False)
    for number in range(60, 65):
        producer.send(Second(number=number))
    producer.close()
    with pytest.raises(RefusedError, match=f"trash restore {topic} --as NAME"):
        ground.operations.restore.plan(trashed, RestoreRequest(under_live=True))
    planned = ground.run("restore", topic, "--as", other)
    (one,) = planned["topics"]
    assert (one["topic"], one["restored_from"], one["schema_versions"], one["lost"]) == (other, topic, 2, [])
    ground.run("restore", topic, "--as", other, "--execute")
    assert ground.generations(topic) == []
    assert ground.state(other) == before
    former = [mark for record in trashed.records for mark in record.marks("a test")]
    rows = ground.marks.swept.sweep(*former)
    assert {row.outcome for row in rows} == {Outcome.MISMATCH}
    assert all(ground.marks.swept.exists(mark.ledger_id) for mark in former)
    # A broker that loads it replaces the last one, which is empty.
    holders: dict[int, Holder] = dict.fromkeys(ledgers[:-1], ManagedLedgerHolder(managed_ledger_of(other)))
    assert trashed.schema is not None
    holders |= dict.fromkeys(trashed.schema.schemas, SchemaHolder(TopicName.parse(other).schema_id))
    rows = ground.marks.swept.sweep(*(mark_of_holder(one, holder, "a test") for one, holder in holders.items()))
    assert {row.outcome for row in rows} == {Outcome.STILL_REFERENCED}
    assert ground.read(other) == list(range(2 * HALF))
    assert ground.read(topic) == list(range(60, 65))
    assert ground.delivered(other, "full") == []
    assert ground.delivered(other, "half") == list(range(HALF, 2 * HALF))
    assert ground.delivered(other, "holes") == [number for number in range(2 * HALF) if number % 3 != 0]
    assert ground.delivered(other, "idle") == list(range(2 * HALF))
    producer = ground.client.create_producer(other, schema=AvroSchema(Third), batching_enabled=False)
    producer.send(Third(number=60, note=""))
    producer.close()
    assert ground.state(other)[0] == 3
    assert ground.delivered(other, "full") == [60]
    # Its ledgers are that topic's like any other now, and go with it.
    delete(ground.opened, other)
    kept = {mark.ledger_id: mark for one in ground.generation(other).found for mark in one.record.marks("a test")}
    # Cursors' ledgers that newer ones replaced are marked at once.
    rest = {
        ledger_id
        for ledger_id in {mark.ledger_id for mark in former} - kept.keys()
        if ground.marks.swept.exists(ledger_id)
    }
    kept |= {mark.ledger_id: mark for mark in received(ground.marks.connection, ground.marks.site, rest)}
    ground.marks.swept.sweep(*kept.values())
    assert not any(ground.marks.swept.exists(mark.ledger_id) for mark in (*former, *kept.values()))
    assert ground.read(topic) == list(range(60, 65))


def test_a_partitioned_topic_comes_back_by_the_command(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    # No sweep looks for its policies.
    monkeypatch.setattr("bookwarden.cli.trash._POLICIES_WAIT_S", 0.0)
    topic = ground.marks.topic("partitioned")
    ground.admin.put(f"{topic_path(topic)}/partitions", 2)
    ground.client.subscribe(topic, "sub", consumer_type=pulsar.ConsumerType.Shared).close()
    send(ground.client, topic, 30)
    delete(ground.opened, topic, partitions=2)
    planned = ground.run("restore", topic)
    assert (planned["partitions"], len(planned["topics"])) == (2, 2)
    assert sum(one["subscriptions"] == [] for one in planned["topics"]) == 0
    ground.run("restore", topic, "--execute")
    assert Topics(ground.admin).partition_count(topic) == 2
    consumer = ground.client.subscribe(topic, "sub", consumer_type=pulsar.ConsumerType.Shared)
    found = [int(consumer.receive(timeout_millis=30_000).data()) for _ in range(30)]
    assert sorted(found) == list(range(30))
    with pytest.raises(pulsar.Timeout):
        consumer.receive(timeout_millis=500)
    assert ground.run("list", topic)["generations"] == []


def test_ledgers_and_a_subscription_come_back_on_a_topic_that_lives(ground: Ground) -> None:
    topic = ground.marks.topic("lives")
    ground.fill(topic)
    ground.admin.delete(f"{topic_path(topic)}/subscription/holes?force=true")
    eventually(lambda: any(one.removed for one in ground.generations(topic)), 30)
    ground.operations.restore.run(ground.generation(topic), RestoreRequest("holes"))
    assert ground.delivered(topic, "holes") == [number for number in range(2 * HALF) if number % 3 != 0]
    # Truncated: the subscriptions stay where that put them.
    before = listed(ground.marks.swept, topic)
    ground.admin.delete(f"{topic_path(topic)}/truncate")
    eventually(lambda: not set(before[:-1]) & set(listed(ground.marks.swept, topic)), 30)
    eventually(lambda: any(one.trims for one in ground.generations(topic)), 30)
    result = ground.operations.restore.run(ground.generation(topic), RestoreRequest(under_live=True))
    assert (result.gone, result.problems) == ((), ())
    assert ground.read(topic) == list(range(2 * HALF))
    assert ground.delivered(topic, "idle") == []


def test_follow_and_the_scan_leave_what_is_in_the_trash_and_say_so(
    ground: Ground, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Brokers that mark have five minutes for it.
    monkeypatch.setattr("bookwarden.follow.brokers.BROKERS_FIRST_MS", 100)
    site, topic, lives = ground.marks.site, ground.marks.topic("kept"), ground.marks.topic("trimmed")
    following = FollowingSite(site, grace_s=0.1)
    site.overrides |= {
        "orphans.folder": str(site.folder / "orphans"),
        "orphans.min_age_days": "0",
        "orphans.longest_compaction_hours": "0",
        "orphans.seen_apart_hours": "0",
    }
    for each in (topic, lives):
        ground.fill(each)
    trimmed = set(listed(ground.marks.swept, lives)[:-1])
    following.run_once()
    delete(ground.opened, topic)
    ground.admin.delete(f"{topic_path(lives)}/truncate")

    def kept() -> frozenset[int]:
        return TrashedLedgers([ground.opened.store]).read()

    eventually(lambda: kept() >= trimmed, 30)
    trash = kept()
    own = trimmed | ground.generation(topic).ledger_ids
    assert own <= trash
    eventually(lambda: DropOutcome.IN_TRASH.value in following.run_once(), 30)
    scanned = ground.command("orphans", "scan", codes=(0, 20))
    classes = {each["ledger_class"]: each["ledgers"] for each in scanned["summary"]["by_class"]}
    there = {one for one in trash if ground.command("ledger", "explain", str(one), codes=range(30))["present"]}
    assert classes[LedgerClass.IN_TRASH.value] == len(there)
    plan = ground.command("orphans", "plan", "show", scanned["plan"]["plan_id"])
    assert {row["ledger_id"] for row in plan["candidates"]} & trash == set()
    in_flight = {ledger_id for _, ledger_id, *_ in ground.opened.deletion_topics.requests_in_flight()}
    # A probe may have been dropped while the broker read the lease, and marked in part.
    assert in_flight & own == set()
    assert kept() >= trash


@pytest.mark.parametrize("is_loaded", [True, False], ids=["loaded", "after a restart"])
def test_a_topic_whose_nodes_are_lost_comes_back_from_its_ledgers(
    ground: Ground, cluster: DevCluster, is_loaded: bool
) -> None:
    topic = ground.marks.topic("lost")
    ground.fill(topic)
    before, ledgers = ground.state(topic), listed(ground.marks.swept, topic)
    store = ground.opened.store
    schema = store.get(schema_path(TopicName.parse(topic).schema_id))
    if not is_loaded:
        # A broker that is killed keeps the ledgers of cursors, where one that unloads writes positions into nodes.
        cluster.broker.kill()
    lose(store, topic)
    if not is_loaded:
        cluster.broker.start()
    planned = ground.run("restore", topic, "--from-ledgers")
    (one,) = planned["topics"]
    assert {found["name"] for found in one["subscriptions"]} <= set(before[1])
    assert {"properties", "other subscriptions"} <= {what for what, _ in one["lost"]}
    ground.run("restore", topic, "--from-ledgers", "--execute")
    assert set(listed(ground.marks.swept, topic)) >= set(ledgers[:-1])
    assert schema is not None
    again = store.get(schema_path(TopicName.parse(topic).schema_id))
    assert again is not None
    assert again.value == schema.value
    assert ground.read(topic) == list(range(2 * HALF))
    assert ground.delivered(topic, "full") == []
    assert ground.delivered(topic, "half") == list(range(HALF, 2 * HALF))
    assert ground.delivered(topic, "holes") == [number for number in range(2 * HALF) if number % 3 != 0]
    producer = ground.client.create_producer(topic, schema=AvroSchema(Second), batching_enabled=False)
    for number in range(60, 90):
        producer.send(Second(number=number))
    producer.close()
    assert ground.read(topic) == list(range(90))
    # The same while it is there, with an empty list.
    ground.admin.put(f"{topic_path(topic)}/unload")
    path = managed_ledger_path(managed_ledger_of(topic))
    node = store.get(path)
    assert node is not None
    store.put(path, with_ledger_entries(node.value, {}), node.version)
    ground.run("restore", topic, "--from-ledgers", "--under-live", "--execute")
    assert ground.read(topic) == list(range(90))


def lose(store: MetadataStore, topic: str) -> None:
    """Delete the nodes of a topic, of its subscriptions, and of its schema."""
    path = managed_ledger_path(managed_ledger_of(topic))
    children = [f"{path}/{name}" for name in store.children_of(path)]
    for each in (*children, path, schema_path(TopicName.parse(topic).schema_id)):
        node = store.get(each)
        assert node is not None
        store.delete_many([(each, node.version)])
