"""Status of the development cluster's servers, with their addresses."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bookwarden_dev.devcluster import access
from bookwarden_dev.devcluster.ports import LOOPBACK
from bookwarden_dev.devcluster.processes.process import ServerProcess
from bookwarden_dev.devcluster.servers.oxia import oxia_url
from bookwarden_dev.devcluster.servers.settings import ClusterPorts


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """The status of one server; ``pid`` is None if it does not run."""

    name: str
    pid: int | None
    ready: bool
    address: str
    log_file: Path


def status_of(server: ServerProcess, address: str) -> ServerStatus:
    """Return whether a server runs and serves."""
    pid = server.pid if server.is_running() else None
    return ServerStatus(server.name, pid, server.is_ready(), address, server.spec.log_file)


def addresses(ports: ClusterPorts, auth: str) -> dict[str, str]:
    """Return the addresses of all servers that a cluster may have, by name."""
    return {
        "zookeeper": f"zk:{LOOPBACK}:{ports.zookeeper}",
        "oxia": oxia_url(ports.oxia),
        "bookie": f"{LOOPBACK}:{ports.bookie}",
        "broker": f"{access.service_url(ports, auth)} {access.admin_url(ports, auth)}",
    }
