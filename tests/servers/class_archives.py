"""Servers and Sparks that start with about half of the processor time: Java maps their classes from an archive.

That of a release's servers is recorded once for a Java, by a cluster that comes up, passes a message and goes down, and
kept beside the release; that of Spark by a few queries, and kept in the environment whose jars it is of. Java leaves
an archive alone that does not fit. Source: the java command of JDK 17, application class-data sharing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import pulsar
import pytest

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.java import Java, find_java
from bookwarden.pipelines.class_archive import ClassArchive
from bookwarden_dev.devcluster import ClusterOptions, DevCluster, bookie_clusters, cluster
from bookwarden_dev.devcluster.ports import free_ports
from bookwarden_dev.devcluster.releases.cache import Progress, ensure_entry
from bookwarden_dev.devcluster.servers.settings import PULSAR_VERSIONS
from bookwarden_dev.devcluster.servers.specs import Runtime, load_runtime
from servers.first_metadata import QuickStart
from servers.pulsar_topics import TopicUnderTest
from servers.topic_contents import acknowledge_each, compact, send, send_keyed
from servers.waiting import eventually

_TESTS: Final = str(Path(__file__).parents[1])
#: What a Python program begins with whose clusters are to start quickly.
QUICKLY: Final = (
    f"import sys; sys.path.insert(0, {_TESTS!r}); from servers.class_archives import start_quickly; start_quickly()"
)
#: `bookwarden` as a process of its own whose clusters do.
QUICK_BOOKWARDEN: Final = (sys.executable, "-c", f"{QUICKLY}; from bookwarden.cli.main import main; main()")
_FORMAT = 6
_NAMESPACE = "recorded/n"
# What many of the clusters of tests have.
_RECORDED = {
    "transactionCoordinatorEnabled": "true",
    "delayedDeliveryTrackerFactoryClassName": "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory",
    "delayedDeliveryMinIndexCountPerBucket": "5",
}
_SPARK = "spark.jsa"
_BESIDE_SPARK = Path(sys.prefix, "class-archives")
_SPARK_SECONDS = 240
_QUERIES = Path(__file__).with_name("class_archive_queries.py")
_ZOOKEEPER = "org.apache.zookeeper.server.ZooKeeperServerMain"
_SERVERS = (_ZOOKEEPER, "org.apache.bookkeeper.server.Main", "org.apache.pulsar.PulsarBrokerStarter")


def start_quickly() -> None:
    """Let the clusters that this process starts map their classes from an archive, and copy first metadata."""
    for module in (cluster, bookie_clusters):
        module.load_runtime = quick_runtime
        module.PatientStart = QuickStart


@dataclasses.dataclass(frozen=True)
class _ArchivingRuntime(Runtime):
    """Begins each command with what the archive of its main class needs; ``records`` makes it, instead of using it."""

    archives: Path
    records: bool

    def command(self, main_class: str, arguments: Sequence[str], **options: Any) -> list[str]:
        executable, *rest = Runtime.command(self, main_class, arguments, **options)
        return [executable, *self.options_for(main_class), *rest]

    def options_for(self, main_class: str) -> list[str]:
        """Name the archive, unless there is none to use."""
        archive = self.archives / f"{main_class}.jsa"
        if self.records:
            return [f"-XX:ArchiveClassesAtExit={archive}"]
        return _use(archive)


@functools.cache
def quick_runtime(release: str, progress: Progress = lambda _line: None) -> _ArchivingRuntime:
    """Do what `load_runtime` does, for servers that start quickly; the first call on a machine takes half a minute."""
    runtime = load_runtime(release, progress)
    name = f"classes-{runtime.release.name}-{_identity(runtime.java, runtime.release)}"
    entry = ensure_entry(name, lambda folder: _record(runtime, release, folder))
    return _ArchivingRuntime(runtime.java, runtime.release, entry, records=False)


def quick_zookeeper_options() -> list[str]:
    """Options for the Java of a ZooKeeper whose ``-cp`` names the first release's jars and nothing else."""
    return quick_runtime(PULSAR_VERSIONS[0]).options_for(_ZOOKEEPER)


def quick_spark_home() -> Path:
    """The home of this environment's Spark, with folders of compiled Python code in place of its archives.

    They come first for each worker that Spark starts, which would compile from them what is installed beside them and
    compiled already: that is more than half of what a worker's start takes.
    """
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    installed = Path(found.origin).parent

    def link(folder: Path) -> Path:
        home = folder / "home"
        home.mkdir()
        for name in ("bin", "jars"):
            (home / name).symlink_to(installed / name)
        return home

    home = ensure_entry(f"spark-home-{version('pyspark')}", link, _BESIDE_SPARK)
    code = home / "python" / "lib" / "pyspark.zip"
    code.mkdir(parents=True, exist_ok=True)
    for package in (installed, installed.with_name("py4j")):
        # Another process may make it at the same time.
        with contextlib.suppress(FileExistsError):
            (code / package.name).symlink_to(package)
    return home


def quick_spark_options() -> list[str]:
    """Java options for the driver of a Spark in `quick_spark_home`, from its jars alone."""
    made_of = _identity(find_java(), version("pyspark"), ClassArchive(Path()).options)
    entry = ensure_entry(f"spark-{made_of}", _record_spark, _BESIDE_SPARK)
    return _use(entry / _SPARK)


def _use(archive: Path) -> list[str]:
    return [f"-XX:SharedArchiveFile={archive}", "-Xlog:disable"] if archive.exists() else []


def _identity(java: Java, *others: object) -> str:
    executable = Path(java.executable).resolve()
    made_of = (_FORMAT, executable, executable.stat().st_mtime_ns, *others)
    return hashlib.sha256(repr(made_of).encode()).hexdigest()[:12]


def _record_spark(folder: Path) -> Path:
    archives = folder / "archives"
    archives.mkdir()
    made = ClassArchive(archives / _SPARK, fresh=archives / _SPARK)
    options = " ".join((*made.options, "-XX:TieredStopAtLevel=1"))
    submit = f'--driver-java-options "{options}" pyspark-shell'
    environment = {
        **os.environ,
        "SPARK_HOME": str(quick_spark_home()),
        "PYSPARK_SUBMIT_ARGS": submit,
        "PYSPARK_PYTHON": sys.executable,
    }
    command = [sys.executable, str(_QUERIES), str(folder)]
    log = folder / "log"
    with log.open("wb") as sink:
        # A group of its own, so that an interrupt leaves nothing: its JVM would go on until the archive is written.
        process = subprocess.Popen(
            command, env=environment, cwd=folder, stdout=sink, stderr=sink, start_new_session=True
        )
        try:
            code = process.wait(_SPARK_SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert code == 0, log.read_text(encoding="utf-8", errors="replace")
    assert (archives / _SPARK).exists(), "Java wrote no archive of the classes of Spark"
    return archives


def _use_topics(connection: PulsarConnection) -> None:
    """Do once what tests do to topics, so that a broker's classes for it are recorded."""
    with closing(PulsarAdmin(connection, timeout_s=60)) as admin, closing(connection.client()) as client:
        admin.put("/tenants/recorded", {"allowedClusters": ["dev"]})
        admin.put(f"/namespaces/{_NAMESPACE}")
        acknowledge_each(admin, _NAMESPACE)
        for name, partitions in (("partitioned", 2), ("single", 0)):
            topic = TopicUnderTest(connection, _NAMESPACE, name, partitions, retained=False)
            consumer, delayed = (
                client.subscribe(topic.name, name, pulsar.ConsumerType.Shared) for name in ("all", "delayed")
            )
            send(client, topic.name, 15)
            send(client, topic.name, 8, deliver_after=timedelta(hours=1))
            for _ in range(15):
                consumer.acknowledge(consumer.receive(30_000))
            for partition in topic.partitions:
                send_keyed(client, partition, 12)
                compact(admin, partition)
                admin.get_json(f"{topic_path(partition)}/stats")
            topic.read_back()
            for each in (consumer, delayed):
                each.unsubscribe()
            topic.unload()
            for partition in topic.partitions:
                admin.post(f"{topic_path(partition)}/trim")
            path = topic_path(topic.name)
            admin.delete(f"{path}/partitions" if partitions else path, params={"force": True})
        admin.put(f"/namespaces/{_NAMESPACE}/unload")
        admin.delete(f"/namespaces/{_NAMESPACE}", params={"force": True})


def _record(runtime: Runtime, release: str, folder: Path) -> Path:
    archives = folder / "archives"
    archives.mkdir()
    recording = _ArchivingRuntime(runtime.java, runtime.release, archives, records=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster, "_runtime", lambda _release, _progress: recording)
        # Java writes the archives when the servers end in order.
        options = ClusterOptions(
            pulsar=release,
            max_entries_per_ledger=10,
            broker_settings=_RECORDED,
            # Bookies of several clusters have both.
            bookie_settings={
                "autoRecoveryDaemonEnabled": "true",
                "httpServerEnabled": "true",
                "httpServerPort": str(free_ports(1)[0]),
            },
        )
        with DevCluster(folder / "pulsar", options) as recorded:
            _use_topics(recorded.connection())
            for server in reversed(recorded.servers):
                # To write an archive takes longer on a busy machine than a server gets to stop.
                os.kill(server.pid, signal.SIGTERM)
                eventually(lambda server=server: not server.is_running(), 240)
    lacking = [main_class for main_class in _SERVERS if not (archives / f"{main_class}.jsa").exists()]
    assert not lacking, f"Java wrote no archive of the classes of {', '.join(lacking)}"
    return archives
