"""The real servers that tests share, and those that a test may break."""

from __future__ import annotations

import gc
import logging
import os
import random
import secrets
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import kazoo.protocol.connection
import kazoo.retry
import pulsar
import pytest
import urllib3

from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden_dev.devcluster import ClusterOptions, DevCluster, ports
from bookwarden_dev.devcluster.temporary import temporary_files_in
from servers.accounting import Account
from servers.class_archives import quick_spark_home, quick_spark_options, start_quickly
from servers.each_store import shared_cluster_on
from servers.lone_zookeeper import LoneZooKeeper, running_zookeeper
from servers.object_store import ObjectStore, running_object_store
from servers.pool import ON_OXIA, PLAIN, Clusters, ServerPool, SharedServersScheduling

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Python code that is not kept compiled is compiled by each process again, a third of the time of a short command.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

ClusterFactory = Callable[..., DevCluster]
_ACCOUNT = pytest.StashKey[Account]()
# Three processes, each with up to four clusters (servers.pool) and a Spark, took 15 GiB together.
_MEMORY_OF_A_WORKER = 6 * 1024**3


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage among modules and tests: they stay, and to look takes a third of the collection's time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let a test that needs servers or Spark try once more; pytest's summary then says RERUN.

    Half a dozen Java processes share the machine with whatever else runs there. What needs a second try is a finding
    all the same: a wait that is too short, a state that was not waited for.
    """
    for item in items:
        if "unit" not in item.path.parent.parts and item.get_closest_marker("flaky") is None:
            item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> SharedServersScheduling:
    """Hand out files, or several that share servers."""
    return SharedServersScheduling(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return the number of processes for `-n auto`: half as many again as processors, where memory allows."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min((os.cpu_count() or 1) * 3 // 2, memory // _MEMORY_OF_A_WORKER))


def pytest_configure(config: pytest.Config) -> None:
    """Begin the account of the run, before the processes start that run the tests."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        config.stash[_ACCOUNT] = account = Account()
        config.pluginmanager.register(account)
        config.add_cleanup(account.end)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Show what the run cost, and why tests were tried again: their first failure is the one that counts."""
    for report in terminalreporter.getreports("rerun"):
        terminalreporter.section(f"tried again: {report.nodeid}")
        terminalreporter.line(report.longreprtext)
    if account := config.stash.get(_ACCOUNT, None):
        account.end()
        if terminalreporter.stats:
            terminalreporter.section("the cost of this run")
            for line in account.lines():
                terminalreporter.line(line)


@pytest.fixture(scope="session", autouse=True)
def _temporary_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the temporary files of all that tests start where pytest removes them."""
    with temporary_files_in(tmp_path_factory.getbasetemp() / "tmp"):
        yield


@pytest.fixture(scope="session", autouse=True)
def _ports_of_this_worker() -> Iterator[None]:
    """Part the ports among the processes that run tests, lest one takes that of a server which is down in another."""
    with pytest.MonkeyPatch.context() as patch:
        if worker := os.environ.get("PYTEST_XDIST_WORKER"):
            lowest, end = ports._LOWEST, ports._first_ephemeral()
            share = (end - lowest) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
            first = lowest + int(worker.removeprefix("gw")) * share
            patch.setattr(ports, "_LOWEST", first)
            patch.setattr(ports, "_first_ephemeral", lambda: first + share)
        yield


@pytest.fixture(scope="session", autouse=True)
def _quick_start_of_servers() -> None:
    start_quickly()


@pytest.fixture(scope="session", autouse=True)
def _quick_start_of_spark(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let every Spark that tests start do without Java's full compiler (C2), and map its classes from an archive.

    Its Python workers take their code from where it is compiled.
    """
    options = "-XX:TieredStopAtLevel=1"
    with pytest.MonkeyPatch.context() as patch:
        if any("unit" not in item.path.parts for item in request.session.items):
            options = " ".join((options, *quick_spark_options()))
            patch.setenv("SPARK_HOME", str(quick_spark_home()))
        # Read by PySpark when it starts a JVM, here or in a process that a test starts.
        patch.setenv("PYSPARK_SUBMIT_ARGS", f'--driver-java-options "{options}" pyspark-shell')
        yield


@pytest.fixture(scope="session", autouse=True)
def _random_numbers_of_kazoo() -> Iterator[None]:
    """Give kazoo random numbers of its own: hypothesis fails a test while which another thread takes a global one.

    A thread of kazoo's takes some for as long as it does not reach its server, also between tests.
    """
    own = random.Random()
    with pytest.MonkeyPatch.context() as patch:
        for module in (kazoo.retry, kazoo.protocol.connection):
            patch.setattr(module, "random", own)
        yield


def _log_levels() -> dict[str, int]:
    loggers = (logger for logger in logging.root.manager.loggerDict.values() if isinstance(logger, logging.Logger))
    return {logger.name: logger.level for logger in (logging.root, *loggers)}


@pytest.fixture(scope="session", autouse=True)
def _log_levels_at_start() -> dict[str, int]:
    return _log_levels()


@pytest.fixture(autouse=True)
def _logging_as_it_was(_log_levels_at_start: dict[str, int]) -> Iterator[None]:
    """Undo what a command that a test ran in its own process did to the log: others look at what is logged."""

    def restore() -> None:
        for name, level in _log_levels().items():
            # To set one makes all loggers forget what they are to log.
            if level != (before := _log_levels_at_start.get(name, logging.NOTSET)):
                logging.getLogger(name).setLevel(before)

    # The fixtures of a module, which come before this one, may have run commands too.
    restore()
    handlers = list(logging.root.handlers)
    yield
    restore()
    logging.root.handlers[:] = handlers


@pytest.fixture(scope="session")
def pool() -> Iterator[ServerPool]:
    """Keep the servers that tests of several files share."""
    with closing(ServerPool()) as made:
        yield made


@pytest.fixture(scope="session")
def clusters(pool: ServerPool, tmp_path_factory: pytest.TempPathFactory) -> Clusters:
    """The development clusters that tests of several files share."""
    return Clusters(pool, tmp_path_factory.mktemp)


@pytest.fixture(scope="module")
def pulsar_cluster(clusters: Clusters) -> DevCluster:
    """A running Pulsar that all tests share: use a namespace of your own, break nothing."""
    return clusters.shared(PLAIN)


@pytest.fixture(scope="module")
def oxia_cluster(clusters: Clusters) -> DevCluster:
    """A running Pulsar with its metadata in Oxia that all tests share: use a namespace of your own, break nothing.

    Its topics keep to few ledgers: what a broker and a test write at the same moment may break this Oxia, see
    docs/oxia.md.
    """
    return clusters.shared(ON_OXIA)


@pytest.fixture
def shared_cluster(request: pytest.FixtureRequest) -> DevCluster:
    """The cluster that all tests share; that on Oxia where servers.each_store asks for it."""
    return shared_cluster_on(getattr(request, "param", "zookeeper"), request)


@pytest.fixture
def make_cluster(clusters: Clusters) -> Iterator[ClusterFactory]:
    """Make running clusters that the test may break; they are killed after it."""
    made: list[DevCluster] = []

    def make(options: ClusterOptions = PLAIN) -> DevCluster:
        made.append(clusters.taken(options))
        return made[-1]

    yield make
    for cluster in made:
        cluster.kill()


@pytest.fixture(scope="session")
def make_namespace() -> Callable[[DevCluster], str]:
    """Make a fresh tenant and namespace on a cluster; the result is "tenant/namespace"."""
    return _create_namespace


@pytest.fixture
def namespace(shared_cluster: DevCluster) -> str:
    """A fresh tenant and namespace on the shared cluster, as "tenant/namespace"."""
    return _create_namespace(shared_cluster)


@pytest.fixture
def admin(shared_cluster: DevCluster) -> Iterator[PulsarAdmin]:
    """The shared cluster's admin REST."""
    with closing(PulsarAdmin(shared_cluster.connection(), timeout_s=60)) as made:
        yield made


@pytest.fixture
def client(shared_cluster: DevCluster) -> Iterator[pulsar.Client]:
    """A native client of the shared cluster."""
    with closing(shared_cluster.connection().client()) as made:
        yield made


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoneZooKeeper]:
    """A running ZooKeeper without a Pulsar, shared by all tests: use a root of your own."""
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(scope="session")
def quiet_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoneZooKeeper]:
    """A ZooKeeper of `ScannedSite` alone, since a scan looks for metadata roots that it was not told of."""
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(scope="session")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """A running S3 server, shared by all tests: use a bucket of your own."""
    with running_object_store(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def bucket(object_store: ObjectStore) -> str:
    """A bucket of the test's own."""
    name = f"b-{secrets.token_hex(4)}"
    object_store.create_bucket(name)
    return name


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One local Spark session for all tests."""
    # Unit tests must not pay for its imports.
    from servers.local_spark import local_spark

    with local_spark() as session:
        yield session


def _create_namespace(cluster: DevCluster) -> str:
    tenant = f"t-{secrets.token_hex(4)}"
    connection = cluster.connection()
    headers = {"Authorization": f"Bearer {connection.current_token()}"} if connection.auth == "token" else {}
    with urllib3.PoolManager(ca_certs=connection.tls_trust_certs_file) as http:
        for path, body in ((f"tenants/{tenant}", {"allowedClusters": ["dev"]}), (f"namespaces/{tenant}/n", None)):
            answer = http.request("PUT", f"{cluster.admin_url}/admin/v2/{path}", json=body or {}, headers=headers)
            assert answer.status == 204, f"{path}: {answer.status} {answer.data!r}"
    return f"{tenant}/n"
