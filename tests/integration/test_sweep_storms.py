"""The sweep as a process of its own under faults, with load: counted ledger by ledger at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.devcluster import ClusterOptions, DevCluster, ServerProcess
from bookwarden.metastore.urls import open_store
from servers.deletion_site import PARTITIONS, DeletionSite
from servers.each_store import on_oxia, shared_cluster_on
from servers.marked_load import FIRST_IDS, Load, sweep_process
from servers.named_once import NamedOnce
from servers.short_lived import running_until_killed
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(900)]

LEDGERS = 3300
# One task does all of a batch there, and at this pace a fault finds it in the middle.
LEDGERS_ON_OXIA = 550
OXIA_PACE = {"metadata_store.max_requests_per_second": "100"}


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


@pytest.fixture
def load(cluster: DevCluster, make_namespace: Callable[[DevCluster], str], tmp_path: Path) -> Iterator[Load]:
    has_oxia = cluster.options.metadata == "oxia"
    site = DeletionSite.of(
        cluster,
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
    # Each load and unload of a topic makes ledgers and lets go of others.
    with NamedOnce(cluster.store_url).watching():
        yield made
    store.close()


@pytest.fixture
def sweep(load: Load, tmp_path: Path) -> Iterator[ServerProcess]:
    process = sweep_process(load.site, tmp_path)
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


def test_the_broker_killed_and_restarted_three_times(cluster: DevCluster, load: Load, sweep: ServerProcess) -> None:
    load.start()
    first_outcomes(load)
    for _ in range(3):
        swept = len(load.site.outcomes())
        cluster.broker.kill()
        cluster.broker.start()
        eventually(lambda before=swept: len(load.site.outcomes()) > before or load.ended.is_set(), 120)
    load.settle(sweep)


def test_every_partition_unloaded_twenty_times(cluster: DevCluster, load: Load, sweep: ServerProcess) -> None:
    load.start()
    first_outcomes(load)
    admin = PulsarAdmin(cluster.connection(), timeout_s=60)
    for _ in range(20):
        for topic in ("deletion", "deletion-RETRY"):
            for partition in range(PARTITIONS):
                admin.put(f"/persistent/{load.site.namespace}/{topic}-partition-{partition}/unload")
    load.settle(sweep)


def test_the_job_killed_five_times_in_mid_batch(load: Load, sweep: ServerProcess) -> None:
    load.start()
    first_outcomes(load)
    for _ in range(5):
        swept = len(load.site.outcomes())
        sweep.kill()
        sweep.start()
        eventually(lambda before=swept: len(load.site.outcomes()) > before or load.ended.is_set(), 180)
    load.settle(sweep)


def test_zookeeper_gone_for_thirty_seconds_with_every_session_expired(
    stage: Stage, cluster: DevCluster, load: Load, sweep: ServerProcess
) -> None:
    load.start()
    first_outcomes(load)
    stage.expired = True
    with cluster.zookeeper.outage(30):
        pass
    load.settle(sweep)


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
    eventually(lambda: load.in_flight() is not None, 180)
    sweep.start()
    load.settle(sweep)
