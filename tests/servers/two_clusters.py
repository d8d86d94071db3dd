"""Two Pulsar clusters on one ZooKeeper, in chroots, over one bookie: each set up by the default program, then sharing.

`PulsarClusterMetadataSetup` makes a BookKeeper's first nodes in each chroot, /a/ledgers and /b/ledgers, which nobody
uses: the brokers are told of /ledgers by bookkeeperMetadataServiceUri.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import urllib3

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.metastore.urls import open_store
from bookwarden_dev.devcluster import ClusterOptions, ServerProcess
from bookwarden_dev.devcluster.ports import LOOPBACK, free_ports
from bookwarden_dev.devcluster.servers.settings import ClusterPorts
from bookwarden_dev.devcluster.servers.specs import ServerFactory
from servers.class_archives import quick_runtime
from servers.first_metadata import QuickStart

_SETUP_SECONDS = 180.0


@dataclass(frozen=True)
class Ensemble:
    """The ZooKeeper and the bookie that both clusters use."""

    factory: ServerFactory

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.factory.ports.zookeeper}"

    @property
    def bookkeeper_uri(self) -> str:
        """As broker.conf and bookkeeper.conf have it."""
        return f"zk+hierarchical://{self.address}/ledgers"


class ClusterInChroot:
    """One of the clusters, its metadata in a chroot; the broker is not started yet."""

    def __init__(self, ensemble: Ensemble, home: Path, chroot: str) -> None:
        beside, (broker, web) = ensemble.factory, free_ports(2)
        self.service_url = f"pulsar://{LOOPBACK}:{broker}"
        self.admin_url = f"http://{LOOPBACK}:{web}"
        self.chroot = chroot
        self._ensemble = f"zk:{ensemble.address}"
        self.store_url = f"{self._ensemble}{chroot}"
        metadata = {
            "metadataStoreUrl": self.store_url,
            "configurationMetadataStoreUrl": self.store_url,
            "bookkeeperMetadataServiceUri": ensemble.bookkeeper_uri,
        }
        options = dataclasses.replace(beside.options, broker_settings=metadata)
        ports = dataclasses.replace(beside.ports, broker=broker, web=web)
        self._factory = ServerFactory(home, ports, options, beside.runtime)
        self.broker = ServerProcess(self._factory.broker(self._is_ready))

    def connection(self) -> PulsarConnection:
        return PulsarConnection(self.service_url, self.admin_url)

    @property
    def admin(self) -> PulsarAdmin:
        return PulsarAdmin(self.connection(), timeout_s=60)

    def set_up(self, starts: QuickStart) -> None:
        """Write the cluster's first metadata, with a BookKeeper of its own that stays unused."""
        with closing(open_store(self._ensemble)) as store:
            store.create(self.chroot, b"")
        spec = self._factory.metadata_setup(self.service_url, self.admin_url)

        def command() -> list[str]:
            return [self.store_url if word == self._ensemble else word for word in spec.command()]

        starts.run(ServerProcess(dataclasses.replace(spec, command=command)), _SETUP_SECONDS)

    def _is_ready(self) -> bool:
        with urllib3.PoolManager(retries=False, timeout=2.0) as pool:
            try:
                return pool.request("GET", f"{self.admin_url}/admin/v2/brokers/ready").status == 200
            except urllib3.exceptions.HTTPError:
                return False


@dataclass(frozen=True)
class TwoClusters:
    """Both clusters, running."""

    ensemble: Ensemble
    a: ClusterInChroot
    b: ClusterInChroot


@contextmanager
def two_clusters(home: Path, options: ClusterOptions) -> Iterator[TwoClusters]:
    """Run a ZooKeeper, a bookie and two brokers for the block; they are killed behind it."""
    ports = ClusterPorts(*free_ports(2), 0, 0)
    ensemble = Ensemble(ServerFactory(home / "shared", ports, options, lambda: quick_runtime(options.pulsar)))
    a, b = (ClusterInChroot(ensemble, home / name, f"/{name}") for name in ("a", "b"))
    zookeeper, bookie = ServerProcess(ensemble.factory.zookeeper()), ServerProcess(ensemble.factory.bookie())
    servers = [zookeeper, bookie, a.broker, b.broker]
    for folder in ("shared", "a", "b"):
        (home / folder).mkdir()
    try:
        zookeeper.start()
        starts = QuickStart(zookeeper.is_running, lambda _line: None)
        starts.run(ServerProcess(ensemble.factory.new_bookkeeper()), _SETUP_SECONDS)
        # Before any server writes: what is recorded has to be theirs alone.
        a.set_up(starts)
        b.set_up(starts)
        for server in servers[1:]:
            server.start(wait=False)
        for server in servers[1:]:
            server.wait_until_ready()
        yield TwoClusters(ensemble, a, b)
    finally:
        for server in reversed(servers):
            server.kill()
