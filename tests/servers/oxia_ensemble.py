"""Three Oxia servers and their coordinator, each server behind a proxy that can part it from the others."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import urllib3

from bookwarden_dev.devcluster.ports import free_ports
from bookwarden_dev.devcluster.processes.process import ServerProcess, ServerSpec
from bookwarden_dev.devcluster.servers.oxia import NAMESPACE, ensure_oxia, oxia_address
from servers.lossy_proxy import LossyProxy

_SERVERS = 3


class OxiaMember(ServerProcess):
    """One server. Clients reach it at ``address``; the coordinator and the others reach it through ``inner``."""

    def __init__(self, home: Path) -> None:
        public, internal, metrics = free_ports(3)
        self.address = oxia_address(public)
        self.inner = LossyProxy(internal)

        def command() -> Sequence[str]:
            arguments = ["server", f"--data-dir={home / 'db'}", f"--wal-dir={home / 'wal'}"]
            arguments += [f"--public-addr={self.address}", f"--internal-addr={oxia_address(internal)}"]
            return [str(ensure_oxia()), *arguments, f"--metrics-addr={oxia_address(metrics)}"]

        super().__init__(_spec(home, command, metrics))

    @property
    def url(self) -> str:
        """The URL of the namespace, by this server."""
        return f"oxia://{self.address}/{NAMESPACE}"


class OxiaEnsemble:
    """``members`` are three servers, each with a replica of every shard. Started once."""

    def __init__(self, home: Path, *, shards: int) -> None:
        self.members = [OxiaMember(_made(home / str(number))) for number in range(_SERVERS)]
        config = home / "cluster.json"
        namespace = {"name": NAMESPACE, "initialShardCount": shards, "replicationFactor": _SERVERS}
        servers = [{"public": one.address, "internal": oxia_address(one.inner.port)} for one in self.members]
        # Read as YAML, of which JSON is a part.
        config.write_text(json.dumps({"namespaces": [namespace], "servers": servers}), encoding="utf-8")
        internal, metrics = free_ports(2)

        def command() -> Sequence[str]:
            arguments = ["coordinator", f"--conf={config}", f"--file-clusters-status-path={home / 'status.json'}"]
            arguments += [f"--internal-addr={oxia_address(internal)}", f"--metrics-addr={oxia_address(metrics)}"]
            return [str(ensure_oxia()), *arguments]

        self.coordinator = ServerProcess(_spec(home, command, metrics))

    def start(self) -> None:
        """Start all of them; who asks for the shards waits for their leaders."""
        for member in self.members:
            member.start(wait=False)
        for member in self.members:
            member.wait_until_ready()
        self.coordinator.start()

    def member_at(self, address: str) -> OxiaMember:
        """Return the server that clients reach at an address."""
        return next(member for member in self.members if member.address == address)

    def kill(self) -> None:
        """End the proxies and kill every process."""
        for member in self.members:
            member.inner.close()
        for server in (self.coordinator, *self.members):
            server.kill()


def _spec(home: Path, command: Callable[[], Sequence[str]], metrics: int) -> ServerSpec:
    return ServerSpec(
        name="oxia",
        command=command,
        log_file=home / "oxia.log",
        is_ready=lambda _start: _serves(metrics),
        working_folder=home,
        environment={"NO_COLOR": "1"},
    )


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def _serves(metrics_port: int) -> bool:
    with urllib3.PoolManager(retries=False, timeout=2.0) as pool:
        try:
            return pool.request("HEAD", f"http://{oxia_address(metrics_port)}/metrics").status == 200
        except urllib3.exceptions.HTTPError:
            return False
