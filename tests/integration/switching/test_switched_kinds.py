"""Ledgers of every kind over a switch: of transactions, compacted, of delayed messages' buckets, of shadow topics.

Of the two brokers one is of 4.0.8 and one of 4.2.4; each has a topic of each kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pulsar
import pytest
import urllib3

from bookwarden.clusters.pulsar.metadata.managed_ledgers import ManagedLedgers
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden_dev.devcluster.bookie_clusters import SiteBroker
from servers.pool import ServerPool
from servers.pulsar_topics import unload
from servers.switching.open_transactions import open_transactions
from servers.switching.shared_site import BOTH_VERSIONS, shared_site
from servers.switching.site import SwitchingSite
from servers.topic_contents import compact, managed_ledger_of, read_back
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(900)]

SETTINGS = {
    "managedLedgerMaxEntriesPerLedger": "10",
    # A bucket is stored when a message comes in a further ledger.
    "delayedDeliveryTrackerFactoryClassName": "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory",
    "delayedDeliveryMinIndexCountPerBucket": "5",
    "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": "2",
    "transactionCoordinatorEnabled": "true",
}
COUNT = 25
KEYS = 5
# Of the ledgers that this makes the last has no bucket yet.
BUCKETS = 4
# One that does not end while the test runs, and one that does; nothing depends on when.
FAR, SOON = timedelta(hours=1), timedelta(seconds=30)
PATIENCE = 180


@pytest.fixture
def site(pool: ServerPool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwitchingSite]:
    with shared_site(pool, tmp_path_factory, BOTH_VERSIONS, SETTINGS, anew=True) as running:
        yield running


class Kinds:
    """A topic of each kind on one broker, with producers and consumers that stay connected."""

    def __init__(self, site: SwitchingSite, client: pulsar.Client, broker: SiteBroker) -> None:
        self.site, self.client, self.broker = site, client, broker
        self.compacted, self.far, self.soon, self.source, self.transacted = site.new_topics(5)
        self.shadow = self.source.replace("topic-", "shadow-")
        site.admin.put(topic_path(self.shadow), {"PULSAR.SHADOW_SOURCE": self.source})
        site.admin.put(f"{topic_path(self.source)}/shadowTopics", [self.shadow])
        self.go_home()
        shared = pulsar.ConsumerType.Shared
        self.waiting = {topic: client.subscribe(topic, "s", consumer_type=shared) for topic in (self.far, self.soon)}
        sending = (self.compacted, self.far, self.soon, self.source)
        self.producers = {topic: client.create_producer(topic, batching_enabled=False) for topic in sending}

    def go_home(self) -> None:
        """Let the broker have all topics, wherever they are."""
        topics = (self.compacted, self.far, self.soon, self.source, self.transacted, self.shadow)

        def at_home() -> bool:
            away = [topic for topic in topics if self.site.owner(topic) != self.broker.service_url]
            # A client that comes back at once may bring another broker to take it first.
            self.site.spread(away, broker=self.broker)
            return not away

        eventually(at_home, PATIENCE, pause=0.5)

    def send(self, first: int) -> None:
        """Send some messages to each topic; what is not acknowledged raises the client's error."""
        for topic, producer in self.producers.items():
            delay = {self.far: FAR, self.soon: SOON}.get(topic)
            for number in range(first, first + COUNT):
                producer.send(str(number).encode(), partition_key=str(number % KEYS), deliver_after=delay)

    def newest_of_each_key(self) -> list[bytes]:
        """Read the compacted topic, after it was loaded anew."""
        unload(self.site.admin, self.compacted)
        reader = self.client.create_reader(self.compacted, pulsar.MessageId.earliest, is_read_compacted=True)
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(timeout_millis=60_000).data())
        reader.close()
        return found

    def receive_all(self, topic: str) -> set[bytes]:
        """Receive what was delayed; what was delivered when the brokers were killed comes again."""
        received: set[bytes] = set()
        while len(received) < 2 * COUNT:
            message = self.waiting[topic].receive(PATIENCE * 1000)
            received.add(message.data())
            self.waiting[topic].acknowledge(message)
        return received

    def buckets(self) -> set[int]:
        """Return the ledgers of the buckets whose messages are far."""
        cursors = ManagedLedgers(self.site.store).cursors(managed_ledger_of(self.far))
        return {bucket for cursor in cursors.values() for bucket in cursor.info.delayed_bucket_ids}

    def check(self) -> None:
        """Check that the brokers serve all that was sent before and after the switch."""
        assert self.newest_of_each_key() == numbers(2 * COUNT - KEYS, 2 * COUNT)
        # A shadow topic has no ledgers: it reads those of its source.
        eventually(lambda: read_back(self.client, self.shadow) == numbers(0, 2 * COUNT), PATIENCE)
        # A reader does not wait for what is delayed.
        assert read_back(self.client, self.far) == numbers(0, 2 * COUNT)


def numbers(first: int, end: int) -> list[bytes]:
    return [str(number).encode() for number in range(first, end)]


def clusters_of(site: SwitchingSite, ledger_ids: Iterable[int]) -> set[str]:
    wanted = set(ledger_ids)
    return {name for name, ids in site.places().by_cluster.items() if ids & wanted}


def trackers_buckets(site: SwitchingSite, topic: str) -> float:
    """Count the buckets that brokers have in use for a topic's subscription, and the one that is not stored yet."""
    begin = "pulsar_delayed_message_index_bucket_total{"
    lines = []
    with urllib3.PoolManager(timeout=60.0) as pool:
        for broker in site.brokers:
            lines += pool.request("GET", f"{broker.admin_url}/metrics/").data.decode().splitlines()
    marks = (f'topic="{topic}"', 'subscription="s"')
    return sum(float(line.split()[-1]) for line in lines if line.startswith(begin) and all(m in line for m in marks))


def test_ledgers_of_every_kind_go_over_a_switch(site: SwitchingSite, tmp_path: Path) -> None:
    site.ensure("a")
    with closing(site.connection.client()) as client:
        grounds = [Kinds(site, client, broker) for broker in site.brokers]
        transacted = [kinds.transacted for kinds in grounds]
        with open_transactions(site.connection.service_url, transacted, tmp_path / "transactions.log") as transactions:
            compacted = []
            for kinds in grounds:
                kinds.send(0)
                compacted.append(compact(site.admin, kinds.compacted))
                eventually(lambda kinds=kinds: clusters_of(site, kinds.buckets()) == {"a"}, PATIENCE)
            assert clusters_of(site, compacted) == {"a"}
            transactions.wait_for(1)
            assert site.command("switch", "--target", "b", "--yes")["behind"] == []
            transactions.go_on(2)
            for kinds, former in zip(grounds, compacted, strict=True):
                assert kinds.newest_of_each_key() == numbers(COUNT - KEYS, COUNT)
                kinds.send(COUNT)
                assert clusters_of(site, [compact(site.admin, kinds.compacted)]) == {"b"}
                eventually(lambda former=former: not clusters_of(site, [former]), PATIENCE)
                eventually(lambda kinds=kinds: len(kinds.buckets()) == BUCKETS, PATIENCE)
                kinds.check()
            # Once more with brokers that find everything anew.
            site.kill_brokers(transacted)
            transactions.go_on(3)
        for kinds in grounds:
            kinds.go_home()
            kinds.check()
            stored = kinds.buckets()
            assert clusters_of(site, stored) == {"a", "b"}
            # One that a broker cannot find is not in use, and forgotten.
            eventually(lambda kinds=kinds: trackers_buckets(site, kinds.far) == BUCKETS + 1, PATIENCE)
            assert kinds.buckets() == stored
            assert len(stored) == BUCKETS
            assert kinds.receive_all(kinds.soon) == set(numbers(0, 2 * COUNT))
            site.admin.delete(f"{topic_path(kinds.far)}/subscription/s", params={"force": True})
            eventually(lambda stored=stored: not clusters_of(site, stored), PATIENCE)
    assert site.places().astray == ()
    assert site.metric("refusals_total") == [0.0, 0.0]
