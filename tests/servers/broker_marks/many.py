"""Much at once, by a broker that marks and by a stock one: a topic of many ledgers, and a namespace of many topics."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.population import create_nodes, managed_ledger_of, metadata_of, zookeeper_at

from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.pulsar.metadata.paths import managed_ledger_path
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.metastore.urls import open_store
from bookwarden_dev.devcluster import ClusterOptions, DevCluster
from servers.short_lived import running_until_killed
from servers.topic_contents import managed_ledger_of as managed_ledger_name
from servers.waiting import eventually

_NAMESPACE: Final = "public/many"
_FIRST_LEDGER: Final = 100_000_000
# As many requests at once as a broker answers without a queue.
_HANDS: Final = 8
_PATIENCE_S: Final = 1200.0

Steps = dict[str, float]


def compare(
    home: Path, brokers: dict[str, ClusterOptions], ledgers: int, topics: int, say: Callable[[str], None]
) -> None:
    """Do the same with each kind of broker, and say how long each step took; any request that fails is an error."""
    took = {}
    for name, options in brokers.items():
        with running_until_killed(DevCluster(home / f"pulsar-many-{name}", options)) as cluster:
            took[name] = _play(cluster, ledgers, topics, partial(_said, say, name))
    peer, *others = took
    for step, seconds in took[peer].items():
        for other in others:
            ratio = took[other][step] / seconds
            say(f"{step}: {other} {took[other][step]:.1f} s, {peer} {seconds:.1f} s, ratio {ratio:.2f}")


def _said(say: Callable[[str], None], name: str, line: str) -> None:
    say(f"{name}: {line}")


def _play(cluster: DevCluster, ledgers: int, topics: int, say: Callable[[str], None]) -> Steps:
    steps: Steps = {}

    @contextmanager
    def step(what: str) -> Iterator[None]:
        begin = time.monotonic()
        yield
        steps[what] = time.monotonic() - begin
        say(f"{what}: {steps[what]:.1f} s")

    with (
        closing(PulsarAdmin(cluster.connection(), timeout_s=_PATIENCE_S)) as admin,
        ThreadPoolExecutor(_HANDS) as pool,
    ):
        admin.put(f"/namespaces/{_NAMESPACE}", {"bundles": {"numBundles": 8}})
        _delete_a_long_list(cluster, admin, ledgers, step)
        names = [topic_path(f"persistent://{_NAMESPACE}/t-{number}") for number in range(topics)]
        with step(f"{topics:,} topics with two subscriptions made"):
            _each(pool, admin.put, names)
            for subscription in ("a", "b"):
                _each(
                    pool,
                    lambda path: admin.put(path, "latest"),
                    [f"{name}/subscription/{subscription}" for name in names],
                )
        with step(f"{topics:,} topics unloaded"):
            admin.put(f"/namespaces/{_NAMESPACE}/unload")
        with step(f"{topics:,} topics deleted"):
            _each(pool, lambda name: admin.delete(name, params={"force": True}), names)
        with step("the broker stopped"):
            cluster.broker.stop()
    return steps


def _delete_a_long_list(
    cluster: DevCluster, admin: PulsarAdmin, ledgers: int, step: Callable[[str], AbstractContextManager[None]]
) -> None:
    topic = f"persistent://{_NAMESPACE}/long"
    holder = ManagedLedgerHolder(managed_ledger_name(topic))
    ids = range(_FIRST_LEDGER, _FIRST_LEDGER + ledgers)
    paths = [ledger_path("/ledgers", ledger) for ledger in ids]
    with zookeeper_at(cluster.store_url) as client:
        create_nodes(client, [(path, metadata_of(holder)) for path in paths])
        create_nodes(client, [(managed_ledger_path(holder.name), managed_ledger_of(ids))])
    with step(f"a topic of {ledgers:,} ledgers deleted"), closing(open_store(cluster.store_url)) as store:
        admin.delete(topic_path(topic), params={"force": True})
        parents = sorted({path.rpartition("/")[0] for path in paths})
        eventually(lambda: not any(store.children_of(parent) for parent in parents), _PATIENCE_S, 0.5)


def _each(pool: ThreadPoolExecutor, call: Callable[[str], object], names: Iterable[str]) -> None:
    for _ in pool.map(call, names):
        pass
