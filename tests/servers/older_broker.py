"""A broker of another Pulsar cluster, and of an older version, on the ensemble and bookie of a development cluster."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import urllib3

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.metastore.urls import open_store
from bookwarden_dev.devcluster import DevCluster, ServerProcess, ServerSpec
from bookwarden_dev.devcluster.ports import LOOPBACK, free_ports
from bookwarden_dev.devcluster.servers.settings import ClusterPorts
from bookwarden_dev.devcluster.servers.specs import ServerFactory
from servers.class_archives import quick_runtime
from servers.lossy_proxy import LossyProxy
from servers.pool import PLAIN

_SETUP_SECONDS = 180.0
_CHROOT = "/older"


class OlderBroker:
    """A broker of the first release with its cluster's metadata in a chroot, whom a proxy connects with ZooKeeper.

    Without ZooKeeper its session, which is short, soon ends.
    """

    def __init__(self, beside: DevCluster, home: Path) -> None:
        self.beside = beside
        self.proxy = LossyProxy(beside.ports.zookeeper)
        broker, web = free_ports(2)
        self.service_url = f"pulsar://{LOOPBACK}:{broker}"
        self.admin_url = f"http://{LOOPBACK}:{web}"
        self.store_url = f"{beside.store_url}{_CHROOT}"
        through = f"zk:{LOOPBACK}:{self.proxy.port}"
        metadata = {
            "metadataStoreUrl": f"{through}{_CHROOT}",
            "configurationMetadataStoreUrl": f"{through}{_CHROOT}",
            "bookkeeperMetadataServiceUri": f"metadata-store:{through}",
        }
        options = dataclasses.replace(PLAIN, session_seconds=6, broker_settings={**PLAIN.broker_settings, **metadata})
        ports = ClusterPorts(beside.ports.zookeeper, beside.ports.bookie, broker, web)
        self._factory = ServerFactory(home, ports, options, lambda: quick_runtime(options.pulsar))
        self._process = ServerProcess(self._factory.broker(self._is_ready))

    @classmethod
    def started(cls, beside: DevCluster, home: Path) -> OlderBroker:
        """Make and start one beside a cluster that runs, and wait until it serves."""
        made = cls(beside, home)
        store = open_store(beside.store_url)
        try:
            if store.get(_CHROOT) is None:
                store.create(_CHROOT, b"")
        finally:
            store.close()
        ServerProcess(made._setup()).run(_SETUP_SECONDS)
        made._process.start()
        return made

    @property
    def servers(self) -> list[ServerProcess]:
        """What it needs to run."""
        return [*self.beside.servers, self._process]

    def kill(self) -> None:
        self._process.kill()
        self.proxy.close()

    def connection(self) -> PulsarConnection:
        return PulsarConnection(self.service_url, self.admin_url)

    def _is_ready(self) -> bool:
        with urllib3.PoolManager(retries=False, timeout=2.0) as pool:
            try:
                return pool.request("GET", f"{self.admin_url}/admin/v2/brokers/ready").status == 200
            except urllib3.exceptions.HTTPError:
                return False

    def _setup(self) -> ServerSpec:
        """Give the program that writes the cluster's first metadata, into the chroot."""
        spec = self._factory.metadata_setup(self.service_url, self.admin_url)

        def command() -> list[str]:
            in_chroot = [self.store_url if word == self.beside.store_url else word for word in spec.command()]
            bookkeeper = f"zk+null://{self.beside.store_url.removeprefix('zk:')}/ledgers"
            return [*in_chroot, "--existing-bk-metadata-service-uri", bookkeeper]

        return dataclasses.replace(spec, command=command)
