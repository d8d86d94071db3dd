"""Stock brokers are moved to another bookie cluster and back: stopped, everything copied, started there."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pulsar
import pytest
from click.testing import CliRunner
from pulsar.schema import AvroSchema, Integer, Record

from bookwarden.bookie_clusters.brokers import read_brokers
from bookwarden.bookie_clusters.registry import is_ours
from bookwarden.cli.main import cli
from bookwarden.clusters.bookkeeper.copying.copier import LedgerCopier
from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.pulsar.metadata.managed_ledgers import ManagedLedgers
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.ledgers.custom_metadata import OWNER_KEY
from bookwarden.ledgers.metadata import LedgerMetadata
from bookwarden.ledgers.outcomes import CopyResult
from bookwarden.wire.ledger_metadata import encode_ledger_metadata
from bookwarden_dev.devcluster.bookie_clusters import ClusterPlan, SwitchablePulsar
from bookwarden_dev.devcluster.servers.settings import PULSARS_LEDGERS_ROOT
from servers.switching.round_trip import LONE_BOOKIES
from servers.switching.site import SwitchingSite
from servers.topic_contents import managed_ledger_of
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(1800)]

SETTINGS = {
    **LONE_BOOKIES,
    "managedLedgerMaxEntriesPerLedger": "20",
    # More holes than this, and a cursor's ledger stays after its topic is closed.
    "managedLedgerMaxUnackedRangesToPersistInMetadataStore": "5",
}
SUBSCRIPTION = "s"
REFUSED = 5
PATIENCE = 120


class Order(Record):  # type: ignore[misc]
    number = Integer()


CLUSTERS = (
    ClusterPlan("a", PULSARS_LEDGERS_ROOT, bookies=1),
    ClusterPlan("b", "/bookies-b", bookies=1, own_zookeeper=True),
)


# The other is "4.2.4 oxia"; its first start on a machine builds Oxia.
VERSION, METADATA = os.environ.get("STOCK_PULSAR", "4.0.8 zookeeper").split()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwitchingSite]:
    home = tmp_path_factory.mktemp("offline")
    with SwitchablePulsar(
        home, None, clusters=CLUSTERS, brokers=[VERSION], metadata=METADATA, broker_settings=SETTINGS
    ) as servers:
        servers.start_bookies()
        servers.start_brokers()
        with closing(SwitchingSite(servers)) as running:
            yield running


class Topics:
    """Topics with a schema, and what was sent to them and acknowledged."""

    def __init__(self, site: SwitchingSite, count: int) -> None:
        self.site = site
        self.topics = site.new_topics(count)
        self.sent = 0
        self.acknowledged = frozenset[int]()

    def send(self, count: int) -> None:
        with closing(self.site.connection.client()) as client:
            for topic in self.topics:
                producer = client.create_producer(topic, schema=AvroSchema(Order), batching_enabled=False)
                for number in range(self.sent, self.sent + count):
                    producer.send(Order(number=number))
        self.sent += count

    def acknowledge_every_other(self, count: int) -> None:
        """Leave holes in the acknowledgements, and let the brokers write them down."""
        with closing(self.site.connection.client()) as client:
            for topic in self.topics:
                consumer = self._subscribed(client, topic)
                for _ in range(count):
                    message = consumer.receive(timeout_millis=60_000)
                    if message.value().number % 2:
                        consumer.acknowledge(message)
        for topic in self.topics:
            self.site.admin.put(f"{topic_path(topic)}/unload")
        self.acknowledged = frozenset(range(1, count, 2))

    def require_all(self) -> None:
        """Every message is there for a reader, and for the subscription what was not acknowledged, and no more."""
        with closing(self.site.connection.client()) as client:
            for topic in self.topics:
                reader = client.create_reader(topic, pulsar.MessageId.earliest, schema=AvroSchema(Order))
                read = []
                while reader.has_message_available():
                    read.append(reader.read_next(timeout_millis=60_000).value().number)
                assert read == list(range(self.sent))
                consumer = self._subscribed(client, topic)
                wanted = set(range(self.sent)) - self.acknowledged
                got = [consumer.receive(timeout_millis=60_000).value().number for _ in wanted]
                assert sorted(got) == sorted(wanted)
                with pytest.raises(pulsar.Timeout):
                    consumer.receive(timeout_millis=200)

    @staticmethod
    def _subscribed(client: pulsar.Client, topic: str) -> Any:
        return client.subscribe(
            topic,
            SUBSCRIPTION,
            consumer_type=pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
            schema=AvroSchema(Order),
        )


def use(site: SwitchingSite, line: str) -> None:
    """Start the broker with a line of broker.conf."""
    (broker,) = site.brokers
    name, _, value = line.partition("=")
    broker.settings[name] = value
    broker.process.start()


def end(site: SwitchingSite, *, clean: bool) -> None:
    """Stop or kill the broker, and wait until the metadata says so."""
    (broker,) = site.brokers
    (broker.process.stop if clean else broker.process.kill)()
    eventually(lambda: not read_brokers(site.store), PATIENCE)


@contextmanager
def a_broker_while_a_ledger_is_copied(site: SwitchingSite, topics: Topics) -> Iterator[None]:
    """Have a broker come, take messages and go before the first result of the copier is looked at."""
    copy, begun = LedgerCopier.copy, list[int]()

    def copied(copier: LedgerCopier, ledger_ids: Iterable[int]) -> Iterator[CopyResult]:
        for result in copy(copier, ledger_ids):
            if not begun:
                begun.append(result.ledger_id)
                site.servers.start_brokers()
                topics.send(30)
                end(site, clean=True)
            yield result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LedgerCopier, "copy", copied)
        yield
    assert begun


@contextmanager
def another_ledger(site: SwitchingSite, name: str, ledger_id: int, like: LedgerMetadata) -> Iterator[None]:
    """Give a cluster a ledger of somebody else's with this id."""
    cluster = site.servers.clusters[name]
    store, path = site.store_of(name), ledger_path(cluster.ledgers_root, ledger_id)
    store.create(path, encode_ledger_metadata(like._replace(custom={})), make_parents=True)
    yield
    node = store.get(path)
    assert node is not None
    store.delete_many([(path, node.version)])


def test_stock_brokers_go_to_another_bookie_cluster_and_back(site: SwitchingSite, tmp_path: Path) -> None:
    a, b = (site.servers.clusters[name] for name in "ab")
    topics = Topics(site, 3)
    topics.send(50)
    topics.acknowledge_every_other(40)
    topics.send(10)
    to_b = ("--target-uri", b.metadata_service_uri, "--folder", str(tmp_path), "--yes")
    first = ledgers_of(site, topics.topics[0])[0]
    with another_ledger(site, "b", first, site.ledgers_of("a")[first]):
        assert f"that this move did not copy there, such as {first}" in move(site, *to_b, exit_code=REFUSED)

    ahead = move(site, *to_b, "--ahead")
    assert ahead["phase"] == "COPYING_AHEAD"
    assert ahead["copied"] >= len(topics.topics) * 3
    topics.send(30)
    assert "stop all of them, then repeat the command" in move(site, *to_b, "--wait", "0", exit_code=REFUSED)

    # Nothing is closed by a kill: what is open has to be recovered.
    end(site, clean=False)
    with a_broker_while_a_ledger_is_copied(site, topics):
        moved = move(site, *to_b)
    assert moved["phase"] == "DONE"
    # The rest began again.
    assert len(list(tmp_path.glob("nodes-*-stopped.jsonl.gz"))) == 2
    assert moved["recovered"] >= len(topics.topics)
    assert moved["ledgers"]["named"] == moved["ledgers"]["the same"]
    use(site, moved["broker.conf"][0])
    topics.require_all()
    topics.send(30)
    topics.require_all()
    require_newest_in(site, topics, "b")

    end(site, clean=False)
    registered_with_the_owner_of_the_move(site, "b")
    to_a = ("--target-uri", f"metadata-store:{a.store_url}", "--folder", str(tmp_path), "--yes")
    ahead = move(site, *to_a, "--ahead", used=b.metadata_service_uri)
    started_on_the_wrong_cluster(site, topics, f"bookkeeperMetadataServiceUri=metadata-store:{a.store_url}")
    assert move(site, "--restore-nodes", ahead["saved"], "--execute", "--yes")["written"] >= len(topics.topics)
    use(site, moved["broker.conf"][0])
    topics.require_all()

    end(site, clean=True)
    newest = ledgers_of(site, topics.topics[0])[-1]
    with another_ledger(site, "a", newest, site.ledgers_of("b")[newest]._replace(ctime_ms=1)):
        told = move(site, *to_a, used=b.metadata_service_uri, exit_code=REFUSED)
        assert f"ledger {newest}: the target has another ledger of this id" in told
    back = move(site, *to_a, used=b.metadata_service_uri)
    assert (back["phase"], back["recovered"]) == ("DONE", 0)
    assert back["ledgers"]["named"] == back["ledgers"]["the same"]
    use(site, back["broker.conf"][0])
    topics.require_all()
    topics.send(10)
    topics.require_all()
    require_newest_in(site, topics, "a")
    assert site.places().astray == ()


def registered_with_the_owner_of_the_move(site: SwitchingSite, name: str) -> None:
    """Register the target, as for brokers with the jar: its copies have the mark of the registry; then take it back."""
    uri = site.servers.clusters[name].metadata_service_uri
    used = ["--set", f"metadata_store.bookkeeper_url={uri}"]
    words = ["bookie-clusters", "register", "--bootstrap", "--name", name, "--metadata-service-uri", uri, "--yes"]
    ended = CliRunner().invoke(cli, [*site.options, *used, *words])
    assert ended.exit_code == 0, ended.output
    registry, metadata = site.registry(), site.ledgers_of(name)
    marks = Counter(each.custom.get(OWNER_KEY) for each in metadata.values())
    assert marks.keys() == {registry.owner.encode(), None}
    # What the brokers made there is ours too.
    assert all(is_ours(registry, registry.cluster(name), one, each.custom) for one, each in metadata.items())
    site.remove_registry()


def started_on_the_wrong_cluster(site: SwitchingSite, topics: Topics, line: str) -> None:
    """Have a broker load all topics where their last ledgers are not, and stop it."""
    before = {topic: ledgers_of(site, topic) for topic in topics.topics}
    use(site, line)
    for topic in topics.topics:
        site.admin.get_json(f"{topic_path(topic)}/internalStats")
    end(site, clean=True)
    for topic, ledgers in before.items():
        assert ledgers[-1] not in ledgers_of(site, topic)


def require_newest_in(site: SwitchingSite, topics: Topics, name: str) -> None:
    """Each list is in order, and ends with a ledger that the cluster made: its ids are beyond those of the other."""
    for topic in topics.topics:
        ledgers = ledgers_of(site, topic)
        assert ledgers == sorted(ledgers)
        assert ledgers[-1] in site.places().by_cluster[name]


def move(site: SwitchingSite, *words: str, used: str = "", exit_code: int = 0) -> Any:
    """Run the command that has to end so, with settings that name the bookie cluster in use; return what it says."""
    uses = ["--set", f"metadata_store.bookkeeper_url={used}"] if used else []
    line = ["-o", "json", *site.options, *uses, "bookie-clusters", "move", "--offline", *words]
    ended = CliRunner().invoke(cli, line)
    assert ended.exit_code == exit_code, ended.output
    return json.loads(ended.stdout) if exit_code == 0 else ended.output


def ledgers_of(site: SwitchingSite, topic: str) -> list[int]:
    """List a topic's ledgers in its own order."""
    site.store.sync()
    read = ManagedLedgers(site.store).read(managed_ledger_of(topic))
    assert read is not None
    return [ledger.ledger_id for ledger in read.info.ledgers]
