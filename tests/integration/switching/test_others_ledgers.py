"""Ledgers of others next to ours: a second client of the first cluster's counter, a shared cluster, a lost registry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pulsar
import pytest

from bookwarden.bookie_clusters.brokers import read_brokers
from bookwarden.bookie_clusters.registering import OWN_ID_ROOT
from bookwarden.clusters.bookkeeper.ledger_ids import LedgerIds
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden_dev.demo.ledger_places import ledgers_of_topic
from bookwarden_dev.devcluster.bookie_clusters import ClusterPlan
from bookwarden_dev.devcluster.servers.settings import PULSAR_VERSIONS, PULSARS_LEDGERS_ROOT
from servers.switching.others_ledgers import OthersLedgers
from servers.switching.round_trip import LONE_BOOKIES
from servers.switching.site import SwitchingSite, switching_site
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(900)]

CLUSTERS = (
    ClusterPlan("a", PULSARS_LEDGERS_ROOT, bookies=1, own_zookeeper=True),
    ClusterPlan("b", "/bookies-b", bookies=1),
)
SETTINGS = {**LONE_BOOKIES, "managedLedgerMaxEntriesPerLedger": "10"}
COUNT = 30
NEW_OWNER = "00c0ffee"
PATIENCE = 120


class Order(pulsar.schema.Record):  # type: ignore[misc] # The client has no types.
    number = pulsar.schema.Integer()


SCHEMA = pulsar.schema.AvroSchema(Order)


@pytest.fixture
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwitchingSite]:
    home = tmp_path_factory.mktemp("others")
    with switching_site(home, PULSAR_VERSIONS[-1:], CLUSTERS, SETTINGS) as running:
        yield running


class Topics:
    """Topics with a schema, and how many messages each has."""

    def __init__(self, site: SwitchingSite) -> None:
        self.site = site
        self.names = site.new_topics(2)
        self.sent = 0

    def send(self) -> None:
        with closing(self.site.connection.client()) as client:
            for topic in self.names:
                producer = client.create_producer(topic, schema=SCHEMA, batching_enabled=False)
                for number in range(self.sent, self.sent + COUNT):
                    producer.send(Order(number=number))
        self.sent += COUNT

    def require_all(self) -> None:
        """Have brokers that remember nothing serve every message."""
        self.site.kill_brokers(self.names)
        with closing(self.site.connection.client()) as client:
            for topic in self.names:
                reader = client.create_reader(topic, pulsar.MessageId.earliest, schema=SCHEMA)
                read = []
                while reader.has_message_available():
                    read.append(reader.read_next(60_000).value().number)
                assert read == list(range(self.sent))

    def ledgers(self) -> frozenset[int]:
        self.site.store.sync()
        return frozenset().union(*(ledgers_of_topic(self.site.store, topic) for topic in self.names))


def lose_and_make_again(site: SwitchingSite) -> None:
    """Lose the registry while no broker lives, and register the first cluster with its earlier owner."""
    former = site.registry().owner
    for broker in site.brokers:
        broker.process.kill()
    eventually(lambda: not read_brokers(site.store), PATIENCE)
    site.remove_registry()
    uri = site.servers.clusters["a"].metadata_service_uri
    told = site.refusal("register", "--bootstrap", "--name", "a", "--metadata-service-uri", uri, "--yes")
    assert f"owner marks that were not named: {former} (" in told
    site.register("a", "--bootstrap", "--owner", NEW_OWNER, "--owner", former)
    registry = site.registry()
    assert (registry.owner, registry.former_owners) == (NEW_OWNER, (former,))


def test_ledgers_of_others_are_passed_over_and_stay(site: SwitchingSite) -> None:
    # Ids of the brokers are counted apart from those that any other client of this cluster gets.
    assert (site.registry().id_root, site.registry().cluster("a").unmarked_below) == (OWN_ID_ROOT, 0)
    topics = Topics(site)
    topics.send()
    lose_and_make_again(site)
    topics.require_all()
    on_a = OthersLedgers(site, "a")
    on_a.make_by_counter(20)
    # The ids that brokers count to next are taken here.
    topics.send()
    assert not topics.ledgers() & on_a.ids

    given = LedgerIds(site.store, OWN_ID_ROOT).next_id()
    on_b = OthersLedgers(site, "b")
    # Among them those of every ledger of ours, also of schemas; and those that brokers count to next.
    on_b.make(range(given + 10))
    uri = site.servers.clusters["b"].metadata_service_uri
    told = site.refusal("register", "--name", "b", "--metadata-service-uri", uri, "--yes")
    assert "are there that this Pulsar cluster did not make" in told
    site.register("b", "--shared")
    site.wait_until_followed()
    topics.require_all()

    site.command("switch", "--target", "b", "--yes")
    topics.send()
    made = topics.ledgers() & site.places().by_cluster["b"] - on_b.ids
    assert len(made) >= len(topics.names)
    # The second client of a comes to the ids of what is on b.
    on_a.make_by_counter(len(made) + 40)
    assert made & on_a.ids
    topics.require_all()
    site.command("rollback", "--yes")
    # Now a is asked first.
    topics.require_all()
    topics.send()
    topics.require_all()

    for topic in topics.names:
        site.admin.delete(topic_path(topic), params={"force": True})
    eventually(lambda: not made & (site.places().by_cluster["b"] - on_b.ids), PATIENCE)
    assert on_a.are_all_there()
    assert on_b.are_all_there()
