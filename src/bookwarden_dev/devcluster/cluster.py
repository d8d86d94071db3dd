"""A real Pulsar on this machine: one metadata store, one bookie and one broker, each a process of its own."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.errors import ConfigError, NotFoundError, ServerError
from bookwarden_dev.devcluster import access
from bookwarden_dev.devcluster.credentials import zookeeper_credentials
from bookwarden_dev.devcluster.processes.process import ServerProcess, ServerSpec
from bookwarden_dev.devcluster.releases.cache import Progress
from bookwarden_dev.devcluster.servers import readiness, settings
from bookwarden_dev.devcluster.servers.oxia import ensure_oxia, oxia_url
from bookwarden_dev.devcluster.servers.readiness import PatientServer, PatientStart
from bookwarden_dev.devcluster.servers.settings import ClusterOptions
from bookwarden_dev.devcluster.servers.specs import Runtime, ServerFactory, load_runtime
from bookwarden_dev.devcluster.state import (
    ClusterState,
    ServerStatus,
    StartedServer,
    addresses,
    choose_ports,
    read_state,
    status_of,
    write_state,
)

_SETUP_SECONDS = 180.0
_PROTECTED_TREES = ("/ledgers", "/managed-ledgers", "/schemas")


class DevCluster:
    """A cluster that lives in a home folder; ports, options, data and credentials stay there between starts.

    Its servers end with this process, however it ends, unless ``detached``. Used as a context manager it is up
    inside the block. ``zookeeper``, ``oxia``, ``bookie`` and ``broker``, as far as it has them, can be stopped, killed
    and started one by one.
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
        """Make a handle on the cluster of this home, present or new; a new one takes none of the ports to ``avoid``."""
        self.home = home.absolute()
        self._progress = progress
        before = read_state(self.home)
        self.options = options or (before.options if before else ClusterOptions())
        self.ports = choose_ports(before, self.options, avoid)
        self._initialised = before.initialised if before else False
        program = functools.partial(ensure_oxia, progress=progress)
        self._factory = ServerFactory(self.home, self.ports, self.options, self._runtime, detached, program)
        self._servers = self._make_servers(before.servers if before else {})

    @classmethod
    def attach(cls, home: Path, *, progress: Progress = lambda _line: None) -> DevCluster:
        """Return the cluster that an earlier process made in this home; raise NotFoundError if there is none."""
        if read_state(home) is None:
            raise NotFoundError(f"{home} holds no development cluster: start one with `bookwarden dev up`")
        return cls(home, detached=True, progress=progress)

    @property
    def servers(self) -> tuple[ServerProcess, ...]:
        """The servers, in the order in which they start."""
        return tuple(self._servers.values())

    @property
    def extra(self) -> tuple[ServerProcess, ...]:
        """The servers that the others do not need."""
        return tuple(self._servers[name] for name in self.options.stores if name != self.options.metadata)

    @property
    def zookeeper(self) -> ServerProcess:
        """Its ZooKeeper; raise ConfigError if its metadata is elsewhere."""
        return self._of_its_servers("zookeeper")

    @property
    def oxia(self) -> ServerProcess:
        """Its Oxia server; raise ConfigError if it has none."""
        return self._of_its_servers("oxia")

    @property
    def bookie(self) -> ServerProcess:
        """Its bookie."""
        return self._servers["bookie"]

    @property
    def broker(self) -> ServerProcess:
        """Its broker."""
        return self._servers["broker"]

    @property
    def store(self) -> ServerProcess:
        """The server that keeps its metadata."""
        return self._servers[self.options.metadata]

    @property
    def service_url(self) -> str:
        """The URL for Pulsar clients."""
        return access.service_url(self.ports, self.options.auth)

    @property
    def admin_url(self) -> str:
        """The URL of the admin REST."""
        return access.admin_url(self.ports, self.options.auth)

    @property
    def store_url(self) -> str:
        """The metadata store, as Pulsar writes it."""
        return settings.store_url(self.ports, self.options)

    @property
    def oxia_url(self) -> str:
        """The namespace of its Oxia server, as Pulsar writes it; raise ConfigError if it has none."""
        self._of_its_servers("oxia")
        return oxia_url(self.ports.oxia)

    @property
    def zookeeper_digest(self) -> str | None:
        """The digest credentials ("user:password") of bookwarden's ZooKeeper client, if ZooKeeper knows its users."""
        if not self.options.zookeeper_digest:
            return None
        return zookeeper_credentials(self._factory.credentials_folder).digest

    def connection(self, *, superuser: bool = True) -> PulsarConnection:
        """Return the connection to the broker: as the superuser, or, where there is auth, as a role without rights."""
        folder = self._factory.credentials_folder
        return access.broker_connection(self.ports, self.options.auth, folder, superuser=superuser)

    def protect_metadata(self, *trees: str) -> None:
        """Shut clients without credentials out of ZooKeeper trees, by default those of ledgers and topics.

        Pulsar creates its nodes open to all, inside a protected tree too: nodes created since the last call can be
        read by all, but removed only with credentials where their parent was protected.
        """
        if self.zookeeper_digest is None:
            raise ConfigError("a cluster protects its metadata only with ClusterOptions(zookeeper_digest=True)")
        readiness.protect(self.ports.zookeeper, self.zookeeper_digest, trees or _PROTECTED_TREES)

    def up(self) -> None:
        """Start all servers and wait until they serve; on failure kill the started ones, and raise."""
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
        """Stop the running servers, the broker first; does nothing if none runs."""
        for server in reversed(self.servers):
            if server.is_running():
                self._progress(f"stopping {server.name}")
            server.stop()

    def kill(self) -> None:
        """Kill all servers at once, without giving them time to write anything."""
        for server in reversed(self.servers):
            server.kill()

    def status(self) -> list[ServerStatus]:
        """Return for each server whether it runs and serves."""
        by_name = addresses(self.ports, self.options.auth)
        return [status_of(server, by_name[server.name]) for server in self.servers]

    def __enter__(self) -> DevCluster:
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def _start_servers(self) -> None:
        # Progress shows what has to be fetched first.
        self._runtime()
        for name in self.options.stores:
            self._progress(f"starting {name} on {addresses(self.ports, self.options.auth)[name]}")
            # A ZooKeeper that still starts may accept a connection and never answer on it.
            self._servers[name].start()
        patient = PatientStart(self.store.is_running, self._progress)
        if not self._initialised:
            self._initialise(patient)
        self._progress("starting bookie and broker")
        self.bookie.start(wait=False)
        self.broker.start(wait=False)
        patient.wait_until_ready(self.bookie)
        patient.wait_until_ready(self.broker)

    def _initialise(self, patient: PatientStart) -> None:
        # It leaves existing nodes as they are.
        spec = self._factory.metadata_setup(self.service_url, self.admin_url)
        patient.run(ServerProcess(spec), _SETUP_SECONDS)
        self._initialised = True
        self._write_state()

    def _of_its_servers(self, name: str) -> ServerProcess:
        if name not in self._servers:
            raise ConfigError(f"this development cluster has no {name}, only {', '.join(self._servers)}")
        return self._servers[name]

    def _make_servers(self, started: Mapping[str, StartedServer]) -> dict[str, ServerProcess]:
        made: dict[str, Callable[[], ServerSpec]] = {
            "zookeeper": self._factory.zookeeper,
            "oxia": self._factory.oxia,
            "bookie": self._factory.bookie,
            "broker": lambda: self._factory.broker(lambda: access.broker_is_ready(self.connection())),
        }
        return {name: self._server(made[name](), started) for name in self.options.servers}

    def _server(self, spec: ServerSpec, started: Mapping[str, StartedServer]) -> ServerProcess:
        before = started.get(spec.name)
        identity, started_at = (None, 0.0) if before is None else (before.identity, before.started_at)
        if spec.name not in ("bookie", "broker"):
            return ServerProcess(spec, identity, started_at, self._write_state)
        patient = PatientStart(lambda: self.store.is_running(), self._progress)
        return PatientServer(patient, spec, identity, started_at, self._write_state)

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
