"""Brokers in mode two-phase with the driver for several bookie clusters, through a switch: 4.0.8 and 4.2.4."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pulsar
import pytest

from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.trash.generations import TrashedGeneration
from bookwarden.trash.other_name import under_name
from bookwarden.trash.plan import RestoreRequest
from bookwarden.trash.records import by_node
from bookwarden.trash.release import release
from bookwarden.wire.broker_marks import DELETION_TOPIC_NODE, MARKING_BROKERS, OUTBOX_ROOT
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.deletion import marker_of
from bookwarden.wiring.trash import TrashOperations
from bookwarden_dev.devcluster.bookie_clusters import SiteBroker
from servers.deletion_site import DeletionSite
from servers.marking_brokers import MARKING_SETTINGS, MarkingGround, outbox, run
from servers.pool import ENTRIES_PER_LEDGER, ServerPool
from servers.switching.copied import copy_namespace
from servers.switching.shared_site import BOTH_VERSIONS, shared_site
from servers.switching.site import SwitchingSite
from servers.topic_contents import listed, managed_ledger_of, read_back, retain
from servers.trashed_topics import delete, keep_dropped
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(900)]

_SETTINGS = {
    **MARKING_SETTINGS,
    "bookwardenMarks": "two-phase",
    "bookwardenMarksTakeOverAfterSeconds": "5",
    # Of the deletion topics' own ledgers, which a broker that is gone never deletes.
    "bookwardenMarksSendAfterSeconds": "10",
    "managedLedgerMaxEntriesPerLedger": str(ENTRIES_PER_LEDGER),
}


@pytest.fixture(scope="module")
def site(pool: ServerPool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwitchingSite]:
    with shared_site(pool, tmp_path_factory, BOTH_VERSIONS, _SETTINGS, anew=True) as running:
        yield running


def ground(site: SwitchingSite, topics: list[str], folder: Path) -> MarkingGround:
    """Make the deletion topic in the namespace of these topics; commands and lookups go to the last broker."""
    namespace = "/".join(topics[0].removeprefix("persistent://").split("/")[:2])
    broker = site.brokers[-1]
    deletion = DeletionSite(broker.service_url, broker.admin_url, site.servers.store_url, namespace, folder)
    made = MarkingGround(broker.connection(), deletion, ("/ledgers", "/bookies-b"))
    made.admin.post(f"/namespaces/{namespace}/retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})
    return made


def folder_of(site: SwitchingSite, broker: SiteBroker) -> str:
    """Return the name of its outbox; empty while it does not say that it marks."""
    names = site.store.children_of(MARKING_BROKERS)
    return next((name for name in names if name.startswith(f"{broker.broker_id}-")), "")


def keep_outboxes(site: SwitchingSite) -> None:
    """Take the deletion topic's node from the brokers, which keep all in their outboxes then."""
    node = site.store.get(DELETION_TOPIC_NODE)
    assert node is not None
    site.store.delete_many([(DELETION_TOPIC_NODE, node.version)])


def test_what_is_dropped_before_and_after_a_switch_is_left_to_the_sweep(site: SwitchingSite, tmp_path: Path) -> None:
    site.ensure("a")
    topics = site.new_topics(2)
    with closing(ground(site, topics, tmp_path)) as at, closing(at.connection.client()) as client:
        for topic in topics:
            client.subscribe(topic, "sub").close()
        # Each of the brokers, and so each version, has one of them.
        site.spread(topics)
        dropped = set[int]()
        for topic in topics:
            dropped |= at.trim(client, topic)
        site.switch("b")
        for topic in topics:
            for _ in range(2):
                dropped |= at.trim(client, topic)
        assert {ledger.bookie_cluster for ledger in at.swept.new_ledgers(sorted(dropped))} == {"a", "b"}
        for topic in topics:
            at.look(topic)
            at.admin.delete(f"/persistent/{topic.removeprefix('persistent://')}?force=true")
            eventually(lambda topic=topic: not listed(at.swept, topic), 30)
        assert at.gone() == []
        at.sweep_all(set(at.ever))
        modes = {one["name"]: one["marking"]["mode"] for one in run(at.site, "status")["brokers"]}
    assert modes == {one.broker_id: "two-phase" for one in site.brokers}


@pytest.fixture
def used_site(pool: ServerPool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwitchingSite]:
    """The same with all that other tests left there."""
    with shared_site(pool, tmp_path_factory, BOTH_VERSIONS, _SETTINGS) as running:
        yield running


def extend(client: pulsar.Client, topic: str, first: int) -> None:
    """Send 15 messages, which end a ledger of ten or more; the subscription acknowledges five that it is given."""
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(first, first + 15):
        producer.send(str(number).encode())
    producer.close()
    for _ in range(5):
        consumer.acknowledge(consumer.receive(timeout_millis=60_000))
    consumer.close()


def received(client: pulsar.Client, topic: str, count: int) -> list[int]:
    with closing(client.subscribe(topic, "sub")) as consumer:
        return sorted(int(consumer.receive(timeout_millis=60_000).data()) for _ in range(count))


def test_topics_that_are_deleted_around_a_switch_come_back_and_go(used_site: SwitchingSite, tmp_path: Path) -> None:
    site = used_site
    site.ensure("a")
    topics = before, within, after = site.new_topics(3)
    with (
        closing(ground(site, topics, tmp_path)) as at,
        closing(at.connection.client()) as client,
        Cluster(at.site.settings) as opened,
    ):
        retain(at.admin, at.site.namespace)
        keep_dropped(opened, at.site.namespace)
        operations = TrashOperations(opened, operator="tester")
        site.spread(topics)
        for topic in topics:
            extend(client, topic, 0)

        def of(topic: str) -> TrashedGeneration:
            (found,) = (
                one
                for one in operations.records.read().generations
                if one.managed_ledger == managed_ledger_of(topic) and one.topic is not None
            )
            return found

        def places(topic: str) -> set[str]:
            found = at.swept.new_ledgers(sorted(of(topic).ledger_ids))
            return {place.bookie_cluster for ledger in found for place in ledger.places}

        delete(opened, before)
        with ThreadPoolExecutor(1) as pool:
            # Its metadata has a ZooKeeper of its own.
            switched = pool.submit(site.switch, "c")
            extend(client, within, 15)
            delete(opened, within)
            switched.result()
        site.wait_until_served([after])
        # One goes on in the other cluster, and one is made again there.
        at.admin.put(f"{topic_path(after)}/unload")
        at.admin.put(topic_path(before))
        for topic in (after, before):
            extend(client, topic, 15)
        delete(opened, after)
        assert places(before) == {"a"}
        assert places(after) == {"a", "c"}
        kept = {topic: sorted(of(topic).ledger_ids) for topic in topics}

        # The one that was open in a when its topic was deleted comes before what there is in c.
        for topic, request in ((before, RestoreRequest(under_live=True)), (within, None), (after, None)):
            result = operations.restore.run(of(topic), request or RestoreRequest())
            assert (result.gone, result.problems, result.left) == ((), (), ()), topic
            assert result.plan is not None
            assert not result.plan.lost, topic
        assert {len(read_back(client, topic)) for topic in topics} == {30}
        assert received(client, before, 20) == [*range(5, 15), *range(20, 30)]
        for topic in (within, after):
            assert received(client, topic, 20) == [*range(10, 30)]

        # Marks of what came back delete nothing, in neither cluster.
        for topic in topics:
            holder = ManagedLedgerHolder(managed_ledger_of(topic))
            named = set(kept[topic]) & set(listed(at.swept, topic))
            assert {at.swept.outcome(one, holder).outcome for one in named} == {Outcome.STILL_REFERENCED}
            assert all(at.swept.exists(one) for one in named)

        # The same under another name, with ledgers that are in both.
        copied = copy_namespace(site, at.site.namespace, "a", "c")
        assert copied & set(listed(at.swept, after))
        delete(opened, after)
        name = TopicName.parse(f"{after}-renamed")
        result = operations.restore.run(under_name(of(after), name), RestoreRequest())
        assert (result.gone, result.problems, result.left) == ((), (), ())
        assert len(read_back(client, str(name))) == 30
        # What the trash lets go of goes in both.
        delete(opened, str(name))
        ledgers = set(of(str(name)).ledger_ids)
        assert places(str(name)) == {"a", "c"}
        records = by_node(of(str(name)).found).items()
        catalog = opened.bookkeeper.deletion_catalog
        assert not release(operations.records.nodes, marker_of(opened), records, "purged", catalog).kept
        at.sweep_all(ledgers)


@pytest.mark.parametrize("fault", ["killed", "suspended"])
def test_the_outbox_of_a_broker_that_is_gone_is_taken_over(site: SwitchingSite, tmp_path: Path, fault: str) -> None:
    site.ensure("a")
    (topic,) = site.new_topics(1)
    victim, other = site.brokers
    with closing(ground(site, [topic], tmp_path)) as at, closing(at.connection.client()) as client:
        client.subscribe(topic, "sub").close()
        site.spread([topic], broker=victim)
        assert site.owner(topic) == victim.service_url
        keep_outboxes(site)
        dropped = at.trim(client, topic)
        taken = folder_of(site, victim)
        assert dropped <= set(outbox(site.store))
        if fault == "killed":
            victim.process.kill()
        else:
            victim.process.pause()
        try:
            with Cluster(at.site.settings) as cluster:
                topics = cluster.deletion_topics
                topics.publish()
            eventually(lambda: taken not in site.store.children_of(OUTBOX_ROOT), 120)
        finally:
            if fault == "suspended":
                victim.process.resume()
        assert at.gone() == []
        if fault == "killed":
            victim.process.start()
        # It marks again: in the folder that was deleted, if it was only away.
        eventually(lambda: folder_of(site, victim), 120)
        site.wait_until_served([topic])
        site.spread([topic], broker=victim)
        eventually(lambda: site.owner(topic) == victim.service_url, 60)
        dropped |= at.trim(client, topic)
        assert at.gone() == []
        at.sweep_all(dropped)
        assert {name.rpartition("-")[0] for name in site.store.children_of(MARKING_BROKERS)} == {
            victim.broker_id,
            other.broker_id,
        }
