"""Bookies beside the one of a development cluster, for ledgers on several bookies."""

from __future__ import annotations

import dataclasses

from bookwarden.devcluster import DevCluster, ServerProcess
from bookwarden.devcluster.ports import free_ports
from bookwarden.devcluster.servers import ServerFactory, load_runtime


class MoreBookies:
    """Bookies of a running cluster, each in a folder of its own within the cluster's; stopped by `kill`."""

    def __init__(self, cluster: DevCluster, count: int) -> None:
        self.servers: dict[str, ServerProcess] = {}
        for number, port in enumerate(free_ports(count)):
            ports = dataclasses.replace(cluster.ports, bookie=port)
            home = cluster.home / f"more-{number}"
            home.mkdir()
            factory = ServerFactory(home, ports, cluster.options, load_runtime)
            self.servers[f"127.0.0.1:{port}"] = ServerProcess(factory.bookie())

    def start(self) -> None:
        """Start all and wait until they serve."""
        for server in self.servers.values():
            server.start(wait=False)
        for server in self.servers.values():
            server.wait_until_ready()

    def kill(self) -> None:
        """Kill those that run."""
        for server in self.servers.values():
            server.kill()
