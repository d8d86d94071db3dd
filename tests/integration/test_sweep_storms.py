"""The sweep as a process of its own under faults, with load: counted ledger by ledger at the end."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from bookwarden.clusters.pulsar.admin import PulsarAdmin
from bookwarden.clusters.pulsar.mark_sender import PendingDeletionSender
from bookwarden.context import connection_of, in_flight_of
from bookwarden.devcluster import ClusterOptions, DevCluster, ServerProcess, ServerSpec
from bookwarden.errors import PulsarError, PulsarUnavailableError
from bookwarden.ledgers.holders import ManagedLedgerHolder
from bookwarden.ledgers.pending_deletion import LedgerComponent, LedgerType, PendingDeletion
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.urls import open_store
from bookwarden.wire.avro import PendingDeletionCodec
from servers.deletion_site import PARTITIONS, DeletionSite
from servers.each_store import on_oxia, shared_cluster_on
from servers.population import Population
from servers.short_lived import running_until_killed
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(900)]

TOPICS = 20
LEDGERS = 3300
# One task does all of a batch there, and at this pace a fault finds it in the middle.
LEDGERS_ON_OXIA = 550
OXIA_PACE = {"metadata_store.max_requests_per_second": "100"}
# Of so many ledgers one is referenced, and kept.
ONE_KEPT_OF = 11
PER_SEND = 20
# Of the ledgers of each test, also of one that is tried again: far above what the bookie's own ledgers get.
FIRST_IDS = itertools.count(1_000_000_000, 100_000)


@dataclass
class Stage:
    """The servers of this module, and whether their ZooKeeper sessions have expired since they started."""

    cluster: DevCluster
    expired: bool = False


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with running_until_killed(DevCluster(tmp_path_factory.mktemp("storms"), ClusterOptions())) as cluster:
        yield Stage(cluster)


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> DevCluster:
    """A cluster of this module's own, all of it in order.

    Where a test asks for Oxia it is the one that all share, whose sessions outlive an outage of half a minute.
    """
    if getattr(request, "param", "zookeeper") == "oxia":
        return shared_cluster_on("oxia", request)
    stage: Stage = request.getfixturevalue("stage")
    if stage.expired or not all(server.is_running() for server in stage.cluster.servers):
        # A bookie whose ZooKeeper session expired takes no new ledgers until a restart.
        stage.cluster.kill()
        stage.cluster.up()
        stage.expired = False
    return stage.cluster


@dataclass
class Load:
    """Ledgers of many topics, and a thread that marks them a few at a time for as long as the faults go on."""

    site: DeletionSite
    store: MetadataStore
    ids: range
    paths: dict[int, str] = field(default_factory=dict)
    confirmed: set[int] = field(default_factory=set)
    ended: threading.Event = field(default_factory=threading.Event)
    hurry: threading.Event = field(default_factory=threading.Event)

    def populate(self) -> None:
        population = Population(self.store)
        holders = [ManagedLedgerHolder(f"{self.site.namespace}/persistent/topic-{n}") for n in range(TOPICS)]
        self.kept = frozenset(self.ids[::ONE_KEPT_OF])
        self.holders = {ledger: holders[ledger % TOPICS] for ledger in self.ids}
        for ledger, holder in self.holders.items():
            self.paths[ledger] = population.ledger(ledger, holder)
        for holder in holders:
            population.names(holder, [ledger for ledger in self.kept if self.holders[ledger] == holder])

    def start(self) -> threading.Thread:
        thread = threading.Thread(target=self._send, name="load", daemon=True)
        thread.start()
        return thread

    def _send(self) -> None:
        waiting = list(self.ids)
        while waiting:
            chunk, waiting = waiting[:PER_SEND], waiting[PER_SEND:]
            # What phase one could not send, it reports; whoever asked marks it again.
            waiting += self._send_some(chunk)
            self.hurry.wait(0.15)
        self.ended.set()

    def _send_some(self, ledgers: Sequence[int]) -> list[int]:
        marks = [
            PendingDeletion(
                self.holders[ledger].name, LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, ledger, marked_at=1
            )
            for ledger in ledgers
        ]
        settings = self.site.settings
        try:
            with PendingDeletionSender(
                connection_of(settings), settings.deletion.topic, PendingDeletionCodec(), send_timeout_s=5
            ) as sender:
                results = sender.send_all(marks)
        except PulsarError:
            return list(ledgers)
        self.confirmed |= {ledger for ledger, failure in zip(ledgers, results, strict=True) if failure is None}
        return [ledger for ledger, failure in zip(ledgers, results, strict=True) if failure is not None]

    def present(self) -> set[int]:
        self.store.sync()
        values = self.store.get_many(list(self.paths.values()))
        return {ledger for ledger, value in zip(self.paths, values, strict=True) if value is not None}

    def gone_untold(self) -> set[int]:
        """Find the ledgers that are gone though the outcome table does not tell of them yet: a batch is half done."""
        gone = set(self.ids) - self.present()
        return gone - {row["ledger_id"] for row in self.site.outcomes()}


@pytest.fixture
def load(cluster: DevCluster, make_namespace: Callable[[DevCluster], str], tmp_path: Path) -> Iterator[Load]:
    has_oxia = cluster.options.metadata == "oxia"
    site = DeletionSite(
        cluster.service_url,
        cluster.admin_url,
        cluster.store_url,
        make_namespace(cluster),
        tmp_path,
        overrides={
            "sweep.backoff_seconds": "0.5",
            "sweep.max_backoff_seconds": "2",
            "sweep.max_failures": "50",
            "sweep.stall_seconds": "90",
            "sweep.max_entries_per_batch": "50",
            **(OXIA_PACE if has_oxia else {}),
        },
    )
    site.create_topics()
    store = open_store(cluster.store_url)
    first_id = next(FIRST_IDS)
    made = Load(site, store, range(first_id, first_id + (LEDGERS_ON_OXIA if has_oxia else LEDGERS)))
    made.populate()
    yield made
    store.close()


@pytest.fixture
def sweep(load: Load, tmp_path: Path) -> Iterator[ServerProcess]:
    file = tmp_path / "bookwarden.yaml"
    file.write_text(yaml.safe_dump(load.site.settings.model_dump(mode="json", exclude_defaults=True)))
    command = [sys.executable, "-m", "bookwarden.cli", "--config", str(file), "-v", "sweep"]
    process = ServerProcess(
        ServerSpec("sweep", lambda: command, tmp_path / "sweep.log", lambda _started: True, tmp_path, stop_seconds=90)
    )
    process.start()
    yield process
    if process.is_running():
        process.kill()


def first_outcomes(load: Load) -> None:
    eventually(lambda: bool(load.site.outcomes()), 180)


def kill_in_mid_batch(load: Load, sweep: ServerProcess, before: set[int]) -> None:
    """Kill the job when it has deleted more ledgers than those before, and not yet written down what became of them."""

    def killed() -> bool:
        if load.gone_untold() <= before:
            return False
        sweep.kill()
        if load.gone_untold():
            return True
        # It was about to finish the batch.
        sweep.start()
        return False

    eventually(killed, 300)


def in_flight(load: Load) -> int | None:
    """Count what is in flight; None while the servers are still coming back from what the test did to them."""
    try:
        return in_flight_of(load.site.settings).messages
    except PulsarUnavailableError:
        return None


def settle(load: Load, sweep: ServerProcess) -> None:
    """Wait until everything is marked and swept, then account for each ledger."""
    load.hurry.set()
    assert load.ended.wait(120), "the load was not sent"

    def drained() -> bool:
        assert sweep.is_running(), sweep.spec.log_file.read_text()[-3000:]
        return in_flight(load) == 0

    eventually(drained, 300)
    sweep.stop()
    assert load.confirmed == set(load.ids)
    assert load.present() == load.kept
    assert load.site.backlog_of_dlq() == 0
    assert load.site.backlog() == 0
    finished = {row["ledger_id"]: row["outcome"] for row in load.site.outcomes()}
    assert set(finished) == set(load.ids)
    assert {ledger for ledger, outcome in finished.items() if outcome == "still referenced"} == load.kept


def test_the_broker_killed_and_restarted_three_times(cluster: DevCluster, load: Load, sweep: ServerProcess) -> None:
    load.start()
    first_outcomes(load)
    for _ in range(3):
        swept = len(load.site.outcomes())
        cluster.broker.kill()
        cluster.broker.start()
        eventually(lambda before=swept: len(load.site.outcomes()) > before or load.ended.is_set(), 120)
    settle(load, sweep)


def test_every_partition_unloaded_twenty_times(cluster: DevCluster, load: Load, sweep: ServerProcess) -> None:
    load.start()
    first_outcomes(load)
    admin = PulsarAdmin(cluster.connection(), timeout_s=60)
    for _ in range(20):
        for topic in ("deletion", "deletion-RETRY"):
            for partition in range(PARTITIONS):
                admin.put(f"/persistent/{load.site.namespace}/{topic}-partition-{partition}/unload")
    settle(load, sweep)


def test_the_job_killed_five_times_in_mid_batch(load: Load, sweep: ServerProcess) -> None:
    load.start()
    first_outcomes(load)
    for _ in range(5):
        swept = len(load.site.outcomes())
        sweep.kill()
        sweep.start()
        eventually(lambda before=swept: len(load.site.outcomes()) > before or load.ended.is_set(), 180)
    settle(load, sweep)


def test_zookeeper_gone_for_thirty_seconds_with_every_session_expired(
    stage: Stage, cluster: DevCluster, load: Load, sweep: ServerProcess
) -> None:
    load.start()
    first_outcomes(load)
    stage.expired = True
    with cluster.zookeeper.outage(30):
        pass
    settle(load, sweep)


@pytest.mark.parametrize("cluster", [on_oxia()], indirect=True)
def test_oxia_gone_for_thirty_seconds_in_mid_batch_and_the_job_killed_when_it_goes_on(
    cluster: DevCluster, load: Load, sweep: ServerProcess
) -> None:
    load.start()
    gone = eventually(load.gone_untold, 240)
    with cluster.oxia.outage(30):
        pass
    kill_in_mid_batch(load, sweep, gone)
    # The broker is back some twenty seconds after Oxia, and a sweep that starts without a broker ends.
    eventually(lambda: in_flight(load) is not None, 180)
    sweep.start()
    settle(load, sweep)
