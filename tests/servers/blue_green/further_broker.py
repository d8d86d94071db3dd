"""Another broker of a cluster that runs, beside the first one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import urllib3

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden_dev.devcluster import ClusterOptions, DevCluster, ServerProcess, access
from bookwarden_dev.devcluster.ports import LOOPBACK, free_ports
from bookwarden_dev.devcluster.servers.specs import ServerFactory
from servers.class_archives import quick_runtime

#: Without these two brokers would not part the bundles, or not leave them where they are.
SHARING = {
    "loadBalancerEnabled": "true",
    "loadBalancerSheddingEnabled": "false",
    "loadBalancerAutoBundleSplitEnabled": "false",
}


@contextmanager
def further_broker(
    beside: DevCluster, home: Path, options: ClusterOptions | None = None
) -> Iterator[tuple[ServerProcess, PulsarConnection]]:
    """Run one without authentication for the block, with the cluster's options or others; it is killed behind it."""
    broker, web = free_ports(2, [port for port in dataclasses.astuple(beside.ports) if port])
    ports = dataclasses.replace(beside.ports, broker=broker, web=web)
    factory = ServerFactory(home, ports, options or beside.options, lambda: quick_runtime(beside.options.pulsar))

    def is_ready() -> bool:
        with urllib3.PoolManager(retries=False, timeout=2.0) as pool:
            try:
                return pool.request("GET", f"http://{LOOPBACK}:{web}/admin/v2/brokers/ready").status == 200
            except urllib3.exceptions.HTTPError:
                return False

    process = ServerProcess(factory.broker(is_ready))
    try:
        process.start()
        yield process, access.broker_connection(ports, "none", home)
    finally:
        process.kill()
