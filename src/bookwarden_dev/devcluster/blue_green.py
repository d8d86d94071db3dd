"""Two Pulsar clusters side by side, blue and green, for a migration of clients from one to the other."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from bookwarden_dev.devcluster.cluster import DevCluster
from bookwarden_dev.devcluster.credentials import broker_credentials
from bookwarden_dev.devcluster.releases.cache import Progress
from bookwarden_dev.devcluster.servers.settings import ClusterOptions

#: How often blue's brokers look at the flags, in seconds.
ROUND_SECONDS: Final = 3
_CREDENTIALS: Final = "credentials"
_BLUE: Final = {
    "clusterMigrationCheckDurationSeconds": str(ROUND_SECONDS),
    "brokerDeleteInactiveTopicsEnabled": "true",
    "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds": "10",
    "brokerDeleteInactiveTopicsFrequencySeconds": "5",
    "delayedDeliveryTickTimeMillis": "200",
    # Before ap#26051 brokers redirect in threads that wait for each other: as the runbook says, more than clients.
    "numExecutorThreadPoolSize": "256",
}
# No server listens there: it is for clients that want an address for TLS, and do not use it.
_NO_TLS: Final = "pulsar+ssl://127.0.0.1:1"


class BlueAndGreen:
    """Both clusters, each with a store, a bookie and a broker of its own; up inside a with statement.

    Blue deletes inactive topics, soon. ``options`` are those of both but for names, and ``green_options`` differ.
    """

    def __init__(
        self,
        home: Path,
        options: ClusterOptions | None = None,
        green_options: ClusterOptions | None = None,
        *,
        progress: Progress = lambda _line: None,
    ) -> None:
        base = options or ClusterOptions()
        blue = dataclasses.replace(base, cluster_name="blue", broker_settings={**_BLUE, **base.broker_settings})
        green = dataclasses.replace(green_options or base, cluster_name="green")
        self.blue = DevCluster(home / "blue", blue, progress=progress)
        taken = [port for port in dataclasses.astuple(self.blue.ports) if port]
        self.green = DevCluster(home / "green", green, avoid=taken, progress=progress)
        if base.auth != "none":
            # Clients take their credentials along to green.
            folder = home / "blue" / _CREDENTIALS
            broker_credentials(folder)
            shutil.copytree(folder, home / "green" / _CREDENTIALS, dirs_exist_ok=True)

    def settings(self, side_of: Callable[[DevCluster], Mapping[str, Any]]) -> dict[str, Any]:
        """Return the section cluster_migration; ``side_of`` gives the sections pulsar and metadata_store of one."""
        clients = {
            "web_service_url": self.green.admin_url,
            "broker_service_url": self.green.service_url,
            "broker_service_url_tls": _NO_TLS,
        }
        if self.green.service_url.startswith("pulsar+ssl:"):
            clients = {
                "web_service_url_tls": self.green.admin_url,
                "broker_service_url": f"pulsar://{self.green.service_url.partition('://')[2]}",
                "broker_service_url_tls": self.green.service_url,
            }
        sides = {name: dict(side_of(cluster)) for name, cluster in (("blue", self.blue), ("green", self.green))}
        return {"blue": sides["blue"], "green": {**sides["green"], "clients": clients}}

    def up(self) -> None:
        """Start both at the same time; on failure kill what runs, and raise."""
        try:
            with ThreadPoolExecutor(2, thread_name_prefix="clusters") as pool:
                for started in [pool.submit(cluster.up) for cluster in (self.blue, self.green)]:
                    started.result()
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """Kill all servers of both."""
        for cluster in (self.blue, self.green):
            cluster.kill()

    def __enter__(self) -> BlueAndGreen:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
