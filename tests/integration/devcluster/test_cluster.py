"""The development cluster on real servers: start, faults, coming back, and leaving nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pulsar
import pytest
from kazoo.client import KazooClient

from bookwarden.errors import NotFoundError
from bookwarden.processes import ProcessIdentity, identify
from bookwarden_dev.devcluster import ClusterOptions, DevCluster
from servers.class_archives import QUICKLY
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]

ClusterFactory = Callable[..., DevCluster]
# Longer than any restart: what a killed server left in ZooKeeper is still there when it comes back.
LONG_SESSIONS = ClusterOptions(max_entries_per_ledger=10, session_seconds=60)

# From a thread that ends: servers belong to the process, not to the thread that started them.
STARTS_A_CLUSTER = f"""
{QUICKLY}
import pathlib, threading
from bookwarden_dev.devcluster import DevCluster
cluster = DevCluster(pathlib.Path(sys.argv[1]))
starter = threading.Thread(target=cluster.up)
starter.start()
starter.join()
print(*(server.pid for server in cluster.servers), flush=True)
threading.Event().wait()
"""


def exchange(cluster: DevCluster, topic: str, payloads: list[bytes]) -> list[bytes]:
    """Send messages and read the topic from its beginning."""
    client = cluster.connection().client(operation_timeout_seconds=30)
    try:
        consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
        producer = client.create_producer(topic, batching_enabled=False)
        for payload in payloads:
            producer.send(payload)
        consumer.seek(pulsar.MessageId.earliest)
        return [consumer.receive(30_000).data() for _ in payloads]
    finally:
        client.close()


def send_until_accepted(cluster: DevCluster, topic: str) -> None:
    """Send one message, however long the cluster needs to find itself."""
    client = cluster.connection().client(operation_timeout_seconds=60)
    try:
        client.create_producer(topic, send_timeout_millis=60_000).send(b"after")
    finally:
        client.close()


def test_messages_pass_and_ledgers_roll_in_zookeeper(pulsar_cluster: DevCluster, namespace: str) -> None:
    topic = f"persistent://{namespace}/rolls"
    payloads = [b"%d" % number for number in range(25)]
    assert exchange(pulsar_cluster, topic, payloads) == payloads
    stats_url = f"{pulsar_cluster.admin_url}/admin/v2/persistent/{namespace}/rolls/internalStats"
    with urllib.request.urlopen(stats_url) as answer:
        assert answer.read().count(b'"ledgerId"') >= 3
    client = KazooClient(pulsar_cluster.store_url.removeprefix("zk:"))
    client.start()
    try:
        assert len(client.get_children("/ledgers/00/0000")) >= 3
        assert client.exists(f"/managed-ledgers/{namespace}/persistent/rolls")
    finally:
        client.stop()
        client.close()


def test_servers_listen_on_loopback_only(pulsar_cluster: DevCluster) -> None:
    table = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    ports = pulsar_cluster.ports
    for port in (ports.zookeeper, ports.broker, ports.web):
        listening = [line.split()[1] for line in table.splitlines() if f":{port:04X} " in line and " 0A " in line]
        assert listening
        assert all(address.split(":")[0].endswith(("0100007F", "0000FFFF0100007F")) for address in listening)


@pytest.mark.parametrize("shared_cluster", ["zookeeper", "oxia"], indirect=True)
def test_servers_of_tests_map_their_classes_from_archives(shared_cluster: DevCluster) -> None:
    """Of 4.0.8 and of 4.2.4: without them they start with half as much processor time again, and nothing fails."""
    for server in shared_cluster.servers:
        mapped = Path(f"/proc/{server.pid}/maps").read_text()
        assert server.name == "oxia" or re.search(r"/org\.apache\..*\.jsa\n", mapped), server.name


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's temporary folder, as what is started from now on sees it unless told otherwise."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    # Java knows no TMPDIR, but takes from here what its command line does not say.
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Djava.io.tmpdir={folder}")
    return folder


def test_servers_come_back_after_a_crash_and_with_another_process_and_end_with_that(
    make_cluster: ClusterFactory, temporary: Path
) -> None:
    cluster = make_cluster(LONG_SESSIONS)
    topic = "persistent://public/default/crash"
    exchange(cluster, topic, [b"before"])
    # Each while its session lives.
    for server in (cluster.bookie, cluster.broker, cluster.zookeeper):
        before = server.pid
        server.kill()
        assert not server.is_running()
        server.start()
        assert server.pid != before
        send_until_accepted(cluster, topic)
    assert [status.ready for status in cluster.status()] == [True, True, True]
    unpacked = [path.name for path in (cluster.home / "tmp" / "bookie").iterdir()]
    # Of the one that runs; what the killed one left is gone.
    assert sum("rocksdbjni" in name for name in unpacked) == 1
    cluster.down()
    assert list(temporary.iterdir()) == []
    assert not any(server.is_running() for server in cluster.servers)

    command = [sys.executable, "-c", STARTS_A_CLUSTER, str(cluster.home)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout
            servers = [identify(int(pid)) for pid in parent.stdout.readline().split()]
            assert len(servers) == 3
            assert all(server and server.is_alive() for server in servers)
            again = DevCluster.attach(cluster.home)
            assert again.ports == cluster.ports
            assert exchange(again, topic, [b"x"] * 4) == [b"before", b"after", b"after", b"after"]
        finally:
            parent.send_signal(signal.SIGKILL)
    eventually(lambda: not any(server and server.is_alive() for server in servers), timeout=30)


def test_attach_without_a_cluster_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="holds no development cluster"):
        DevCluster.attach(tmp_path)


def test_a_recorded_process_id_that_is_somebody_elses_is_left_alone(tmp_path: Path) -> None:
    cluster = DevCluster(tmp_path)
    with subprocess.Popen(["sleep", "60"]) as bystander:
        try:
            server = cluster.broker
            server._identity = ProcessIdentity(bystander.pid, "an earlier boot")
            assert not server.is_running()
            cluster.down()
            os.kill(bystander.pid, 0)
            assert bystander.poll() is None
        finally:
            bystander.kill()
