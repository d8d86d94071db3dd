"""A broker of another Pulsar cluster, in a chroot on the ensemble of a development cluster, and on its bookie."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import TracebackType

import urllib3

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.devcluster import ClusterOptions, DevCluster, ServerProcess, ServerSpec
from bookwarden.devcluster.ports import LOOPBACK, free_ports
from bookwarden.devcluster.servers.settings import ClusterPorts
from bookwarden.devcluster.servers.specs import ServerFactory
from bookwarden.metastore.urls import open_store
from servers.class_archives import quick_runtime

_SETUP_SECONDS = 180.0


class SecondBroker:
    """The broker and its cluster's metadata; it runs inside a with statement, in which the other cluster is up."""

    def __init__(self, beside: DevCluster, home: Path, chroot: str, options: ClusterOptions) -> None:
        broker, web = free_ports(2)
        self.service_url = f"pulsar://{LOOPBACK}:{broker}"
        self.admin_url = f"http://{LOOPBACK}:{web}"
        self.store_url = f"{beside.store_url}{chroot}"
        self._beside = beside
        self._chroot = chroot
        ports = ClusterPorts(beside.ports.zookeeper, beside.ports.bookie, broker, web)
        metadata = {
            "metadataStoreUrl": self.store_url,
            "configurationMetadataStoreUrl": self.store_url,
            "bookkeeperMetadataServiceUri": f"metadata-store:{beside.store_url}",
        }
        options = dataclasses.replace(options, broker_settings={**options.broker_settings, **metadata})
        self._factory = ServerFactory(home, ports, options, lambda: quick_runtime(options.pulsar))
        self.process = ServerProcess(self._factory.broker(self._is_ready))

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
            in_chroot = [self.store_url if word == self._beside.store_url else word for word in spec.command()]
            bookkeeper = f"zk+null://{self._beside.store_url.removeprefix('zk:')}/ledgers"
            return [*in_chroot, "--existing-bk-metadata-service-uri", bookkeeper]

        return dataclasses.replace(spec, command=command)

    def __enter__(self) -> SecondBroker:
        store = open_store(self._beside.store_url)
        try:
            if store.get(self._chroot) is None:
                store.create(self._chroot, b"")
        finally:
            store.close()
        ServerProcess(self._setup()).run(_SETUP_SECONDS)
        self.process.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.stop()
