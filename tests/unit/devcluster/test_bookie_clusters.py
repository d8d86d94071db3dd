"""Two bookie clusters on one ZooKeeper: settings, class path, what is counted of a load and of ledgers' places."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.errors import ConfigError
from bookwarden.java import Java
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState, Segment
from bookwarden.metastore.memory import MemoryStore
from bookwarden.wire.ledger_metadata import encode_ledger_metadata
from bookwarden_dev.demo.ledger_places import ClusterLedgers, LedgerPlaces, find_places
from bookwarden_dev.demo.load import TopicTally
from bookwarden_dev.devcluster import ClusterOptions
from bookwarden_dev.devcluster.bookie_clusters import ClusterPlan, SwitchablePulsar
from bookwarden_dev.devcluster.servers.java import java_command
from bookwarden_dev.devcluster.servers.settings import (
    PULSARS_LEDGERS_ROOT,
    ClusterPorts,
    bookie_settings,
    bookkeeper_uri,
    store_url,
)
from bookwarden_dev.devcluster.servers.specs import Runtime, ServerFactory
from servers.population import Population

PORTS = ClusterPorts(1, 2, 3, 4)
ROOTS = {"a": "/ledgers", "b": "/bookies-b"}
BOOKIES = {"a": {"a1", "a2"}, "b": {"b1", "b2"}}


def uri_of(options: ClusterOptions) -> str:
    return bookie_settings({}, PORTS, Path("data"), options)["metadataServiceUri"]


def test_a_bookie_speaks_with_zookeeper_by_a_driver_that_batches_only_for_throughput() -> None:
    assert uri_of(ClusterOptions()) == "zk+hierarchical://127.0.0.1:1/ledgers"
    assert uri_of(ClusterOptions(pulsar="4.2.4")) == "metadata-store:zk:127.0.0.1:1?batchingEnabled=false"
    assert uri_of(ClusterOptions(throughput=True)) == "metadata-store:zk:127.0.0.1:1"
    assert uri_of(ClusterOptions(ledgers_root="/bookies-b")) == "zk+hierarchical://127.0.0.1:1/bookies-b"


def test_only_for_throughput_is_each_write_synced_to_the_disk(tmp_path: Path) -> None:
    for throughput, of_bookie, of_zookeeper in ((False, "false", "no"), (True, "true", "yes")):
        options = ClusterOptions(throughput=throughput)
        assert bookie_settings({}, PORTS, Path("data"), options)["journalSyncData"] == of_bookie
        home = tmp_path / of_zookeeper
        ServerFactory(home, PORTS, options, lambda: Runtime(Java("java", 17), tmp_path)).zookeeper().command()
        assert f"forceSync={of_zookeeper}\n" in (home / "conf" / "zookeeper.conf").read_text()


def test_another_root_needs_zookeeper() -> None:
    with pytest.raises(ConfigError, match="on oxia"):
        ClusterOptions(metadata="oxia", ledgers_root="/bookies-b")


def test_with_tls_all_servers_are_told_that_port() -> None:
    ports = dataclasses.replace(PORTS, zookeeper_tls=7)
    assert store_url(ports, ClusterOptions()) == "zk:127.0.0.1:7"
    assert bookkeeper_uri(ports, ClusterOptions(ledgers_root="/bookies-b")) == "zk+hierarchical://127.0.0.1:7/bookies-b"


def test_each_cluster_has_the_store_that_its_plan_says(tmp_path: Path) -> None:
    plans = (
        ClusterPlan("a", PULSARS_LEDGERS_ROOT),
        ClusterPlan("b", PULSARS_LEDGERS_ROOT, own_oxia=True),
        ClusterPlan("c", "/bookies-c", own_zookeeper=True),
    )
    pulsar = SwitchablePulsar(tmp_path, None, clusters=plans, metadata="oxia")
    a, b, c = pulsar.clusters.values()
    assert a.metadata_service_uri == f"metadata-store:{pulsar.store_url}"
    assert b.metadata_service_uri == f"metadata-store:{b.store_url}"
    assert a.store_url != b.store_url
    assert c.metadata_service_uri == f"zk+hierarchical://{c.store_url.removeprefix('zk:')}/bookies-c"
    assert [each.setup is None for each in (a, b, c)] == [True, False, False]
    assert [server.name for server in pulsar.servers] == [
        *("oxia", "bookie", "bookie"),
        *("oxia", "bookie", "bookie"),
        *("zookeeper", "bookie", "bookie"),
        "broker",
    ]
    assert pulsar.driver_uri == f"bookwarden://{pulsar.store_url.split('/')[2]}/ledgers"
    assert pulsar.store_settings == {}
    with pytest.raises(ConfigError, match="in oxia"):
        _ = pulsar.zookeeper


def test_a_jar_lies_behind_those_of_the_release() -> None:
    """Java takes an archive of classes only where the class path begins as it did when the archive was recorded."""
    command = java_command(Java("java", 17), Path("/release"), "Main", ["-x"], heap_mb=64, jars=["/own.jar"])
    assert command[-4:] == ["-cp", f"/release/lib/*{os.pathsep}/own.jar", "Main", "-x"]


def with_ledgers(*placed: tuple[str, int, tuple[str, ...]]) -> MemoryStore:
    """Make a store with ledgers, each below a root and on bookies, one segment for each bookie that is named."""
    store = MemoryStore()
    for root in ROOTS.values():
        store.create(root, b"")
    for root, ledger_id, bookies in placed:
        segments = tuple(Segment(number, (bookie,)) for number, bookie in enumerate(bookies))
        metadata = LedgerMetadata(3, LedgerState.OPEN, 1, 1, 1, segments)
        store.create(ledger_path(root, ledger_id), encode_ledger_metadata(metadata), make_parents=True)
    return store


def places_in(store: MemoryStore) -> LedgerPlaces:
    return find_places({name: ClusterLedgers(store, root, BOOKIES[name]) for name, root in ROOTS.items()})


def test_ledgers_are_counted_by_cluster_and_topic() -> None:
    earlier = places_in(with_ledgers(("/ledgers", 1, ("a1",))))
    store = with_ledgers(
        ("/ledgers", 1, ("a1",)), ("/ledgers", 2, ("a1", "a2")), ("/bookies-b", 5_000_000_000, ("b1",))
    )
    Population(store).names(ManagedLedgerHolder("t/n/persistent/x"), [2, 5_000_000_000])
    places = places_in(store)
    assert places.by_cluster == {"a": {1, 2}, "b": {5_000_000_000}}
    assert places.since(earlier) == {"a": {2}, "b": {5_000_000_000}}
    assert places.of_topic(store, "persistent://t/n/x") == {"a": 1, "b": 1}
    assert places.of_topic(store, "persistent://t/n/none") == {"a": 0, "b": 0}
    assert places.astray == ()


def test_a_ledger_that_names_a_bookie_of_another_cluster_is_astray() -> None:
    store = with_ledgers(("/ledgers", 1, ("a1", "b2")), ("/bookies-b", 2, ("b1", "gone")))
    astray = places_in(store).astray
    assert astray == ("/ledgers/00/0000/L0001 names b2", "/bookies-b/00/0000/L0002 names gone")


def test_what_became_of_messages_is_counted() -> None:
    tally = TopicTally.of("t", [0, 1, 2, 4], [1.0, 1.5, 3.5, 4.0], 1, [0, 2, 1, 2, 0, 7])
    # 7 was received though its send failed, or has not been answered.
    assert tally == TopicTally("t", 4, 1, received=4, lost=1, doubled=2, disordered=1, longest_gap_s=2.0)


def test_nothing_sent_is_nothing_lost() -> None:
    assert TopicTally.of("t", [], [], 0, []) == TopicTally("t", 0, 0, 0, 0, 0, 0, 0.0)
