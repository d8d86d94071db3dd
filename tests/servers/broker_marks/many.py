"""Much at once, by a broker that marks and by a stock one: a topic of many ledgers, and a namespace of many topics."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from benchmarks.population import create_nodes, managed_ledger_of, metadata_of, zookeeper_at

from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.pulsar.metadata.paths import managed_ledger_path
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.metastore.urls import open_store
from bookwarden.wire.broker_marks import TWO_PHASE
from bookwarden.wiring.cluster import Cluster
from bookwarden_dev.devcluster import ClusterOptions, DevCluster
from servers.follow.site import site_of
from servers.marking_brokers import nodes_in_outbox
from servers.short_lived import running_until_killed
from servers.topic_contents import managed_ledger_of as managed_ledger_name
from servers.waiting import eventually

_NAMESPACE: Final = "public/many"
_FIRST_LEDGER: Final = 100_000_000
# As many requests at once as a broker answers without a queue.
_HANDS: Final = 8
_PATIENCE_S: Final = 1200.0
# The brokers take turns, part by part: what else the machine does slows both.
_PARTS: Final = 20
_LISTS: Final = 4
_BUNDLES: Final = 8
_UNLOADS: Final = 3
_LONG: Final = tuple(f"persistent://{_NAMESPACE}/long-{number}" for number in range(_LISTS))


def compare(
    home: Path, brokers: dict[str, ClusterOptions], ledgers: int, topics: int, say: Callable[[str], None]
) -> None:
    """Do the same with each kind of broker, and say how long each step took; any request that fails is an error."""
    names = [topic_path(f"persistent://{_NAMESPACE}/t-{number}") for number in range(topics)]
    parts = [names[number::_PARTS] for number in range(_PARTS)]
    with ExitStack() as stack:
        players = {
            name: stack.enter_context(_player(DevCluster(home / f"many-{name}", _roomy(options))))
            for name, options in brokers.items()
        }

        def step(what: str, do: Callable[[_Player, Sequence[str]], None], over: Sequence[Sequence[str]]) -> None:
            took, cpu = Counter[str](), Counter[str]()
            for number, part in enumerate(over):
                for name in players if number % 2 else reversed(players):
                    begin, before = time.monotonic(), players[name].cpu_s()
                    do(players[name], part)
                    took[name] += time.monotonic() - begin
                    # That of a server that was stopped is not known.
                    cpu[name] += max(0.0, players[name].cpu_s() - before)
                    if do is _Player.delete_long_list:
                        players[name].wait_until_forwarded()
            peer, *others = players
            for other in others:
                say(f"{what}: {_compared(took, other, peer)}; processor time: {_compared(cpu, other, peer)}")

        for player in players.values():
            player.make_long_lists(ledgers)
        step(f"{_LISTS} topics of {ledgers:,} ledgers deleted", _Player.delete_long_list, [(name,) for name in _LONG])
        step(f"{topics:,} topics with two subscriptions made", _Player.make, parts)
        # One unload of them all is over within seconds, in which a pause of one broker decides.
        for again in range(_UNLOADS):
            if again:
                step(f"{topics:,} topics loaded", _Player.load, parts)
            for player in players.values():
                player.wait_until_forwarded()
            step(f"{topics:,} topics unloaded", _Player.unload, [(bundle,) for bundle in _bundles()])
        step(f"{topics:,} topics deleted", _Player.delete, parts)
        for name, player in players.items():
            say(f"the broker {name} had {player.most_memory_mib()} MiB of memory at most")
        step("the broker stopped", lambda player, _: player.cluster.broker.stop(), [()])


def _roomy(options: ClusterOptions) -> ClusterOptions:
    """Let a broker have much: with less memory one of so many topics does little but collect garbage, and beyond the
    limit of what no sweep deletes it would delete by itself.
    """
    settings = {**options.broker_settings, "bookwardenMarksMaxBytes": str(2**60)}
    return replace(options, throughput=True, broker_settings=settings)


def _compared(values: Counter[str], other: str, peer: str) -> str:
    ratio = f"{values[other] / values[peer]:.2f}" if values[peer] else "unknown"
    return f"{other} {values[other]:.1f} s, {peer} {values[peer]:.1f} s, ratio {ratio}"


class _Player:
    def __init__(self, cluster: DevCluster, admin: PulsarAdmin, pool: ThreadPoolExecutor) -> None:
        self.cluster = cluster
        self._admin = admin
        self._pool = pool
        self._listed: dict[str, list[str]] = {}

    def cpu_s(self) -> float:
        """Return the processor time of the servers that run."""
        running = [server.pid for server in self.cluster.servers if server.is_running()]
        stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in running]
        return sum(int(ticks) for stat in stats for ticks in stat[11:13]) / os.sysconf("SC_CLK_TCK")

    def most_memory_mib(self) -> int:
        """Return the most memory that the broker ever had."""
        status = Path(f"/proc/{self.cluster.broker.pid}/status").read_text()
        (kib,) = (int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
        return kib // 1024

    def make_long_lists(self, ledgers: int) -> None:
        self._admin.put(f"/namespaces/{_NAMESPACE}", {"bundles": {"numBundles": _BUNDLES}})
        first = _FIRST_LEDGER
        for topic in _LONG:
            holder, ids = ManagedLedgerHolder(managed_ledger_name(topic)), range(first, first + ledgers)
            # In folders of their own.
            first += -(-ledgers // 10_000) * 10_000
            self._listed[topic] = [ledger_path("/ledgers", ledger) for ledger in ids]
            with zookeeper_at(self.cluster.store_url) as client:
                create_nodes(client, [(path, metadata_of(holder)) for path in self._listed[topic]])
                create_nodes(client, [(managed_ledger_path(holder.name), managed_ledger_of(ids))])

    def delete_long_list(self, topics: Sequence[str]) -> None:
        (topic,) = topics
        with closing(open_store(self.cluster.store_url)) as store:
            self._admin.delete(topic_path(topic), params={"force": True})
            if self.cluster.options.broker_settings.get("bookwardenMarks") == TWO_PHASE:
                # A sweep would delete them.
                return
            parents = sorted({path.rpartition("/")[0] for path in self._listed[topic]})
            eventually(lambda: not any(store.children_of(parent) for parent in parents), _PATIENCE_S, 0.5)

    def wait_until_forwarded(self) -> None:
        """Wait until the outbox is empty, since what is left of its marks would slow the next broker, or step."""
        with closing(open_store(self.cluster.store_url)) as store:
            eventually(lambda: nodes_in_outbox(store) == 0, _PATIENCE_S, 0.5)

    def make(self, names: Sequence[str]) -> None:
        self._each(self._admin.put, names)
        for subscription in ("a", "b"):
            self._each(
                lambda path: self._admin.put(path, "latest"), [f"{name}/subscription/{subscription}" for name in names]
            )

    def load(self, names: Sequence[str]) -> None:
        self._each(lambda name: self._admin.get_json(f"{name}/stats"), names)

    def unload(self, bundles: Sequence[str]) -> None:
        (bundle,) = bundles
        self._admin.put(f"/namespaces/{_NAMESPACE}/{bundle}/unload")

    def delete(self, names: Sequence[str]) -> None:
        self._each(lambda name: self._admin.delete(name, params={"force": True}), names)

    def _each(self, call: Callable[[str], object], names: Iterable[str]) -> None:
        for _ in self._pool.map(call, names):
            pass


def _bundles() -> list[str]:
    """List the bundles of the namespace, by their ranges of hashes."""
    borders = [min(number * 2**32 // _BUNDLES, 2**32 - 1) for number in range(_BUNDLES + 1)]
    return [f"0x{first:08x}_0x{last:08x}" for first, last in pairwise(borders)]


@contextmanager
def _player(cluster: DevCluster) -> Iterator[_Player]:
    with (
        running_until_killed(cluster),
        closing(PulsarAdmin(cluster.connection(), timeout_s=_PATIENCE_S)) as admin,
        ThreadPoolExecutor(_HANDS) as pool,
    ):
        with Cluster(site_of(cluster, "marks", cluster.home).settings) as opened:
            opened.deletion_topics.publish()
        yield _Player(cluster, admin, pool)
