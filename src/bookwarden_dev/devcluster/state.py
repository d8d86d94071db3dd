"""State that a development cluster leaves in its home for a later process, cluster.json; its servers' status."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bookwarden.errors import ServerError
from bookwarden.processes import ProcessIdentity
from bookwarden_dev.devcluster import access
from bookwarden_dev.devcluster.ports import LOOPBACK, free_ports
from bookwarden_dev.devcluster.processes.process import ServerProcess
from bookwarden_dev.devcluster.servers.oxia import oxia_url
from bookwarden_dev.devcluster.servers.settings import ClusterOptions, ClusterPorts

FILE_NAME = "cluster.json"
_VERSION = 1


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


@dataclass(frozen=True, slots=True)
class StartedServer:
    """A process that was started for a server, and the time of that (seconds since the epoch)."""

    identity: ProcessIdentity
    started_at: float


@dataclass(frozen=True, slots=True)
class ClusterState:
    """Ports and options of a cluster, and the processes last started, by server name."""

    ports: ClusterPorts
    options: ClusterOptions
    initialised: bool
    servers: Mapping[str, StartedServer]


def write_state(home: Path, state: ClusterState) -> None:
    """Replace the state file, all at once."""
    document = {
        "version": _VERSION,
        "ports": dataclasses.asdict(state.ports),
        "options": dataclasses.asdict(state.options),
        "initialised": state.initialised,
        "servers": {name: _render(server) for name, server in state.servers.items()},
    }
    temporary = home / f"{FILE_NAME}.new"
    temporary.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    os.replace(temporary, home / FILE_NAME)


def read_state(home: Path) -> ClusterState | None:
    """Read the state file, None if there is none; raise ServerError if it cannot be read."""
    path = home / FILE_NAME
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["version"] != _VERSION:
            raise ServerError(f"{path} is of version {document['version']}: remove the folder {home} and start again")
        return ClusterState(
            ports=ClusterPorts(**document["ports"]),
            options=ClusterOptions(**document["options"]),
            initialised=bool(document["initialised"]),
            servers={name: _parse(server) for name, server in document["servers"].items()},
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ServerError(f"{path} cannot be read ({error}): remove the folder {home} and start again") from error


def choose_ports(before: ClusterState | None, options: ClusterOptions, avoid: Sequence[int]) -> ClusterPorts:
    """Return the ports that a cluster had before, or free ones where it had none, except the ones to ``avoid``."""
    ports = before.ports if before else ClusterPorts(*free_ports(4, avoid))
    if ports.oxia or "oxia" not in options.stores:
        return ports
    oxia, metrics = free_ports(2, (*avoid, *dataclasses.astuple(ports)))
    return dataclasses.replace(ports, oxia=oxia, oxia_metrics=metrics)


def _render(server: StartedServer) -> dict[str, Any]:
    return {"pid": server.identity.pid, "started": server.identity.started, "started_at": server.started_at}


def _parse(server: Mapping[str, Any]) -> StartedServer:
    identity = ProcessIdentity(int(server["pid"]), str(server["started"]))
    return StartedServer(identity, float(server["started_at"]))
