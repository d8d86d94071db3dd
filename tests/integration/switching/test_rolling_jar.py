"""The jar is put into running brokers one after the other, and taken out again: bin/pulsar and its files, under load.

Each step is one of docs/howto/switch-bookie-clusters.md, "Set-up, broker by broker", and of
docs/howto/leave-bookie-clusters.md.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pulsar
import pytest

from bookwarden.bookie_clusters.registry import is_marked
from bookwarden.clusters.bookkeeper.listing import read_every_ledger
from bookwarden.clusters.pulsar.messages.switch_events import SWITCH_TOPIC
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.exit_codes import WOULD_FAIL
from bookwarden.findings import Verdict
from bookwarden.ledgers.custom_metadata import OWNER_KEY
from bookwarden.ledgers.names import TopicName
from bookwarden_dev.demo.load import Load
from bookwarden_dev.devcluster.bookie_clusters import ClusterPlan, SwitchablePulsar
from bookwarden_dev.devcluster.servers.settings import PULSAR_VERSIONS, PULSARS_LEDGERS_ROOT
from servers.switching.broker_jar import broker_jar
from servers.switching.drained import soon_after_a_switch
from servers.switching.installed_broker import InstalledBroker
from servers.switching.others_ledgers import OthersLedgers
from servers.switching.round_trip import LONE_BOOKIES
from servers.switching.site import SwitchingSite
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(900)]

_LOG = logging.getLogger(__name__)

CLUSTERS = (ClusterPlan("a", PULSARS_LEDGERS_ROOT, bookies=1), ClusterPlan("b", "/bookies-b", bookies=1))
# What a load costs grows with its pace and with each new ledger.
TOPICS = 4
PER_SECOND = 20
# More than a ledger of each topic.
ENOUGH = 50
SMALL_LEDGERS = {"managedLedgerMaxEntriesPerLedger": "40"}
PATIENCE = 120
# What a switch may cost is below one second; two busy cores are given more.
LONGEST_GAP = 10.0
# Of a JVM that a SIGTERM ended in order.
TERMINATED = 128 + 15
FEW = 5


class Reading(pulsar.schema.Record):  # type: ignore[misc]  # the client's schemas have no types
    value = pulsar.schema.Integer()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwitchingSite]:
    home = tmp_path_factory.mktemp("rolling")
    with SwitchablePulsar(
        home,
        None,
        clusters=CLUSTERS,
        brokers=[PULSAR_VERSIONS[0]] * 2,
        broker_settings={**LONE_BOOKIES, **SMALL_LEDGERS},
        make_broker=InstalledBroker,
    ) as servers:
        servers.start_bookies()
        servers.start_brokers()
        with closing(SwitchingSite(servers)) as running:
            yield running


@contextlib.contextmanager
def load_on(site: SwitchingSite, topics: Sequence[str]) -> Iterator[Load]:
    """Send to and receive from all topics in the block."""
    with Load(site.connection, topics, PER_SECOND) as load:
        load.start()
        load.wait_for(PER_SECOND, PATIENCE)
        yield load


class Rolling:
    """The two brokers, restarted in turn while the load on these topics goes on."""

    def __init__(self, site: SwitchingSite, topics: Sequence[str], load: Load) -> None:
        self._site, self._topics, self._load = site, topics, load
        self.gaps: dict[str, float] = {}  #: In seconds, by what was done.

    def restart(self, broker: InstalledBroker, what: str) -> None:
        """Restart it as `pulsar-daemon` and systemd do, with SIGTERM; then it gets its part of the topics again."""
        with self.gap_told(f"{what}: restart"):
            broker.process.stop()
            assert broker.process.exit_code == TERMINATED
            broker.process.start()
            self._load.wait_for(PER_SECOND, PATIENCE)
        with self.gap_told(f"{what}: topics moved back"):
            self._site.spread(self._topics)
            self._load.wait_for(PER_SECOND, PATIENCE)

    @contextlib.contextmanager
    def gap_told(self, what: str) -> Iterator[None]:
        """Keep, and log, the longest time without an acknowledged message in the block."""
        begin = time.monotonic()
        yield
        self.gaps[what] = self._load.longest_gap(begin, time.monotonic())
        _LOG.warning("%s: longest gap %.3f s", what, self.gaps[what])


def test_the_jar_comes_and_goes_broker_by_broker(
    site: SwitchingSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bookwarden.cli.bookie_clusters.listing.PACKAGED", broker_jar())
    first, second = (broker for broker in site.brokers if isinstance(broker, InstalledBroker))
    for broker in (first, second):
        # A signal to what the script became reaches the broker.
        assert Path(os.readlink(f"/proc/{broker.process.pid}/exe")).name == "java"
    # Namespaces whose first topic is loaded while b is active have a schema there: not this one, nor those of the load.
    site.admin.put("/persistent/pulsar/system/other")
    site.owner("persistent://pulsar/system/other")
    old, topics = site.new_topics(2), site.new_topics(TOPICS)
    with load_on(site, old) as old_load, load_on(site, topics) as load:
        rolling = Rolling(site, topics, load)
        site.register("a", "--bootstrap")
        jar = tmp_path / "bookwarden-broker.jar"
        printed = site.command("jar", "--to", str(jar))

        first.install_jar(jar, printed)
        rolling.restart(first, "first, stock to jar")
        assert site.brokers_without_jar() == [second.broker_id]
        at_first = site.places()
        load.wait_for(ENOUGH, PATIENCE)
        assert makers(site, site.places().since(at_first)["a"]) == {"with the jar", "without"}
        site.register("b")
        eventually(lambda: site.followed_epochs() == {site.registry().epoch}, PATIENCE)
        for words in (("precheck", "--name", "b"), ("switch", "--target", "b", "--yes")):
            assert stands_in_the_way(site.command(*words, exit_code=WOULD_FAIL)) == [second.broker_id]
        assert site.registry().active == "a"

        second.install_jar(jar, printed)
        rolling.restart(second, "second, stock to jar")
        site.wait_until_followed()
        assert site.command("precheck", "--name", "b")["ready"]
        assert [tally for tally in old_load.stop() if tally.lost or tally.send_errors] == []
        with rolling.gap_told("a to b"):
            site.command("switch", "--target", "b", "--yes")
            # What was begun before is over then.
            load.wait_for(PER_SECOND, PATIENCE)
            switched = site.places()
            load.wait_for(ENOUGH, PATIENCE)
        made = site.places().since(switched)
        assert not made["a"]
        assert len(made["b"]) >= TOPICS
        with_schema = f"{topics[0].rpartition('/')[0]}/with-schema"
        send_with_schema(site, with_schema)
        with rolling.gap_told("b to a"):
            site.command("rollback", "--yes")
            load.wait_for(ENOUGH, PATIENCE)
        # What a restart costs is the broker's.
        assert max(rolling.gaps["a to b"], rolling.gaps["b to a"]) < LONGEST_GAP
        assert site.places().astray == ()

        with rolling.gap_told("nothing is left on b"):
            leave(site, with_schema)
        # What has the mark of another Pulsar cluster is said, and stays.
        others = OthersLedgers(site, "b", {OWNER_KEY: b"00c0ffee"})
        others.make(range(1_000_000, 1_000_000 + FEW))
        with soon_after_a_switch():
            assert site.command("unregister", "b", "--yes")["foreignLedgers"] == FEW
        site.wait_until_followed()
        for broker in (first, second):
            broker.remove_jar()
            rolling.restart(broker, f"{broker.broker_id}, jar to stock")
            assert broker.broker_id in site.brokers_without_jar()
        load.wait_for(ENOUGH, PATIENCE)
        tallies = load.stop()
        for tally in tallies:
            _LOG.warning("%s", tally)
        assert [tally for tally in tallies if tally.lost or tally.send_errors] == []
        assert set(old_load.lost_to_a_reader(site.connection).values()) == {0}
        assert received_with_schema(site, with_schema) == list(range(FEW))
    places = site.places()
    assert places.astray == ()
    assert others.are_all_there()
    assert places.by_cluster["b"] == others.ids


def makers(site: SwitchingSite, ledger_ids: frozenset[int]) -> set[str]:
    """Tell which kinds of brokers made these ledgers of the first cluster."""
    owner, root = site.registry().owner, site.servers.clusters["a"].ledgers_root
    found = {ledger_id: metadata for ledger_id, metadata in read_every_ledger(site.store, root) if metadata}
    return {
        "with the jar" if is_marked(found[ledger_id].custom, owner) else "without"
        for ledger_id in ledger_ids & found.keys()
    }


def stands_in_the_way(precheck: Any) -> list[str]:
    """Return the first words of what the precheck says against the switch."""
    failing = [check["evidence"] for check in precheck["checks"] if check["severity"] == Verdict.FAILS.value]
    return [evidence.partition(" ")[0] for evidence in failing]


def send_with_schema(site: SwitchingSite, topic: str) -> None:
    """Send a few messages that say which version of the topic's schema they have."""
    with closing(site.connection.client()) as client:
        producer = client.create_producer(topic, schema=pulsar.schema.AvroSchema(Reading))
        for number in range(FEW):
            producer.send(Reading(value=number))


def received_with_schema(site: SwitchingSite, topic: str) -> list[int]:
    with closing(site.connection.client()) as client:
        consumer = client.subscribe(topic, "left", schema=pulsar.schema.AvroSchema(Reading))
        return [consumer.receive(PATIENCE * 1000).value().value for _ in range(FEW)]


def leave(site: SwitchingSite, with_schema: str) -> None:
    """Do what is needed until no ledger is outside the active cluster."""
    site.command("unload", "--yes")
    # What is sent from now on has a ledger in the active cluster, and its schema still in the other one.
    with closing(site.connection.client()) as client:
        client.subscribe(with_schema, "left").close()
    send_with_schema(site, with_schema)
    assert ("schema", f"schema:{_in_path(with_schema)}") in held(site)
    write_schema_anew(site, with_schema)
    site.admin.delete(topic_path(SWITCH_TOPIC))
    namespace = _in_path(with_schema).rpartition("/")[0]
    nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    site.admin.post(f"/namespaces/{namespace}/retention", nothing)

    def is_nothing_left() -> bool:
        left = held(site)
        for kind, holder in left:
            # What else there is fails the test in the end.
            if kind == "data":
                site.admin.post(f"{topic_path(str(TopicName.of_managed_ledger(holder)))}/trim")
        return not left

    eventually(is_nothing_left, PATIENCE, pause=0.5)


def held(site: SwitchingSite) -> set[tuple[str, str]]:
    """Return the kind and holder of each ledger outside the active cluster."""
    listed = site.command("status", "--ledgers", "--holders")["elsewhere"]
    return {(each["kind"], each["holder"]) for each in listed}


def write_schema_anew(site: SwitchingSite, topic: str) -> None:
    """Replace the ledger of a topic's one schema version by one in the active cluster; the version stays 0."""
    path = f"/schemas/{_in_path(topic)}/schema"
    kept = site.admin.get_json(path)
    assert kept["version"] == 0
    site.admin.delete(path, params={"force": True})
    site.admin.post(path, {"type": kept["type"], "schema": kept["data"], "properties": kept["properties"]})


def _in_path(topic: str) -> str:
    return topic.partition("://")[2]
