"""A real Pulsar on this machine: one ZooKeeper, one bookie and one broker, each a process of its own."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import urllib3

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.devcluster import readiness
from bookwarden.devcluster.cache import Progress
from bookwarden.devcluster.credentials import broker_credentials, zookeeper_credentials
from bookwarden.devcluster.ports import LOOPBACK, free_ports
from bookwarden.devcluster.process import ServerProcess, ServerSpec
from bookwarden.devcluster.servers import Runtime, ServerFactory, load_runtime
from bookwarden.devcluster.settings import ClusterOptions, ClusterPorts
from bookwarden.devcluster.starting import PatientStart
from bookwarden.devcluster.state import ClusterState, StartedServer, read_state, write_state
from bookwarden.errors import ConfigError, NotFoundError, ServerError

_SETUP_SECONDS = 180.0
_PROTECTED_TREES = ("/ledgers", "/managed-ledgers", "/schemas")


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """What one server is doing: ``pid`` is None if it does not run."""

    name: str
    pid: int | None
    ready: bool
    address: str
    log_file: Path


class DevCluster:
    """A cluster that lives in a home folder; ports, options, data and credentials stay there between starts.

    Its servers end with this process, however it ends, unless ``detached``. Used as a context manager it is up
    inside the block. ``zookeeper``, ``bookie`` and ``broker`` can be stopped, killed and started one by one.
    """

    def __init__(
        self,
        home: Path,
        options: ClusterOptions | None = None,
        *,
        detached: bool = False,
        avoid: Sequence[int] = (),
        progress: Progress = lambda _line: None,
    ) -> None:
        """Make a handle of what is or will be in this home; a new cluster takes none of the ports to ``avoid``."""
        self.home = home.absolute()
        self._progress = progress
        before = read_state(self.home)
        self.options = options or (before.options if before else ClusterOptions())
        self.ports = before.ports if before else ClusterPorts(*free_ports(4, avoid))
        self._initialised = before.initialised if before else False
        self._factory = ServerFactory(self.home, self.ports, self.options, self._runtime, detached)
        started = before.servers if before else {}
        self.zookeeper = self._server(self._factory.zookeeper(), started)
        self.bookie = self._server(self._factory.bookie(), started)
        self.broker = self._server(self._factory.broker(self._broker_is_ready), started)

    @classmethod
    def attach(cls, home: Path, *, progress: Progress = lambda _line: None) -> DevCluster:
        """Return the cluster that an earlier process made in this home; raise NotFoundError if there is none."""
        if read_state(home) is None:
            raise NotFoundError(f"{home} holds no development cluster: start one with `bookwarden dev up`")
        return cls(home, detached=True, progress=progress)

    @property
    def servers(self) -> tuple[ServerProcess, ServerProcess, ServerProcess]:
        """The servers, in the order in which they start."""
        return self.zookeeper, self.bookie, self.broker

    @property
    def service_url(self) -> str:
        """Where Pulsar clients connect."""
        return f"{'pulsar+ssl' if self._secured else 'pulsar'}://{LOOPBACK}:{self.ports.broker}"

    @property
    def admin_url(self) -> str:
        """Where the admin REST answers."""
        return f"{'https' if self._secured else 'http'}://{LOOPBACK}:{self.ports.web}"

    @property
    def store_url(self) -> str:
        """The metadata store, as Pulsar writes it."""
        return f"zk:{LOOPBACK}:{self.ports.zookeeper}"

    @property
    def zookeeper_digest(self) -> str | None:
        """The digest credentials ("user:password") of bookwarden's ZooKeeper client, if ZooKeeper knows its users."""
        if not self.options.zookeeper_digest:
            return None
        return zookeeper_credentials(self._factory.credentials_folder).digest

    def connection(self, *, superuser: bool = True) -> PulsarConnection:
        """Return how to reach the broker: as the superuser, or, where there is auth, as a role without rights."""
        if not self._secured:
            return PulsarConnection(self.service_url, self.admin_url)
        credentials = broker_credentials(self._factory.credentials_folder)
        trusted = str(credentials.certificate)
        if self.options.auth == "tls":
            files = credentials.superuser_certificate if superuser else credentials.ordinary_certificate
            return PulsarConnection(
                self.service_url,
                self.admin_url,
                auth="tls",
                tls_certificate_file=str(files.certificate),
                tls_private_key_file=str(files.private_key),
                tls_trust_certs_file=trusted,
            )
        token = credentials.superuser_token if superuser else credentials.ordinary_token
        return PulsarConnection(
            self.service_url, self.admin_url, auth="token", token_file=str(token), tls_trust_certs_file=trusted
        )

    def protect_metadata(self, *trees: str) -> None:
        """Shut clients without credentials out of ZooKeeper trees, by default those of ledgers and topics.

        Pulsar creates its nodes open to all, inside a protected tree too: what was created since the last call
        is readable by all, and still only removable with credentials where its parent was protected.
        """
        if self.zookeeper_digest is None:
            raise ConfigError("a cluster protects its metadata only with ClusterOptions(zookeeper_digest=True)")
        readiness.protect(self.ports.zookeeper, self.zookeeper_digest, trees or _PROTECTED_TREES)

    def up(self) -> None:
        """Start all servers and wait until they serve; on failure kill those that were started, and raise."""
        running = [server.name for server in self.servers if server.is_running()]
        if running:
            raise ServerError(f"{', '.join(running)} of {self.home} already runs: `bookwarden dev down` stops it")
        begin = time.monotonic()
        self.home.mkdir(parents=True, exist_ok=True)
        try:
            self._start_servers()
        except BaseException:
            # A broker without its bookie would take its whole shutdown time.
            self.kill()
            raise
        lasted = f"Pulsar {self.options.pulsar} is up after {time.monotonic() - begin:.1f} s"
        self._progress(f"{lasted}: {self.service_url} {self.admin_url}")

    def down(self) -> None:
        """Stop whatever runs, the broker first; nothing if nothing runs."""
        for server in reversed(self.servers):
            if server.is_running():
                self._progress(f"stopping {server.name}")
            server.stop()

    def kill(self) -> None:
        """Kill all servers at once, without giving them time to write anything."""
        for server in reversed(self.servers):
            server.kill()

    def status(self) -> list[ServerStatus]:
        """Say of each server whether it runs and serves."""
        addresses = (self.store_url, f"{LOOPBACK}:{self.ports.bookie}", f"{self.service_url} {self.admin_url}")
        return [
            ServerStatus(
                name=server.name,
                pid=server.pid if server.is_running() else None,
                ready=server.is_ready(),
                address=address,
                log_file=server.spec.log_file,
            )
            for server, address in zip(self.servers, addresses, strict=True)
        ]

    def __enter__(self) -> DevCluster:
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def _start_servers(self) -> None:
        self._progress(f"starting zookeeper on {self.store_url}")
        # A ZooKeeper that still starts may accept a connection and never answer on it.
        self.zookeeper.start()
        patient = PatientStart(self.zookeeper.is_running, self._progress)
        if not self._initialised:
            self._initialise(patient)
        self._progress("starting bookie and broker")
        self.bookie.start(wait=False)
        self.broker.start(wait=False)
        patient.wait_until_ready(self.bookie)
        patient.wait_until_ready(self.broker)

    def _initialise(self, patient: PatientStart) -> None:
        # What exists already it leaves as it is.
        spec = self._factory.metadata_setup(self.service_url, self.admin_url)
        patient.run(ServerProcess(spec), _SETUP_SECONDS)
        self._initialised = True
        self._write_state()

    @property
    def _secured(self) -> bool:
        return self.options.auth != "none"

    def _broker_is_ready(self) -> bool:
        connection = self.connection()
        headers = {"Authorization": f"Bearer {connection.current_token()}"} if connection.auth == "token" else {}
        with urllib3.PoolManager(
            ca_certs=connection.tls_trust_certs_file,
            cert_file=connection.tls_certificate_file,
            key_file=connection.tls_private_key_file,
        ) as http:
            return readiness.broker_is_ready(http, self.admin_url, headers)

    def _server(self, spec: ServerSpec, started: Mapping[str, StartedServer]) -> ServerProcess:
        before = started.get(spec.name)
        if before is None:
            return ServerProcess(spec, on_start=self._write_state)
        return ServerProcess(spec, before.identity, before.started_at, self._write_state)

    def _write_state(self) -> None:
        started = {
            server.name: StartedServer(server.identity, server.started_at)
            for server in self.servers
            if server.identity is not None
        }
        write_state(self.home, ClusterState(self.ports, self.options, self._initialised, started))

    def _runtime(self) -> Runtime:
        return _runtime(self.options.pulsar, self._progress)


@functools.cache
def _runtime(version: str, progress: Progress) -> Runtime:
    return load_runtime(version, progress)
