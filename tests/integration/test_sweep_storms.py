"""The sweep under faults, with load: counted ledger by ledger at the end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.metastore.urls import open_store
from bookwarden.pipelines.sweep import driver
from bookwarden_dev.devcluster import DevCluster, ServerProcess
from servers.deletion_site import PARTITIONS, DeletionSite
from servers.each_store import on_oxia, shared_cluster_on
from servers.in_this_process import RunningDriver, driving
from servers.marked_load import FIRST_IDS, Load, sweep_process
from servers.named_once import NamedOnce
from servers.pool import COLLECTING, Clusters
from servers.waiting import eventually

# A longer storm has as many times the ledgers, the kills and the unloads.
STORM = int(os.environ.get("STORM", "1"))
pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(900 * STORM)]

Sweep = Callable[[], AbstractContextManager[RunningDriver]]

LEDGERS = 1100 * STORM
# One task does all of a batch there, and at this pace a fault finds it in the middle.
LEDGERS_ON_OXIA = 550
OXIA_PACE = {"metadata_store.max_requests_per_second": "100"}


@pytest.fixture
def cluster(request: pytest.FixtureRequest, clusters: Clusters) -> DevCluster:
    """A cluster of short sessions; where a test asks for Oxia that of all tests, whose sessions outlive an outage."""
    if getattr(request, "param", "zookeeper") == "oxia":
        return shared_cluster_on("oxia", request)
    return clusters.shared(COLLECTING)


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
            "sweep.max_entries_per_batch": "50" if has_oxia else "100",
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
def process(load: Load, tmp_path: Path) -> Iterator[ServerProcess]:
    """The sweep as a process of its own, for a test that kills it."""
    made = sweep_process(load.site, tmp_path)
    made.start()
    yield made
    if made.is_running():
        made.kill()


@pytest.fixture
def sweep(load: Load, spark: SparkSession) -> Sweep:
    """Sweep within this process."""
    return lambda: driving(driver, lambda: driver.run_sweep(spark, load.site.settings))


def first_outcomes(load: Load) -> None:
    eventually(lambda: bool(load.site.outcomes()), 180)


def goes_on(load: Load, before: int) -> bool:
    """Say whether there are more outcomes than before, or none are to come."""
    outcomes = len(load.site.outcomes())
    return outcomes > before or outcomes >= len(load.ids)


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


@pytest.mark.storm
def test_the_broker_killed_and_restarted(cluster: DevCluster, load: Load, sweep: Sweep) -> None:
    with sweep() as running:
        load.start()
        first_outcomes(load)
        for _ in range(2 * STORM):
            swept = len(load.site.outcomes())
            cluster.broker.kill()
            cluster.broker.start()
            eventually(lambda before=swept: goes_on(load, before), 120)
        load.settle(running)


@pytest.mark.storm
def test_every_partition_unloaded_several_times(cluster: DevCluster, load: Load, sweep: Sweep) -> None:
    with sweep() as running:
        load.start()
        first_outcomes(load)
        admin = PulsarAdmin(cluster.connection(), timeout_s=60)
        for _ in range(5 * STORM):
            for topic in ("deletion", "deletion-RETRY"):
                for partition in range(PARTITIONS):
                    admin.put(f"/persistent/{load.site.namespace}/{topic}-partition-{partition}/unload")
        load.settle(running)


def test_the_job_killed_several_times_in_mid_batch(load: Load, process: ServerProcess, sweep: Sweep) -> None:
    load.start()
    first_outcomes(load)
    for left in reversed(range(2 * STORM)):
        swept = len(load.site.outcomes())
        process.kill()
        if left:
            process.start()
            eventually(lambda before=swept: goes_on(load, before), 180)
    with sweep() as running:
        load.settle(running)


def test_zookeeper_gone_for_thirty_seconds_with_every_session_expired(
    cluster: DevCluster, load: Load, sweep: Sweep
) -> None:
    with sweep() as running:
        load.start()
        first_outcomes(load)
        with cluster.zookeeper.outage(30):
            pass
        # A bookie whose session expired may have lost its registration, until a restart: the sweep waits for it.
        cluster.bookie.restart()
        load.settle(running)


@pytest.mark.storm
@pytest.mark.parametrize("cluster", [on_oxia()], indirect=True)
def test_oxia_gone_for_thirty_seconds_in_mid_batch_and_the_job_killed_when_it_goes_on(
    cluster: DevCluster, load: Load, process: ServerProcess, sweep: Sweep
) -> None:
    load.start()
    gone = eventually(load.gone_untold, 240)
    with cluster.oxia.outage(30):
        pass
    kill_in_mid_batch(load, process, gone)
    # The broker is back some twenty seconds after Oxia, and a sweep that starts without a broker ends.
    eventually(lambda: load.in_flight() is not None, 180)
    with sweep() as running:
        load.settle(running)
