"""Brokers that mark what leaves their metadata, beside stock ones, while ledgers of ten entries are trimmed.

Peer: a stock broker of the same version with servers of its own; a second one shows the noise. They take turns.
Then three brokers on a ZooKeeper, which counts the events that it sends for its watches.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pulsar

from benchmarks.cluster import temporary_home
from benchmarks.options import Options
from benchmarks.processes import Usage, measured
from benchmarks.publishing import PER_SECOND, latencies, quantile
from benchmarks.results import Result, compared, publish, say
from bookwarden.bookie_clusters.broker_jar import PACKAGED
from bookwarden.clusters.pulsar.metadata.paths import MANAGED_LEDGERS_ROOT
from bookwarden.errors import ServerError
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.trash import KeepRule, TrashLease
from bookwarden.metastore.snapshot.transaction_log import Closed, logs_after, read_logs
from bookwarden.metastore.urls import open_store
from bookwarden.signals import sigterm_unwinds
from bookwarden.wire.broker_marks import OUTBOX_ROOT, TWO_PHASE
from bookwarden.wire.managed_ledger import decode_managed_ledger
from bookwarden.wire.trash import TRASH_LEASE, encode_lease
from bookwarden_dev.devcluster import ClusterOptions, DevCluster, ServerProcess
from bookwarden_dev.devcluster.access import broker_connection, broker_is_ready
from bookwarden_dev.devcluster.ports import free_ports
from bookwarden_dev.devcluster.servers.readiness import zookeeper_says
from bookwarden_dev.devcluster.servers.specs import ServerFactory, load_runtime

COUNT: Final = 2_000
ROUNDS: Final = 5
_ENTRIES: Final = 10
_TOPIC: Final = "persistent://public/default/published"
_BROKERS: Final = 3
_WATCH_EVENTS: Final = re.compile(r"^zk_sum_node_\w+_watch_count\t(\d+)$", re.MULTILINE)
_PATIENCE_S: Final = 120.0
_STOCK, _NOISE, _MARK, _TRASH = "stock", "a second stock broker", "mark", f"{TWO_PHASE} with the trash"
_LINE: Final = {"managedLedgerStorageClassName": "bookwarden.broker.marks.MarkingManagedLedgerStorage"}
_LINES: Final[Mapping[str, Mapping[str, str]]] = {
    _STOCK: {},
    _NOISE: {},
    _MARK: _LINE,
    TWO_PHASE: {**_LINE, "bookwardenMarks": TWO_PHASE},
    _TRASH: {**_LINE, "bookwardenMarks": TWO_PHASE},
}
#: Everything that is dropped goes into the trash, for ever.
_LEASE: Final = TrashLease(2**62, "a benchmark", 2**62, (KeepRule("*", 2**40, 2**40),))


@dataclass
class _Figures:
    """One broker's, a value for each round."""

    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)
    trims: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    writes: list[float] = field(default_factory=list)


def run(options: Options) -> None:
    """Run the benchmark."""
    count, rounds = options.scaled(options.count or COUNT), options.rounds or ROUNDS
    if not PACKAGED.is_file():
        raise ServerError(f"there is no {PACKAGED}: run `make broker-jar`")
    with ExitStack() as stack:
        home = stack.enter_context(temporary_home())
        stack.enter_context(sigterm_unwinds())
        brokers = {name: stack.enter_context(_broker(home, name)) for name in _LINES}
        names = list(brokers)
        for number in range(rounds + 1):
            for name in names if number % 2 else reversed(names):
                # The first round warms up.
                brokers[name].play(count, brokers[name].figures if number else _Figures())
            say(f"round {number} of {rounds}")
        found = {name: dataclasses.asdict(broker.figures) for name, broker in brokers.items()}
        say("stopping everything")
    with temporary_home() as home, sigterm_unwinds():
        events = {name: _events(home, name, count) for name in _LINES if name != _NOISE}
    publish("Brokers that mark, and stock ones", [*_results(found, count), *_results_of_events(events, count)])


def _results(found: Mapping[str, Mapping[str, list[float]]], count: int) -> list[Result]:
    figures = (
        ("p50_ms", f"publish p50 at {PER_SECOND} a second", "ms", "ratio <= 1.05, or the noise"),
        ("p99_ms", "publish p99", "ms", ""),
        ("trims", "ledgers trimmed, as fast as it goes", "1/s", "ratio >= 0.95"),
        ("cpu_ms", "broker's processor time for a trimmed ledger", "ms", ""),
        ("writes", "changes of the store for a trimmed ledger; each is an event to each broker", "", ""),
    )
    return [
        compared(f"{what}: {name}", unit, found[name][figure], found[_STOCK][figure], count, target)
        for figure, what, unit, target in figures
        for name in found
        if name != _STOCK
    ]


def _results_of_events(events: Mapping[str, float], count: int) -> list[Result]:
    what = f"events of ZooKeeper to {_BROKERS} brokers for a trimmed ledger"
    return [Result(f"{what}: {name}", "", found, events[_STOCK], count) for name, found in events.items()]


def _events(home: Path, name: str, count: int) -> float:
    """Count what a ZooKeeper sends for watches while one of three brokers trims; the others have no topics."""
    with ExitStack() as stack:
        broker = stack.enter_context(_broker(home, f"{name} of {_BROKERS}", throughput=False))
        for number in range(1, _BROKERS):
            stack.enter_context(_further_broker(broker.cluster, home / f"{name}-{number}"))
        broker.play(count, _Figures())
        return broker.events_of_trims(count)


class _Broker:
    def __init__(self, cluster: DevCluster, producer: pulsar.Producer) -> None:
        self.figures = _Figures()
        self.cluster = cluster
        self._producer = producer

    def play(self, count: int, figures: _Figures) -> None:
        """Publish at a given rate, then as fast as it goes, and take what that cost."""
        found = latencies(self._producer, count)
        figures.p50_ms.append(quantile(found, 50) * 1000)
        figures.p99_ms.append(quantile(found, 99) * 1000)
        self._wait_for_trims()
        usages: list[Usage] = []
        changes, begin = self._changes(), time.monotonic()
        with measured(self.cluster.broker.pid, usages):
            self._trim(count)
        ledgers = count / _ENTRIES
        figures.trims.append(ledgers / (time.monotonic() - begin))
        figures.cpu_ms.append(usages[0].cpu_seconds / ledgers * 1000)
        figures.writes.append((self._changes() - changes) / ledgers)

    def events_of_trims(self, count: int) -> float:
        """Return how many events there are for each trimmed ledger, until the outbox is as empty as it gets."""
        self._wait_for_outbox()
        before = self._events()
        self._trim(count)
        self._wait_for_outbox()
        return (self._events() - before) / (count / _ENTRIES)

    def _wait_for_outbox(self) -> None:
        # In the other mode all is sent, for which there is no topic here.
        if self.cluster.options.broker_settings.get("bookwardenMarks") == TWO_PHASE:
            return
        end = time.monotonic() + _PATIENCE_S
        with closing(open_store(self.cluster.store_url)) as store:
            while any(
                store.children_of(f"{OUTBOX_ROOT}/{folder}/{block}")
                for folder in store.children_of(OUTBOX_ROOT)
                for block in store.children_of(f"{OUTBOX_ROOT}/{folder}")
            ):
                if time.monotonic() > end:
                    raise ServerError(f"{OUTBOX_ROOT} is not empty after {_PATIENCE_S:.0f} s")
                time.sleep(0.5)

    def _events(self) -> int:
        told = zookeeper_says(self.cluster.ports.zookeeper, "mntr")
        return sum(int(number) for number in _WATCH_EVENTS.findall(told))

    def _trim(self, count: int) -> None:
        for _ in range(count):
            self._producer.send_async(b"x" * 1024, None)
        self._producer.flush()
        self._wait_for_trims()

    def _wait_for_trims(self) -> None:
        path = f"{MANAGED_LEDGERS_ROOT}/{TopicName.parse(_TOPIC).managed_ledger}"
        end = time.monotonic() + _PATIENCE_S
        with closing(open_store(self.cluster.store_url)) as store:
            while True:
                node = store.get(path)
                if node is not None and len(decode_managed_ledger(node.value).ledgers) <= 1:
                    return
                if time.monotonic() > end:
                    raise ServerError(f"{path} lists more than one ledger after {_PATIENCE_S:.0f} s")
                time.sleep(0.02)

    def _changes(self) -> int:
        """Count the changes of nodes that the ZooKeeper has logged."""
        logs = logs_after(self.cluster.home / "zookeeper" / "version-2", 0)
        return sum(
            not isinstance(change, Closed) for transaction in read_logs(logs, 0) for change in transaction.changes
        )


@contextmanager
def _further_broker(cluster: DevCluster, home: Path) -> Iterator[None]:
    """Run another broker of a cluster."""
    broker, web = free_ports(2, [port for port in dataclasses.astuple(cluster.ports) if port])
    ports = dataclasses.replace(cluster.ports, broker=broker, web=web)
    factory = ServerFactory(home, ports, cluster.options, functools.partial(load_runtime, cluster.options.pulsar))
    connection = broker_connection(ports, "none", home)
    process = ServerProcess(factory.broker(lambda: broker_is_ready(connection)))
    try:
        process.start()
        yield
    finally:
        process.kill()


@contextmanager
def _broker(home: Path, name: str, *, throughput: bool = True) -> Iterator[_Broker]:
    """Start a broker with its own ZooKeeper and bookie, and a subscriber that acknowledges all that it gets."""
    kind = name.removesuffix(f" of {_BROKERS}")
    options = ClusterOptions(
        max_entries_per_ledger=_ENTRIES,
        throughput=throughput,
        log_level="warn",
        broker_jar=str(PACKAGED),
        broker_settings={"managedLedgerDefaultMarkDeleteRateLimit": "1000", **_LINES[kind]},
    )
    with (
        DevCluster(home / name.replace(" ", "-"), options, progress=say) as cluster,
        closing(cluster.connection().client()) as client,
        closing(client.subscribe(_TOPIC, "reader", message_listener=_acknowledge)),
        closing(client.create_producer(_TOPIC, batching_enabled=False, block_if_queue_full=True)) as producer,
    ):
        if kind == _TRASH:
            with closing(open_store(cluster.store_url)) as store:
                store.create(TRASH_LEASE, encode_lease(_LEASE), make_parents=True)
        yield _Broker(cluster, producer)


def _acknowledge(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
    consumer.acknowledge(message)
