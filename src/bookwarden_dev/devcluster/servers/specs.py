"""The servers of a development cluster as process specs: settings file, main class, heap, readiness, registration."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import kazoo.exceptions
from kazoo.handlers.threading import KazooTimeoutError

from bookwarden.errors import ServerError
from bookwarden.java import Java, find_java
from bookwarden_dev.devcluster.credentials import broker_credentials, zookeeper_credentials
from bookwarden_dev.devcluster.ports import LOOPBACK
from bookwarden_dev.devcluster.processes.process import ServerSpec, temporary_folder
from bookwarden_dev.devcluster.releases.cache import Progress
from bookwarden_dev.devcluster.releases.distribution import ensure_distribution, ensure_servers
from bookwarden_dev.devcluster.releases.versions import OFFLOADERS
from bookwarden_dev.devcluster.servers import readiness, settings
from bookwarden_dev.devcluster.servers.java import java_command
from bookwarden_dev.devcluster.servers.oxia import OxiaClient, OxiaPorts, ensure_oxia, oxia_address, oxia_spec
from bookwarden_dev.devcluster.servers.readiness import listens, zookeeper_client, zookeeper_serves
from bookwarden_dev.devcluster.servers.settings import (
    PULSAR_VERSIONS,
    PULSARS_LEDGERS_ROOT,
    ClusterOptions,
    ClusterPorts,
)

# Heap and direct memory in MB. Small, because tests run next to Spark.
_ZOOKEEPER_MEMORY = (256, 64)
_BOOKIE_MEMORY = (384, 256)
_BROKER_MEMORY = (512, 256)
_THROUGHPUT_MEMORY = (1024, 512)
# ZooKeeper keeps all its nodes in memory; a benchmark has up to a million.
_THROUGHPUT_ZOOKEEPER_MEMORY = (2048, 64)
_TIMER_SLACK_MS = 10


class BookieRegistration(Protocol):
    """The registration of one bookie."""

    def is_there(self, started_at: float) -> bool:
        """Return whether the bookie started at that time (seconds since the epoch) is registered.

        It listens before it registers. The registration of a bookie that was killed is older.
        """

    def remove(self) -> None:
        """Remove the registration of a bookie that no longer runs; raise ServerError if the store refuses.

        A bookie that was killed stays registered until its session ends, and one that starts meanwhile finds the
        place taken: it logs that it shuts down, and stays, deaf (PulsarRegistrationManager, LockBusyException).
        """


@dataclass(frozen=True, slots=True)
class ZooKeeperRegistration:
    """Registration of a bookie with metadata in ZooKeeper; ``digest`` has the credentials, if it needs any."""

    zookeeper_port: int
    bookie_port: int
    digest: str | None = None
    ledgers_root: str = PULSARS_LEDGERS_ROOT

    def is_there(self, started_at: float) -> bool:
        """Return whether the bookie that was started then is registered, and takes connections."""
        # A session costs more than a connection, and there is one for each question.
        if not (listens(self.bookie_port) and zookeeper_serves(self.zookeeper_port)):
            return False
        try:
            with zookeeper_client(self.zookeeper_port) as client:
                stat = client.exists(_path(self.bookie_port, self.ledgers_root))
        except (kazoo.exceptions.KazooException, KazooTimeoutError):
            return False
        return stat is not None and stat.ctime / 1000 >= started_at

    def remove(self) -> None:
        """Remove what an earlier bookie left."""
        try:
            with (
                zookeeper_client(self.zookeeper_port, self.digest) as client,
                contextlib.suppress(kazoo.exceptions.NoNodeError),
            ):
                client.delete(_path(self.bookie_port, self.ledgers_root))
        except (kazoo.exceptions.KazooException, KazooTimeoutError) as error:
            raise ServerError(
                f"the bookie cannot start without ZooKeeper: start zookeeper first ({error!r})"
            ) from error


@dataclass(frozen=True, slots=True)
class OxiaRegistration:
    """Registration of a bookie with metadata in Oxia; any earlier one is removed before the bookie starts."""

    client: OxiaClient
    bookie_port: int

    def is_there(self, started_at: float) -> bool:
        """Return whether the bookie is registered; any registration was removed before it was started."""
        # Each question to Oxia is a process of its own.
        if not listens(self.bookie_port):
            return False
        try:
            return self.client.exists(_path(self.bookie_port))
        except ServerError:
            return False

    def remove(self) -> None:
        """Remove what an earlier bookie left."""
        self.client.delete(_path(self.bookie_port))


def _path(bookie_port: int, ledgers_root: str = PULSARS_LEDGERS_ROOT) -> str:
    return f"{ledgers_root}/available/{LOOPBACK}:{bookie_port}"


@dataclass(frozen=True, slots=True)
class Runtime:
    """A Java, and the folder of a release of Pulsar with its jars in ``lib``."""

    java: Java
    release: Path

    def command(self, main_class: str, arguments: Sequence[str], **options: Any) -> list[str]:
        """Return the command that runs a main class of the release; ``options`` are those of `java_command`."""
        return java_command(self.java, self.release, main_class, arguments, **options)

    def released_settings(self, name: str) -> dict[str, str]:
        """Read a settings file of the release; a release without any leaves all settings to the servers' defaults."""
        folder = self.release / "conf"
        return settings.read_settings(folder / name) if folder.is_dir() else {}


def load_runtime(version: str = PULSAR_VERSIONS[0], progress: Progress = lambda _line: None) -> Runtime:
    """Find Java and get the release; raise ServerError, with what to install, if that fails."""
    return Runtime(find_java(), ensure_servers(version, progress))


@dataclass(frozen=True, slots=True)
class ServerFactory:
    """Builds the specs of one cluster's servers."""

    home: Path  #: Folder of its settings, data and logs.
    ports: ClusterPorts  #: Chosen once, for the life of its home.
    options: ClusterOptions  #: Of the cluster.
    runtime: Callable[[], Runtime]  #: Called only when a server starts.
    detached: bool = False  #: The servers outlive this process.
    oxia_program: Callable[[], Path] = ensure_oxia  #: Builds or finds `oxia`; called only when Oxia starts.
    credentials: Path | None = None  #: The folder of credentials that several homes share; None for one of its own.

    def zookeeper(self) -> ServerSpec:
        """Return the spec of the ZooKeeper."""

        def command() -> Sequence[str]:
            data = self._folder("zookeeper")
            general = settings.zookeeper_settings(self.ports.zookeeper, data, synced=self.options.throughput)
            path = self._write("zookeeper", {**general, **self._tls()})
            # An empty data folder is a new cluster, not a lost snapshot.
            properties = [("zookeeper.snapshot.trust.empty", "true")]
            if self.options.zookeeper_digest:
                sasl = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
                login = zookeeper_credentials(self.credentials_folder).server_login
                properties += [("zookeeper.authProvider.1", sasl), *_login_by(login)]
            main = "org.apache.zookeeper.server.ZooKeeperServerMain"
            memory = _THROUGHPUT_ZOOKEEPER_MEMORY if self.options.throughput else _ZOOKEEPER_MEMORY
            return self._java("zookeeper", main, [str(path)], memory, properties)

        return self._spec("zookeeper", command, lambda _start: readiness.zookeeper_serves(self.ports.zookeeper))

    def oxia(self) -> ServerSpec:
        """Return the spec of the Oxia server."""
        ports = OxiaPorts(self.ports.oxia, self.ports.oxia_metrics)
        other = self.options.oxia_program
        program = (lambda: Path(other)) if other else self.oxia_program
        return oxia_spec(self.home, ports, program, shards=self.options.oxia_shards, detached=self.detached)

    def bookie(self) -> ServerSpec:
        """Return the spec of the bookie."""

        def command() -> Sequence[str]:
            self._registration().remove()
            path = self._write_bookie_settings("bookie")
            main = "org.apache.bookkeeper.server.Main"
            return self._java("bookie", main, ["--conf", str(path)], self._memory(_BOOKIE_MEMORY), self._login())

        return self._spec("bookie", command, lambda started_at: self._registration().is_there(started_at))

    def broker(self, is_ready: Callable[[], bool]) -> ServerSpec:
        """Return the spec of the broker."""

        def command() -> Sequence[str]:
            released = self.runtime().released_settings("broker.conf")
            general = settings.broker_settings(released, self.ports, self.options)
            access = self._access() if self.options.auth != "none" else {}
            offload = self._offload() if self.options.offload else {}
            path = self._write("broker", {**general, **access, **offload, **self.options.broker_settings})
            main = "org.apache.pulsar.PulsarBrokerStarter"
            arguments = ["--broker-conf", str(path)]
            properties = [*self._login(), *self.options.broker_properties.items()]
            jars = [self.options.broker_jar] if self.options.broker_jar else []
            return self._java("broker", main, arguments, self._memory(_BROKER_MEMORY), properties, jars)

        spec = self._spec("broker", command, lambda _start: is_ready())
        # The timer of its own client ticks a thousand times a second, which costs an idle broker 2 % of a processor.
        slack = 0 if self.options.throughput else _TIMER_SLACK_MS
        return dataclasses.replace(spec, environment=self.options.broker_environment, timer_slack_ms=slack)

    def new_bookkeeper(self) -> ServerSpec:
        """Return the spec of the program that writes the first nodes of the bookie's cluster, then ends."""

        def command() -> Sequence[str]:
            path = self._write_bookie_settings("initnewcluster")
            arguments = ["-conf", str(path), "initnewcluster"]
            main = "org.apache.bookkeeper.bookie.BookieShell"
            return self._java("initnewcluster", main, arguments, _ZOOKEEPER_MEMORY, self._login())

        return dataclasses.replace(self._spec("initnewcluster", command, lambda _start: False), detached=False)

    def metadata_setup(self, broker_url: str, web_url: str) -> ServerSpec:
        """Return the spec of the program that writes the cluster's first metadata, then ends."""

        def command() -> Sequence[str]:
            store = settings.store_url(self.ports, self.options)
            arguments = ["--cluster", self.options.cluster_name]
            arguments += ["--metadata-store", store, "--configuration-metadata-store", store]
            arguments += ["--web-service-url", web_url, "--broker-service-url", broker_url]
            if self.options.auth != "none":
                arguments += ["--web-service-url-tls", web_url, "--broker-service-url-tls", broker_url]
            main = "org.apache.pulsar.PulsarClusterMetadataSetup"
            return self._java("metadata-setup", main, arguments, _ZOOKEEPER_MEMORY, self._login())

        return dataclasses.replace(self._spec("metadata-setup", command, lambda _start: False), detached=False)

    @property
    def credentials_folder(self) -> Path:
        """The folder of the cluster's credentials."""
        return self.credentials or self.home / "credentials"

    def _write_bookie_settings(self, name: str) -> Path:
        released = self.runtime().released_settings("bookkeeper.conf")
        return self._write(name, settings.bookie_settings(released, self.ports, self._folder("bookie"), self.options))

    def _access(self) -> dict[str, str]:
        return settings.access_settings(self.ports, broker_credentials(self.credentials_folder), self.options.auth)

    def _offload(self) -> dict[str, str]:
        # A namespace with an offload policy of its own looks in ./offloaders, whatever the broker's settings say.
        unpacked, folder = ensure_distribution(OFFLOADERS[self.options.pulsar]), self.home / "offloaders"
        if not folder.is_symlink():
            folder.symlink_to(unpacked / "offloaders")
        return settings.offload_settings(folder, self._folder("nar"))

    def _registration(self) -> BookieRegistration:
        if self.options.metadata == "oxia":
            client = OxiaClient(self.oxia_program(), oxia_address(self.ports.oxia))
            return OxiaRegistration(client, self.ports.bookie)
        return ZooKeeperRegistration(self.ports.zookeeper, self.ports.bookie, self._digest(), self.options.ledgers_root)

    def _digest(self) -> str | None:
        return zookeeper_credentials(self.credentials_folder).digest if self.options.zookeeper_digest else None

    def _tls(self) -> dict[str, str]:
        """Return the ZooKeeper's own settings for TLS, where it has any."""
        if not self.ports.zookeeper_tls:
            return {}
        credentials = broker_credentials(self.credentials_folder)
        return settings.zookeeper_tls_settings(self.ports.zookeeper_tls, credentials.key_store)

    def _login(self) -> list[tuple[str, str]]:
        """Return the Java properties of ZooKeeper's clients: who they are, and whom they trust."""
        properties: list[tuple[str, str]] = []
        if self.options.zookeeper_digest:
            properties += _login_by(zookeeper_credentials(self.credentials_folder).client_login)
        if self.ports.zookeeper_tls:
            authority = broker_credentials(self.credentials_folder).certificate
            properties += settings.zookeeper_tls_properties(authority).items()
        return properties

    def _memory(self, small: tuple[int, int]) -> tuple[int, int]:
        return _THROUGHPUT_MEMORY if self.options.throughput else small

    def _java(
        self,
        name: str,
        main_class: str,
        arguments: Sequence[str],
        memory: tuple[int, int],
        properties: Sequence[tuple[str, str]] = (),
        jars: Sequence[str] = (),
    ) -> list[str]:
        # Java knows no TMPDIR; the native libraries of RocksDB, netty and the compressors are unpacked here.
        temporary = ("java.io.tmpdir", str(temporary_folder(self.home, name)))
        return self.runtime().command(
            main_class,
            arguments,
            heap_mb=memory[0],
            direct_mb=memory[1],
            properties=[*properties, temporary, ("bookwarden.log.level", self.options.log_level)],
            full_compiler=self.options.throughput,
            jars=jars,
        )

    def _spec(self, name: str, command: Callable[[], Sequence[str]], is_ready: Callable[[float], bool]) -> ServerSpec:
        return ServerSpec(
            name=name,
            command=command,
            log_file=self.home / "logs" / f"{name}.log",
            is_ready=is_ready,
            working_folder=self.home,
            detached=self.detached,
        )

    def _folder(self, name: str) -> Path:
        folder = self.home / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _write(self, name: str, values: Mapping[str, str]) -> Path:
        path = self.home / "conf" / f"{name}.conf"
        settings.write_settings(path, values)
        return path


def _login_by(passwords: Path) -> list[tuple[str, str]]:
    # DIGEST-MD5, the one SASL mechanism that needs no Kerberos, is off in FIPS mode, ZooKeeper's default.
    return [("java.security.auth.login.config", str(passwords)), ("zookeeper.fips-mode", "false")]
