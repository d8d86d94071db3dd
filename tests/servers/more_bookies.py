"""Bookies beside the one of a development cluster, for ledgers on several bookies."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import closing

from bookwarden.metastore.urls import open_store
from bookwarden_dev.devcluster import DevCluster, ServerProcess
from bookwarden_dev.devcluster.ports import free_ports
from bookwarden_dev.devcluster.servers.specs import ServerFactory
from servers.class_archives import quick_runtime


class MoreBookies:
    """Bookies of a running cluster, by id, each in a folder within the cluster's; stopped by `kill`.

    An id that is "" makes one whose id is its address, as usual. A bookie with a name is not to be started again
    at once after a kill: nobody takes its registration away.
    """

    def __init__(self, cluster: DevCluster, *ids: str) -> None:
        self._cluster = cluster
        self.servers: dict[str, ServerProcess] = {}
        for number, (bookie_id, port) in enumerate(zip(ids, free_ports(len(ids)), strict=True)):
            self.servers[bookie_id or f"127.0.0.1:{port}"] = self._server(number, bookie_id, port)

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

    def _server(self, number: int, bookie_id: str, port: int) -> ServerProcess:
        home = self._cluster.home / f"more-bookies-{number}"
        home.mkdir()
        options = self._cluster.options
        if bookie_id:
            settings = {**options.bookie_settings, "bookieId": bookie_id}
            options = dataclasses.replace(options, bookie_settings=settings)
        ports = dataclasses.replace(self._cluster.ports, bookie=port)
        spec = ServerFactory(home, ports, options, lambda: quick_runtime(options.pulsar)).bookie()
        return ServerProcess(dataclasses.replace(spec, is_ready=self._registered(bookie_id)) if bookie_id else spec)

    def _registered(self, bookie_id: str) -> Callable[[float], bool]:
        def is_ready(_started_at: float) -> bool:
            with closing(open_store(self._cluster.store_url)) as store:
                return store.get(f"/ledgers/available/{bookie_id}") is not None

        return is_ready
