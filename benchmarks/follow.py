"""Following what brokers drop, on a ZooKeeper: from the start to following, changes, a restart, and the memory.

Topics of ten ledgers each, five thousand in a namespace. A change takes the oldest ledger off a topic's list and adds a
new one, as a trim and a rollover do. Peer for reading: the walk of the orphan scan over the same nodes, in as many
processes as there are processors, which keeps nothing.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from multiprocessing import get_context
from pathlib import Path

import yaml
from kazoo.client import KazooClient

from benchmarks.lone_store import LoneStore, lone_zookeeper
from benchmarks.options import Options
from benchmarks.population import managed_ledger_of, zookeeper_at
from benchmarks.processes import DriverProcess, Usage, driver_process, measured
from benchmarks.results import Result, publish, say
from bookwarden.clusters.pulsar.metadata.paths import managed_ledger_path
from bookwarden.clusters.pulsar.references.pieces import LOGS, ReferencePiece, ReferencePieces
from bookwarden.metastore.urls import open_store
from bookwarden.pipelines.columns.topics import TopicRows
from bookwarden.pipelines.workers import collect_seldom

COUNT = 100_000
_LEDGERS_PER_TOPIC = 10
_TOPICS_PER_NAMESPACE = 5_000
_CHANGES_A_SECOND = 2_000
_SUSTAINED_SECONDS = 30
_BURST = 40_000
_PER_REQUEST = 500
_MIB = 1 << 20


class FollowProcess(DriverProcess):
    """The driver that follows."""


def run(options: Options) -> None:
    """Run the benchmark."""
    count = options.scaled(options.count or COUNT)
    with lone_zookeeper() as store:
        say(f"creating {count:,} topics of {_LEDGERS_PER_TOPIC} ledgers")
        for at in range(0, count, _TOPICS_PER_NAMESPACE):
            store.create(
                (path_of(number), managed_ledger_of(_ids(number)))
                for number in range(at, min(at + _TOPICS_PER_NAMESPACE, count))
            )
        store.create([("/ledgers/LAYOUT", b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1")])
        walked = [_walk(store, count) for _ in range(2)][-1]
        say(f"the scan's walk: {walked:,.0f} nodes/s")
        settings = _settings_file(store)
        usages: list[Usage] = []
        with driver_process(FollowProcess, "benchmarks.follower", settings) as follower, measured(follower.pid, usages):
            starting: list[Usage] = []
            with measured(follower.pid, starting):
                begun = follower.ask("follow")
            cpu = starting[0].cpu_seconds / count * 1e6
            _check(begun["nodes"], count)
            first = count / begun["seconds"]
            say(f"following after {begun['seconds']:.1f} s: {first:,.0f} nodes/s")
            sustained = _sustained(store, follower, count)
            say(f"{_CHANGES_A_SECOND:,} changes a second for {_SUSTAINED_SECONDS} s: {sustained:.1f} s behind")
            burst = _burst(store, follower, count)
            say(f"a burst of {_BURST:,} changes: {burst:,.0f} a second")
        say("restarting")
        with driver_process(FollowProcess, "benchmarks.follower", settings) as follower, measured(follower.pid, usages):
            again = follower.ask("follow")
            _check(again["nodes"], count)
        say(f"following again after {again['seconds']:.1f} s, of which {again['loaded']:.1f} s for the state")
    held = {kind: max(usage.memory.get(kind, 0) for usage in usages) / _MIB for kind in ("driver", "JVM", "workers")}
    publish(
        f"Following {count:,} topics of {_LEDGERS_PER_TOPIC} ledgers",
        [
            Result("follow, start to following", "nodes/s", first, walked, count, ">= 20,000", "peer: the scan's walk"),
            Result("follow, processor at the start", "us/node", cpu, None, count, "", "without ZooKeeper's"),
            Result("follow, changes in a burst", "nodes/s", burst, None, _BURST, ">= 2,000"),
            Result(
                "follow, behind at 2,000 a second",
                "s",
                sustained,
                None,
                _CHANGES_A_SECOND * _SUSTAINED_SECONDS,
                "",
                "after the last change of 30 s",
            ),
            Result("follow, restart to following", "s", again["seconds"], None, count, "< 60", "Spark's start apart"),
            Result("follow, of which the state", "s", again["loaded"], None, count),
            *(Result(f"follow memory, {kind}", "MiB", most, None, count) for kind, most in held.items()),
            Result("follow memory, all", "MiB", max(one.peak_bytes for one in usages) / _MIB, None, count, "< 4,096"),
        ],
    )


def path_of(number: int) -> str:
    """Return the node of a topic."""
    namespace = number // _TOPICS_PER_NAMESPACE
    return managed_ledger_path(f"tenant/namespace-{namespace:04d}/persistent/some-topic-of-its-own-{number:07d}")


def _ids(number: int, changes: int = 0) -> range:
    # Ids of a topic leave room for its changes.
    first = number * 1000 + changes
    return range(first, first + _LEDGERS_PER_TOPIC)


def _check(found: int, count: int) -> None:
    if found != count:
        raise RuntimeError(f"{found} nodes are followed, not {count}")


_SEED = random.Random(7)
_changes: dict[int, int] = {}


def _change(client: KazooClient, numbers: Sequence[int]) -> None:
    """Trim these topics, and roll their ledgers."""
    for at in range(0, len(numbers), _PER_REQUEST):
        request = client.transaction()
        for number in numbers[at : at + _PER_REQUEST]:
            _changes[number] = _changes.get(number, 0) + 1
            request.set_data(path_of(number), managed_ledger_of(_ids(number, _changes[number])))
        failed = [found for found in request.commit() if isinstance(found, Exception)]
        if failed:
            raise failed[0]


def _sustained(store: LoneStore, follower: FollowProcess, count: int) -> float:
    """Change topics at the pace asked for; return the seconds from the last change until all were taken."""
    with zookeeper_at(store.url) as client:
        begin = time.monotonic()
        for second in range(_SUSTAINED_SECONDS):
            _change(client, _SEED.sample(range(count), _CHANGES_A_SECOND))
            time.sleep(max(0.0, begin + second + 1 - time.monotonic()))
    if time.monotonic() - begin > _SUSTAINED_SECONDS + 5:
        raise RuntimeError("this machine does not write as many changes a second")
    return float(follower.ask(f"wait {sum(_changes.values())}")["seconds"])


def _burst(store: LoneStore, follower: FollowProcess, count: int) -> float:
    """Change topics as fast as the store takes it; return how many a second were taken, from the first change on."""
    begin = time.monotonic()
    with zookeeper_at(store.url) as client:
        left = _BURST
        while left:
            some = min(left, count, 10_000)
            _change(client, _SEED.sample(range(count), some))
            left -= some
    follower.ask(f"wait {sum(_changes.values())}")
    return _BURST / (time.monotonic() - begin)


def _settings_file(store: LoneStore) -> Path:
    path = store.settings_file.with_name("follow.yaml")
    settings = yaml.safe_load(store.settings_file.read_text(encoding="utf-8"))
    folder = store.settings_file.parent
    settings["follow"] = {
        "checkpoint": str(folder / "follow"),
        "outcomes": str(folder / "outcomes"),
        # What is dropped is not looked at: there are no ledgers here.
        "grace_seconds": 100_000.0,
    }
    settings["spark"] = {"master": "local[2]"}
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return path


_reading: list[ReferencePieces] = []


def _open_reading(url: str) -> None:
    collect_seldom()
    _reading.append(ReferencePieces({url: open_store(url)}))


def _read(piece: ReferencePiece) -> int:
    topics = TopicRows(piece.root)
    return _reading[0].read(piece, topics).names


@contextmanager
def _walkers(store: LoneStore) -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(os.cpu_count() or 1, get_context("spawn"), _open_reading, (store.url,)) as pool:
        yield pool


def _walk(store: LoneStore, count: int) -> float:
    """Read all nodes as the scan does; return nodes a second."""
    with _walkers(store) as pool, closing(open_store(store.url)) as own:
        begin = time.monotonic()
        pieces = [piece for piece in ReferencePieces({store.url: own}).pieces() if piece.kind != LOGS]
        _check(sum(pool.map(_read, pieces)), count)
        return count / (time.monotonic() - begin)
