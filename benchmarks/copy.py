"""Copying ledgers between two bookie clusters: small ones, large ones, and many; proven, with live references asked.

Peer: BookKeeper's own Java client, warm, in one process for all rounds, that copies as many ledgers, 16 at once, and
proves nothing; for large ones also what the target's bookies take when it writes from memory, and from pulsar-perf
through a broker.
"""

from __future__ import annotations

import statistics
from contextlib import closing
from pathlib import Path

import yaml

from benchmarks.copied import Ledgers, plant, two_clusters
from benchmarks.copier import MEMORY_AT, Copier, Copying, copier
from benchmarks.java_peer import JavaPeer, java_peer
from benchmarks.options import Options
from benchmarks.pulsar_perf import produced_per_second
from benchmarks.results import Result, compared, publish, say
from benchmarks.switch import bookie_cluster_of
from bookwarden.bookie_clusters.registry import Registry
from bookwarden.bookie_clusters.registry_node import RegistryNode
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.urls import open_store
from bookwarden_dev.devcluster.bookie_clusters import SwitchablePulsar

COUNT = 10_000
LARGE = 4
ROUNDS = 3
# So many times as many ledgers show whether each still costs the same.
_GROWTH = 10
_WARM_UP_ROUNDS = 2
_SMALL = (3, 300)
_LARGE = (1_600, 65_536)
_MIB = 1 << 20


def run(options: Options) -> None:
    """Run the benchmark."""
    count, large, rounds = options.scaled(options.count or COUNT), options.scaled(LARGE), options.rounds or ROUNDS
    with two_clusters() as (servers, home), closing(open_store(servers.store_url)) as store:
        _register(servers, store)
        uris = [servers.clusters[name].metadata_service_uri for name in "ab"]
        with java_peer("CopyPeer.java", uris) as peer, copier(_settings_file(home, servers)) as ours:
            contest = _Contest(servers, store, ours, peer)
            results = _small(contest, count, rounds) + _large(contest, large, rounds, servers)
    publish("Copying ledgers between two bookie clusters", results)


class _Contest:
    """Ours and the peer copy in turns, each ledgers that were made for its turn."""

    def __init__(self, servers: SwitchablePulsar, store: MetadataStore, ours: Copier, peer: JavaPeer) -> None:
        self._servers = servers
        self._store = store
        self._ours = ours
        self._peer = peer
        self._next_topic = 1

    def by_ours(self, count: int, shape: tuple[int, int]) -> Copying:
        """Let ours copy new ledgers."""
        return self._ours.copy(self._planted(count, shape).ids)

    def by_peer(self, count: int, shape: tuple[int, int]) -> float:
        """Let the peer copy new ledgers; return the seconds."""
        ledgers = self._planted(count, shape)
        return self._asked(f"copy {ledgers.first} {count}", ledgers)

    def written(self, count: int, shape: tuple[int, int]) -> float:
        """Let the peer write new ledgers of this shape to the target, from memory; return the seconds."""
        ledgers = self._fresh(count, shape)
        return self._asked(f"write {ledgers.first} {count} {ledgers.entries} {ledgers.entry_bytes}", ledgers)

    def _asked(self, order: str, ledgers: Ledgers) -> float:
        seconds, size = self._peer.ask(order).split()
        if int(size) != ledgers.count * ledgers.ledger_bytes:
            raise RuntimeError(f"the Java client made {size} bytes, not {ledgers.count * ledgers.ledger_bytes}")
        return float(seconds)

    def _planted(self, count: int, shape: tuple[int, int]) -> Ledgers:
        ledgers = self._fresh(count, shape)
        plant(self._store, self._servers, ledgers)
        return ledgers

    def _fresh(self, count: int, shape: tuple[int, int]) -> Ledgers:
        ledgers = Ledgers.of_topics(self._next_topic, count, *shape)
        self._next_topic += ledgers.topics
        return ledgers


def _small(contest: _Contest, count: int, rounds: int) -> list[Result]:
    for _ in range(_WARM_UP_ROUNDS):
        contest.by_peer(count, _SMALL)
    contest.by_ours(count, _SMALL)
    ours, peer = [], []
    for number in range(1, rounds + 1):
        peer.append(contest.by_peer(count, _SMALL))
        ours.append(contest.by_ours(count, _SMALL))
        say(f"round {number} of {rounds}: Java {count / peer[-1]:,.0f}, ours {count / ours[-1].seconds:,.0f} ledgers/s")
    rates = [count / each.seconds for each in ours]
    name = f"copy of ledgers of {_SMALL[0]} x {_SMALL[1]} bytes"
    results = [compared(name, "ledgers/s", rates, [count / each for each in peer], count, "ratio >= 2")]
    many = count * _GROWTH
    say(f"creating {many:,} ledgers")
    grown = contest.by_ours(many, _SMALL)
    cpu = statistics.median(each.cpu_seconds / count for each in ours)
    told = ", ".join(f"{held / _MIB:.0f} MiB at {share}%" for share, held in zip(MEMORY_AT, grown.memory, strict=True))
    say(f"{many:,} ledgers: {many / grown.seconds:,.0f} ledgers/s, {told}")
    beside = f"beside {count:,}"
    return [
        *results,
        Result(
            f"{name}, {many:,}", "ledgers/s", many / grown.seconds, statistics.median(rates), many, "ratio 1", beside
        ),
        Result("its processor time", "us/ledger", grown.cpu_seconds / many * 1e6, cpu * 1e6, many, "ratio 1", beside),
        Result("its memory", "MiB", grown.memory[-1] / _MIB, grown.memory[0] / _MIB, many, "ratio 1", told),
    ]


def _large(contest: _Contest, count: int, rounds: int, servers: SwitchablePulsar) -> list[Result]:
    megabytes = count * _LARGE[0] * _LARGE[1] / 1e6
    contest.written(count, _LARGE)
    contest.by_peer(count, _LARGE)
    contest.by_ours(count, _LARGE)
    ours, copied, written = [], [], []
    for number in range(1, rounds + 1):
        written.append(megabytes / contest.written(count, _LARGE))
        copied.append(megabytes / contest.by_peer(count, _LARGE))
        ours.append(contest.by_ours(count, _LARGE))
        say(
            f"round {number} of {rounds}: Java writes {written[-1]:,.0f}, Java copies {copied[-1]:,.0f}, "
            f"ours {megabytes / ours[-1].seconds:,.0f} MB/s"
        )
    produced = [rate * _LARGE[1] / 1e6 for rate in _produced(servers, rounds)]
    say(f"pulsar-perf: {', '.join(f'{rate:,.0f}' for rate in produced)} MB/s")
    rates = [megabytes / each.seconds for each in ours]
    name = f"copy of ledgers of {_LARGE[0] * _LARGE[1] / 1e6:,.0f} MB"
    cpu = statistics.median(each.cpu_seconds for each in ours)
    return [
        compared(f"{name}, pulsar-perf alone", "MB/s", rates, produced, count, "ratio >= 0.8"),
        compared(f"{name}, Java writes alone", "MB/s", rates, written, count, "ratio >= 0.8"),
        compared(f"{name}, Java copies", "MB/s", rates, copied, count),
        Result("its processor time", "us/entry", cpu / (count * _LARGE[0]) * 1e6, None, count),
    ]


def _produced(servers: SwitchablePulsar, rounds: int) -> list[float]:
    """Let pulsar-perf send entries of this size through a stock broker of the target's bookies; return entries/s."""
    (broker,) = servers.brokers
    quorums = ("managedLedgerDefaultEnsembleSize", "managedLedgerDefaultWriteQuorum", "managedLedgerDefaultAckQuorum")
    broker.settings |= dict.fromkeys(quorums, "1")
    # Pulsar's own; with more ledgers it would also come to ids that were planted here.
    broker.settings["managedLedgerMaxEntriesPerLedger"] = "50000"
    broker.settings["managedLedgerMinLedgerRolloverTimeMinutes"] = "10"
    broker.settings["bookkeeperMetadataServiceUri"] = servers.clusters["b"].metadata_service_uri
    servers.start_brokers()
    try:
        topic = "persistent://public/default/produced"
        return produced_per_second(broker.service_url, topic, _LARGE[1], rounds)
    finally:
        broker.process.stop()


def _register(servers: SwitchablePulsar, store: MetadataStore) -> None:
    clusters = {name: bookie_cluster_of(servers, store, name) for name in servers.clusters}
    RegistryNode(store, servers.store_url).create(Registry(1, "5f2c9a41", "/ledgers", "b", clusters))


def _settings_file(home: Path, servers: SwitchablePulsar) -> Path:
    path = home / "bookwarden.yaml"
    path.write_text(yaml.safe_dump({"metadata_store": {"urls": [servers.store_url]}}), encoding="utf-8")
    return path
