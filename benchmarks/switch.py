"""Brokers and BookKeeper clients with the jar for brokers beside those without, and switches under load.

Peer: a stock broker of the same version, and a BookKeeper client with Pulsar's own driver; all use bookie cluster a of
the same servers, in rounds by turns.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from benchmarks.cluster import temporary_home
from benchmarks.java_peer import JavaPeer, java_peer
from benchmarks.options import Options
from benchmarks.publishing import PER_SECOND, latencies, quantile
from benchmarks.results import Result, compared, publish, say
from bookwarden.bookie_clusters.broker_jar import PACKAGED
from bookwarden.bookie_clusters.brokers import read_followers
from bookwarden.bookie_clusters.registry import BookieCluster, Registry
from bookwarden.bookie_clusters.registry_node import RegistryNode
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.errors import ServerError
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.urls import open_store
from bookwarden.signals import sigterm_unwinds
from bookwarden_dev.demo.load import Load
from bookwarden_dev.devcluster.bookie_clusters import DRIVER_PROPERTIES, SiteBroker, SwitchablePulsar

COUNT = 3_000
LEDGERS = 200
ROUNDS = 6
_SWITCHES = 10
_TOPICS = 6
_PATIENCE_S = 60.0


def run(options: Options) -> None:
    """Run the benchmark."""
    count, rounds = options.scaled(options.count or COUNT), options.rounds or ROUNDS
    if not PACKAGED.is_file():
        raise ServerError(f"there is no {PACKAGED}: run `make broker-jar`")
    with _running_site() as (clusters, node):
        stock = clusters.stock_broker()
        with _started(stock):
            results = _published(clusters.brokers[0], stock, count, rounds)
        results += _ledgers(clusters, options.scaled(LEDGERS), rounds)
        results += _switches(clusters, node)
    publish("Brokers with the jar, and without", results)


@contextmanager
def _running_site() -> Iterator[tuple[SwitchablePulsar, RegistryNode]]:
    with (
        temporary_home() as home,
        sigterm_unwinds(),
        SwitchablePulsar(home, PACKAGED, throughput=True, progress=say) as clusters,
        closing(open_store(clusters.store_url)) as store,
    ):
        clusters.start_bookies()
        node = RegistryNode(store, clusters.store_url)
        node.create(Registry(1, "5f2c9a41", "/ledgers", "a", {"a": bookie_cluster_of(clusters, store, "a")}))
        clusters.start_brokers()
        yield clusters, node
        say("stopping everything")


def bookie_cluster_of(clusters: SwitchablePulsar, store: MetadataStore, name: str) -> BookieCluster:
    """Return a cluster whose bookies run as the registry has it."""
    bookies = clusters.clusters[name]
    root = bookies.ledgers_root
    instance = store.get(f"{root}/INSTANCEID")
    if instance is None:
        raise ServerError(f"{root} has no INSTANCEID: its bookies are not set up")
    return BookieCluster(name, bookies.metadata_service_uri, None, root, instance.value.decode(), 1)


@contextmanager
def _started(broker: SiteBroker) -> Iterator[None]:
    broker.process.start()
    try:
        yield
    finally:
        broker.process.stop()


def _published(with_jar: SiteBroker, stock: SiteBroker, count: int, rounds: int) -> list[Result]:
    """Send to topics of either broker at a given rate, and compare how long the confirmations take."""
    times: dict[SiteBroker, list[list[float]]] = {with_jar: [], stock: []}
    topics = {broker: _owned_topic(broker, name) for broker, name in ((with_jar, "jar"), (stock, "stock"))}
    with closing(with_jar.connection().client()) as client, closing(stock.connection().client()) as other:
        producers = {
            broker: made.create_producer(topics[broker], batching_enabled=False)
            for broker, made in ((with_jar, client), (stock, other))
        }
        for number in range(rounds + 1):
            for broker in (with_jar, stock) if number % 2 else (stock, with_jar):
                found = latencies(producers[broker], count)
                # The first round warms up.
                times[broker] += [found] if number else []
            say(f"publish, round {number} of {rounds}")
    return [
        compared(
            f"publish p{share}",
            "ms",
            [quantile(found, share) * 1000 for found in times[with_jar]],
            [quantile(found, share) * 1000 for found in times[stock]],
            count,
            "ratio <= 1.05",
        )
        for share in (50, 99)
    ]


def _owned_topic(broker: SiteBroker, name: str) -> str:
    """Make a namespace of one bundle that this broker owns, and a topic in it."""
    topic = f"persistent://public/{name}/published"
    with closing(PulsarAdmin(broker.connection(), timeout_s=_PATIENCE_S)) as admin:
        admin.put(f"/namespaces/public/{name}", {"bundles": {"numBundles": 1}})
        admin.put(topic_path(topic))
        lookup = f"/lookup/v2/topic{topic_path(topic)}"
        admin.get_json(lookup)
        bundle = f"/namespaces/public/{name}/0x00000000_0xffffffff/unload"
        admin.put(bundle, params={"destinationBroker": broker.broker_id})
        if admin.get_json(lookup)["brokerUrl"] != broker.service_url:
            raise ServerError(f"namespace public/{name} did not move to {broker.service_url}")
    return topic


def _ledgers(clusters: SwitchablePulsar, count: int, rounds: int) -> list[Result]:
    """Create, open and delete ledgers by either driver."""
    store, jar, drivers = clusters.store_url, [str(PACKAGED)], list(DRIVER_PROPERTIES.items())
    with (
        java_peer("SwitchPeer.java", [clusters.driver_uri, store], jar, drivers) as ours,
        java_peer("SwitchPeer.java", [f"metadata-store:{store}", store]) as peer,
    ):
        medians: dict[JavaPeer, list[list[float]]] = {ours: [], peer: []}
        for number in range(rounds + 1):
            for client in (ours, peer) if number % 2 else (peer, ours):
                answer = [float(word) * 1000 for word in client.ask(str(count)).split()]
                medians[client] += [answer] if number else []
            say(f"ledgers, round {number} of {rounds}")
    return [
        compared(
            f"{what} p50",
            "ms",
            [round_[place] for round_ in medians[ours]],
            [round_[place] for round_ in medians[peer]],
            count,
            "ratio <= 1.05",
        )
        for place, what in enumerate(("create", "open", "delete"))
    ]


def _switches(clusters: SwitchablePulsar, node: RegistryNode) -> list[Result]:
    """Switch to and fro under load; time it until all brokers follow, and the gap of publishing."""
    topics = [f"persistent://public/jar/load-{number}" for number in range(_TOPICS)]
    followed: list[float] = []
    gaps: list[float] = []
    with (
        closing(open_store(clusters.store_url)) as store,
        Load(clusters.connection(), topics, PER_SECOND / _TOPICS) as load,
    ):
        b = bookie_cluster_of(clusters, store, "b")
        _change(clusters, node, store, lambda registry: registry.with_cluster(b))
        load.start()
        load.wait_for(PER_SECOND, _PATIENCE_S)
        for _, target in zip(range(_SWITCHES), itertools.cycle("ba"), strict=False):
            begin = time.monotonic()
            followed.append(_switch(clusters, node, store, target))
            load.wait_for(PER_SECOND // _TOPICS * 3, _PATIENCE_S)
            gaps.append(load.longest_gap(begin, time.monotonic()))
            say(f"switch to {target}: followed in {followed[-1] * 1000:.0f} ms, longest gap {gaps[-1] * 1000:.0f} ms")
        tallies = load.stop()
    lost, failed = sum(tally.lost for tally in tallies), sum(tally.send_errors for tally in tallies)
    if lost or failed:
        raise ServerError(f"{lost} messages were lost, {failed} sends failed")
    sent = sum(tally.sent for tally in tallies)
    note = f"{sent:,} messages sent, none lost"
    return [
        Result("followed, slowest", "ms", max(followed) * 1000, None, _SWITCHES, "< 1000"),
        Result("publish gap, longest", "ms", max(gaps) * 1000, None, _SWITCHES, "< 1000", note),
        Result("publish gap, median of switches", "ms", quantile(gaps, 50) * 1000, None, _SWITCHES),
    ]


def _switch(clusters: SwitchablePulsar, node: RegistryNode, store: MetadataStore, target: str) -> float:
    return _change(clusters, node, store, lambda registry: registry.switched(target, "benchmark", 0))


def _change(
    clusters: SwitchablePulsar, node: RegistryNode, store: MetadataStore, next_of: Callable[[Registry], Registry]
) -> float:
    """Change the registry; return how many seconds it took until every broker followed."""
    seen = node.require()
    changed = next_of(seen.registry)
    begin = time.monotonic()
    node.replace(seen, changed)
    while [follower.epoch for follower in read_followers(store)] != [changed.epoch] * len(clusters.brokers):
        if time.monotonic() - begin > _PATIENCE_S:
            raise ServerError(f"not every broker follows epoch {changed.epoch}")
        time.sleep(0.001)
    return time.monotonic() - begin
