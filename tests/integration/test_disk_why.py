"""What `bookwarden disk why` says of topics of a real broker, each held by something else."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pulsar
import pytest
from click.testing import CliRunner

from bookwarden.cli.disk.commands import describe_disk_use, pins_of_rows
from bookwarden.cli.main import cli
from bookwarden.cli.shell.output import Table, plain
from bookwarden.clusters.pulsar.metadata.managed_ledgers import ManagedLedgers
from bookwarden.clusters.pulsar.metadata.paths import cursor_path, managed_ledger_path
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.config import load_settings
from bookwarden.errors import NotFoundError
from bookwarden.ledgers.disk_use import DiskUse, Use
from bookwarden.ledgers.managed_ledger import Position
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.pins import Pin, PinKind, TopicPins
from bookwarden.wire.cursor import at_position, position_entry
from bookwarden.wire.pb import managed_ledger_pb2
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.topic_pins import pin_search_of
from bookwarden_dev.devcluster import DevCluster
from servers.pool import NEWER, Clusters
from servers.pulsar_topics import unload
from servers.switching.open_transactions import open_transactions
from servers.topic_contents import compact, managed_ledger_of, retain, send, send_keyed
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.timeout(300)]
#: Of three ledgers, and some of the fourth.
MESSAGES = 35


class Site:
    """A namespace without retention on a broker, its topics and what is said of them."""

    def __init__(self, cluster: DevCluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.admin = PulsarAdmin(cluster.connection(), timeout_s=60)
        self.client = cluster.connection().client()
        self.overrides = {
            "metadata_store.urls": f"['{cluster.store_url}']",
            "pulsar.admin_url": cluster.admin_url,
            "pulsar.service_url": cluster.service_url,
        }
        self.settings = load_settings(overrides=self.overrides)
        self.opened = Cluster(self.settings)
        self.ledgers = ManagedLedgers(self.opened.store)

    def close(self) -> None:
        self.opened.close()
        self.client.close()
        self.admin.close()

    def topic(self, name: str) -> str:
        """Make a topic that keeps what is consumed, until `let_go`: else it is trimmed as soon as a ledger is full."""
        # A test that is tried again finds no topic of its first try.
        topic = f"persistent://{self.namespace}/{name}-{uuid4().hex[:8]}"
        self.admin.put(topic_path(topic))
        self.keep(topic, 600)
        return topic

    def keep(self, topic: str, minutes: int) -> None:
        policy = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": minutes}
        self.admin.post(f"{topic_path(topic)}/retention", policy)

    def let_go(self, topic: str) -> None:
        self.admin.delete(f"{topic_path(topic)}/retention")

    def subscribe(self, topic: str, name: str, **options: Any) -> pulsar.Consumer:
        return self.client.subscribe(
            topic, name, initial_position=pulsar.InitialPosition.Earliest, receiver_queue_size=MESSAGES, **options
        )

    def consume(self, topic: str, name: str, but: int | None = None) -> None:
        """Acknowledge all messages with a subscription, except one."""
        consumer = self.subscribe(topic, name, consumer_type=pulsar.ConsumerType.Shared)
        for number in range(MESSAGES):
            message = consumer.receive(10_000)
            if number != but:
                consumer.acknowledge(message)
        consumer.close()

    def why(self, topic: str) -> TopicPins:
        (found,) = pin_search_of(self.opened).of_topic(topic)
        return found

    def listed(self, topic: str) -> list[int]:
        read = self.ledgers.read(managed_ledger_of(topic))
        return [ledger.ledger_id for ledger in read.info.ledgers] if read else []

    def is_loaded(self, topic: str) -> bool:
        return topic in self.admin.get_json("/broker-stats/bookieops").get(self.namespace, {})

    def unload(self, topic: str) -> None:
        unload(self.admin, topic)
        eventually(lambda: not self.is_loaded(topic))


@pytest.fixture(scope="module")
def site(clusters: Clusters, make_namespace: Callable[[DevCluster], str]) -> Iterator[Site]:
    cluster = clusters.shared(NEWER)
    with closing(Site(cluster, make_namespace(cluster))) as made:
        yield made


def only(found: TopicPins) -> Pin:
    assert len(found.holding) == 1, found
    assert found.holding == found.pins[:1]
    return found.holding[0]


def test_a_subscription_with_a_gap_one_that_nobody_reads_and_a_reader(site: Site) -> None:
    topic = site.topic("hole")
    site.subscribe(topic, "idle").close()
    reader = site.client.create_reader(topic, pulsar.MessageId.earliest)
    send(site.client, topic, MESSAGES)
    site.consume(topic, "billing", but=3)
    site.let_go(topic)
    first = site.listed(topic)[0]

    def positioned() -> TopicPins | None:
        found = site.why(topic)
        return found if "before 31 entries" in found.pins[0].what else None

    found = eventually(positioned)
    assert found.loaded
    assert not found.unseen
    gap, idle, reads = found.pins
    assert (gap.kind, gap.name, len(gap.ledgers)) == (PinKind.UNACKNOWLEDGED, "billing", 3)
    assert f"stands at {first}:2: 1 entry is not acknowledged there, before 31 entries that are." in gap.what
    assert "It has no consumer." in gap.what
    assert (idle.kind, idle.name, idle.ledgers) == (PinKind.SUBSCRIPTION, "idle", gap.ledgers)
    assert "35 entries are behind it. It has not moved since the topic was loaded." in idle.what
    assert idle.command == f"bookwarden mark subscription {topic} idle"
    assert (reads.kind, reads.ledgers) == (PinKind.READER, ())
    reader.close()

    # Not loaded: positions and gaps are read from bookies, and asking loads nothing.
    site.unload(topic)
    cold = site.why(topic)
    assert (cold.loaded, cold.unseen) == (False, ())
    assert [(pin.kind, pin.name, len(pin.ledgers)) for pin in cold.pins] == [
        (PinKind.UNACKNOWLEDGED, "billing", 4),
        (PinKind.SUBSCRIPTION, "idle", 4),
        (PinKind.NOT_LOADED, "", 4),
    ]
    assert f"stands at {first}:2: 1 entry is not acknowledged there, before 31 entries that are." in cold.pins[0].what
    assert not site.is_loaded(topic)


def test_a_topic_that_nothing_holds_but_that_no_broker_loads(site: Site) -> None:
    topic = site.topic("cold")
    send(site.client, topic, MESSAGES)
    site.unload(topic)
    before = site.listed(topic)
    assert only(site.why(topic)._replace(pins=site.why(topic).pins[:1])).kind is PinKind.RETENTION
    site.let_go(topic)
    pin = only(site.why(topic))
    assert (pin.kind, pin.ledgers) == (PinKind.NOT_LOADED, tuple(before))
    assert not site.is_loaded(topic)

    # What it says is to be done.
    site.admin.get_json(f"{topic_path(topic)}/stats")
    loaded = site.why(topic)
    assert (loaded.loaded, loaded.pins) == (True, ())
    assert loaded.outlook.startswith("Nothing holds it: the broker trims it at its next check, within 2 minutes.")
    site.admin.post(f"{topic_path(topic)}/trim")
    eventually(lambda: not set(before) & set(site.listed(topic)))


def test_a_reader_holds_nothing(site: Site) -> None:
    topic = f"persistent://{site.namespace}/read"
    reader = site.client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=1)
    first = eventually(lambda: site.listed(topic))[0]
    send(site.client, topic, MESSAGES)
    eventually(lambda: first not in site.listed(topic))
    found = site.why(topic)
    assert PinKind.READER in {pin.kind for pin in found.pins}
    assert [pin.kind for pin in found.holding] in ([PinKind.OPEN_LEDGER], [])
    reader.close()


def test_retention_of_the_topic_and_of_its_namespace(site: Site, make_namespace: Callable[[DevCluster], str]) -> None:
    topic = site.topic("kept")
    send(site.client, topic, MESSAGES)
    pin = only(site.why(topic))
    assert (pin.kind, len(pin.ledgers)) == (PinKind.RETENTION, 3)
    assert pin.what.startswith("Retention of the topic keeps what is consumed, for 10 hours and up to 600.0 MiB.")
    assert f"set-retention --time TIME --size SIZE {topic}" in pin.command

    namespace = make_namespace(site.cluster)
    retain(site.admin, namespace)
    parted = f"persistent://{namespace}/parted"
    site.admin.put(f"{topic_path(parted)}/partitions", 2)
    send(site.client, f"{parted}-partition-1", MESSAGES)
    site.client.subscribe(parted, "new").close()
    first, second = pin_search_of(site.opened).of_topic(parted)
    assert (first.topic, first.pins[0].kind) == (f"{parted}-partition-0", PinKind.OPEN_LEDGER)
    pin = only(second)
    assert (pin.kind, len(pin.ledgers)) == (PinKind.RETENTION, 3)
    assert pin.what.startswith(f"Retention of the namespace {namespace} keeps what is consumed, for ever and of any")


def test_deduplication_compaction_and_delayed_messages(site: Site) -> None:
    deduplicated = site.topic("deduplicated")
    site.admin.post(f"{topic_path(deduplicated)}/deduplicationEnabled", True)
    eventually(lambda: site.admin.get_json(f"{topic_path(deduplicated)}/stats")["deduplicationStatus"] == "Enabled")
    send(site.client, deduplicated, MESSAGES)
    site.let_go(deduplicated)
    pin = only(site.why(deduplicated))
    assert (pin.kind, pin.name, len(pin.ledgers)) == (PinKind.DEDUPLICATION, "pulsar.dedup", 3)

    compacted = site.topic("compacted")
    send_keyed(site.client, compacted, MESSAGES)
    compact(site.admin, compacted)
    send_keyed(site.client, compacted, MESSAGES - 5)
    site.let_go(compacted)
    pin = site.why(compacted).pins[0]
    assert (pin.kind, pin.name, len(pin.ledgers)) == (PinKind.COMPACTION, "__compaction", 3)

    delayed = site.topic("delayed")
    consumer = site.subscribe(delayed, "later", consumer_type=pulsar.ConsumerType.Shared)
    send(site.client, delayed, MESSAGES, deliver_after=timedelta(hours=1))
    site.let_go(delayed)

    def is_tracked() -> Pin | None:
        (pin,) = site.why(delayed).holding
        return pin if pin.kind is PinKind.DELAYED and f"{MESSAGES} messages that wait" in pin.what else None

    assert eventually(is_tracked).name == "later"
    consumer.close()
    site.unload(delayed)
    # By the buckets that its cursor names.
    assert [pin.kind for pin in site.why(delayed).pins] == [PinKind.DELAYED, PinKind.NOT_LOADED]


def test_a_transaction_that_is_open(site: Site, tmp_path: Path) -> None:
    topic = f"persistent://{site.namespace}/transacted"
    with open_transactions(site.cluster.service_url, [topic], tmp_path / "transactions.log") as transactions:
        transactions.wait_for(1)
        # Closes the ledger that all of them are in.
        unload(site.admin, topic)
        (pin,) = eventually(lambda: [one for one in site.why(topic).holding if one.kind is PinKind.TRANSACTION])
    assert pin.name == "s"
    assert "has acknowledged its messages, and is open for" in pin.what
    assert pin.command.startswith("pulsar-admin transactions abort-transaction -m ")


def test_a_position_in_no_listed_ledger_and_a_replicator_of_a_cluster_that_is_gone(site: Site) -> None:
    topic = site.topic("lost")
    name = managed_ledger_of(topic)
    # Unread, so that nothing is trimmed before it is moved.
    site.subscribe(topic, "lost").close()
    send(site.client, topic, MESSAGES)
    site.let_go(topic)
    site.unload(topic)
    first = site.listed(topic)[0]
    lost = Position(first - 1, 3)
    path = cursor_path(name, "lost")
    node = site.opened.store.get(path)
    assert node is not None
    site.opened.store.put(path, at_position(node.value, position_entry(lost)), node.version)
    gone = managed_ledger_pb2.ManagedCursorInfo(cursorsLedgerId=-1, markDeleteLedgerId=first, markDeleteEntryId=0)
    site.opened.store.create(cursor_path(name, "pulsar.repl.gone"), gone.SerializeToString())
    unlisted, replicator, unloaded = site.why(topic).pins
    assert (unlisted.kind, unlisted.name, len(unlisted.ledgers)) == (PinKind.UNLISTED_POSITION, "lost", 4)
    assert f"Subscription lost stands at {lost}, in a ledger that the topic does not list." in unlisted.what
    assert (replicator.kind, replicator.name) == (PinKind.REPLICATOR, "pulsar.repl.gone")
    assert "to the cluster gone, which is gone" in replicator.what
    assert unloaded.kind is PinKind.NOT_LOADED

    # The broker takes the position as it is, and trims nothing; it drops the replicator's cursor.
    site.admin.get_json(f"{topic_path(topic)}/stats")
    site.admin.post(f"{topic_path(topic)}/trim")
    eventually(lambda: site.opened.store.get(cursor_path(name, "pulsar.repl.gone")) is None)
    pin = only(site.why(topic))
    assert (pin.kind, pin.ledgers[0]) == (PinKind.UNLISTED_POSITION, first)
    # What it says is to be done: from there it is read again.
    site.consume(topic, "lost")
    eventually(lambda: first not in site.listed(topic))


def test_an_offloaded_ledger_stays_in_bookkeeper_for_a_lag(site: Site) -> None:
    topic = site.topic("offloaded")
    send(site.client, topic, MESSAGES)
    site.let_go(topic)
    site.unload(topic)
    # As a broker writes it that has an offload driver.
    path = managed_ledger_path(managed_ledger_of(topic))
    node = site.opened.store.get(path)
    assert node is not None
    info = managed_ledger_pb2.ManagedLedgerInfo.FromString(node.value)
    for ledger in info.ledgerInfo[:2]:
        context = ledger.offloadContext
        context.uidMsb, context.uidLsb, context.timestamp = 1, 2, int(time.time() * 1000)
        context.complete, context.driverMetadata.name = True, "aws-s3"
    site.opened.store.put(path, info.SerializeToString(), node.version)
    pin, unloaded = site.why(topic).pins
    assert (pin.kind, len(pin.ledgers), unloaded.kind) == (PinKind.OFFLOADED, 2, PinKind.NOT_LOADED)
    assert "for the deletion lag of the brokers' settings, 4 hours, which ends in 3 hours for the first" in pin.what
    lag = f"/namespaces/{site.namespace}/offloadDeletionLagMs"
    site.admin.put(lag, 259_200_000)
    pin, _ = site.why(topic).pins
    assert f"for the deletion lag of the namespace {site.namespace}, 3 days, which ends in 2 days" in pin.what
    site.admin.delete(lag)


def test_a_shadow_topic_has_the_ledgers_of_its_source_and_holds_none(site: Site) -> None:
    source = site.topic("source")
    send(site.client, source, MESSAGES)
    copy = f"persistent://{site.namespace}/shadow"
    site.admin.put(topic_path(copy), {"PULSAR.SHADOW_SOURCE": source})
    site.admin.put(f"{topic_path(source)}/shadowTopics", [copy])
    site.admin.get_json(f"{topic_path(copy)}/stats")
    eventually(lambda: site.listed(copy) == site.listed(source))
    pin = only(site.why(copy))
    assert (pin.kind, pin.command) == (PinKind.SHADOW, f"bookwarden disk why {source}")
    site.let_go(source)
    found = eventually(lambda: site.why(source) if len(site.why(source).pins) == 1 else None)
    assert (found.pins[0].kind, found.holding) == (PinKind.READER, ())
    assert f"The replicator to the shadow topic {copy} stands at" in found.pins[0].what


def test_rows_of_an_account_by_topic_say_what_holds_them_first(site: Site) -> None:
    topic = site.topic("row")
    send(site.client, topic, MESSAGES)
    name = managed_ledger_of(topic)
    found = DiskUse(1, Use("total"), (Use(name, 4), Use("t/n/persistent/gone", 1), Use("", 1)), 0, ())
    pins = pins_of_rows(site.settings, found, None)
    document = describe_disk_use(found, "topic", from_snapshot=False, pins=pins)
    rows = next(part.rows for part in document.parts if isinstance(part, Table))
    assert [row[-1] for row in rows] == ["retention", "no such topic", ""]
    first, gone, other = plain(document.data)["uses"]
    assert ([pin["kind"] for pin in first["why"]["pins"]], gone["why"], other["why"]) == (["retention"], None, None)


def test_the_command_says_it_to_programs_and_refuses_what_is_not_there(site: Site) -> None:
    topic = site.topic("said")
    site.subscribe(topic, "idle").close()
    settings = [f"--set={name}={value}" for name, value in site.overrides.items()]
    result = CliRunner().invoke(cli, [*settings, "disk", "why", topic, "-o", "json"])
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.stdout)["topics"]
    assert (found["topic"], found["loaded"], [pin["kind"] for pin in found["pins"]]) == (topic, True, ["open ledger"])
    absent = CliRunner().invoke(cli, [*settings, "disk", "why", f"{topic}-absent"])
    assert absent.exit_code == NotFoundError.exit_code
    assert f"{TopicName.parse(topic)}-absent has no ledgers" in absent.stderr
