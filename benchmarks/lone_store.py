"""A metadata store of a benchmark's own without a Pulsar, which syncs its disk, gone when the benchmark ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import yaml

from benchmarks.cluster import temporary_home
from benchmarks.population import create_nodes, zookeeper_at
from benchmarks.results import say
from bookwarden.metastore.deadline import Deadline
from bookwarden.metastore.oxia.channels import OxiaConnection
from bookwarden.metastore.oxia.shards import OxiaCluster
from bookwarden.metastore.oxia.writes import PendingWrite, ShardWriters
from bookwarden.metastore.paths import ancestors
from bookwarden.signals import sigterm_unwinds
from bookwarden.wire.pb import oxia_client_pb2 as pb
from bookwarden_dev.devcluster.ports import free_ports
from bookwarden_dev.devcluster.processes.process import ServerProcess
from bookwarden_dev.devcluster.servers.oxia import OxiaServer
from bookwarden_dev.devcluster.servers.settings import ClusterOptions, ClusterPorts, store_url
from bookwarden_dev.devcluster.servers.specs import ServerFactory, load_runtime

_PER_REQUEST = 500
_REQUESTS_IN_FLIGHT = 4

Nodes = Iterable[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class LoneStore:
    """A running store: its URL, its process, settings with which bookwarden works on it, and how nodes are made."""

    url: str
    pid: int
    settings_file: Path
    create: Callable[[Nodes], None]

    @property
    def address(self) -> str:
        """Where its clients connect, as "host:port"."""
        return self.url.removeprefix("zk:").removeprefix("oxia://").partition("/")[0]


@contextmanager
def lone_zookeeper() -> Iterator[LoneStore]:
    """Start a ZooKeeper with the heap and the full compiler of the other benchmarks, and its sync (forceSync) on."""
    with temporary_home() as home, sigterm_unwinds():
        ports, options = (
            ClusterPorts(zookeeper=free_ports(1)[0], bookie=0, broker=0, web=0),
            ClusterOptions(throughput=True, log_level="warn"),
        )
        server = ServerProcess(ServerFactory(home, ports, options, load_runtime).zookeeper())
        url = store_url(ports, options)

        def create(nodes: Nodes) -> None:
            with zookeeper_at(url) as client:
                create_nodes(client, list(nodes))

        with _running(server):
            yield LoneStore(url, server.pid, _settings_file(home, url), create)


@contextmanager
def lone_oxia() -> Iterator[LoneStore]:
    """Start an Oxia of one shard, whose log is synced."""
    with temporary_home() as home, sigterm_unwinds():
        server = OxiaServer(home, progress=say)
        with _running(server):
            address = server.address
            yield LoneStore(
                server.url, server.pid, _settings_file(home, server.url), lambda nodes: _create_keys(address, nodes)
            )


@contextmanager
def _running(server: ServerProcess) -> Iterator[None]:
    say(f"starting {server.name}")
    try:
        server.start()
        yield
    finally:
        say(f"stopping {server.name}")
        server.kill()


def _settings_file(home: Path, url: str) -> Path:
    path = home / "bookwarden.yaml"
    path.write_text(yaml.safe_dump({"metadata_store": {"urls": [url]}}), encoding="utf-8")
    return path


def _create_keys(address: str, nodes: Nodes) -> None:
    """Make the keys, and those above them, on the one stream of writes that may write to a shard."""
    cluster = OxiaCluster(OxiaConnection(address))
    with closing(cluster), closing(ShardWriters(cluster)) as writers:
        deadline = cluster.deadline()
        (shard,) = cluster.shards(deadline).shards
        window: deque[PendingWrite] = deque()
        for request in _requests(nodes):
            window.append(writers.send(shard, request))
            if len(window) >= _REQUESTS_IN_FLIGHT:
                _confirm(window.popleft(), deadline)
        while window:
            _confirm(window.popleft(), deadline)


def _requests(nodes: Nodes) -> Iterator[pb.WriteRequest]:
    parents: set[str] = set()
    source = iter(nodes)
    while batch := list(islice(source, _PER_REQUEST)):
        missing = {parent for path, _ in batch for parent in ancestors(path)} - parents
        parents |= missing
        yield _request([*((parent, b"") for parent in sorted(missing)), *batch])


def _request(nodes: Sequence[tuple[str, bytes]]) -> pb.WriteRequest:
    return pb.WriteRequest(puts=[pb.PutRequest(key=path, value=value) for path, value in nodes])


def _confirm(pending: PendingWrite, deadline: Deadline) -> None:
    if any(put.status != pb.OK for put in pending.get(deadline).puts):
        raise RuntimeError("Oxia did not take every ledger")
    deadline.progress()
