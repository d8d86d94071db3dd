"""An Oxia server: built once from its Go module into the cache folder, run as `oxia standalone`; and its client."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import urllib3

from bookwarden.errors import ConfigError, ServerError
from bookwarden_dev.devcluster.ports import LOOPBACK, free_ports
from bookwarden_dev.devcluster.processes.process import ServerProcess, ServerSpec
from bookwarden_dev.devcluster.releases.cache import Progress, ensure_entry
from bookwarden_dev.devcluster.releases.program import Go, find_go
from bookwarden_dev.devcluster.releases.versions import OXIA_0_14_0, GoRelease, GoVersion

# The only namespace of a standalone server.
NAMESPACE = "default"
_PROBE_SECONDS = 2.0
_REQUEST_SECONDS = 5
_END_SECONDS = 30.0
_ABSENT = "key not found"


def ensure_oxia(
    release: GoRelease = OXIA_0_14_0,
    cache: Path | None = None,
    progress: Progress = lambda _line: None,
    find: Callable[[GoVersion], Go] = find_go,
) -> Path:
    """Return the path of the program `oxia`, built first if the cache lacks it.

    Safe in several processes at once: one builds, the others wait. The program appears whole or not at all. Raises
    ServerError if Go is missing or too old, or fails, also because a module is not the pinned one.
    """

    def make(temporary: Path) -> Path:
        # Kept under other names elsewhere: Go takes a folder with a go.mod for a module.
        shutil.copyfile(release.modules, temporary / "go.mod")
        shutil.copyfile(release.checksums, temporary / "go.sum")
        folder = temporary / release.folder_name
        folder.mkdir()
        label = f"building {release.name.capitalize()} {release.version}"
        find(release.oldest_go).build(release.package, temporary, folder / release.name, progress, label=label)
        return folder

    return ensure_entry(release.folder_name, make, cache, progress) / release.name


@dataclass(frozen=True, slots=True)
class OxiaPorts:
    """The TCP ports of an Oxia server, both on 127.0.0.1."""

    public: int
    metrics: int


def oxia_spec(
    home: Path, ports: OxiaPorts, program: Callable[[], Path], *, shards: int = 1, detached: bool = False
) -> ServerSpec:
    """Return the spec of a standalone server whose data, log of writes and own log lie in a home.

    ``program`` is asked only when it starts. Data that was written with one number of shards is not found with another.
    """

    def command() -> Sequence[str]:
        data = home / "oxia"
        data.mkdir(parents=True, exist_ok=True)
        arguments = ["standalone", f"--shards={shards}", f"--data-dir={data / 'db'}", f"--wal-dir={data / 'wal'}"]
        arguments += [f"--public-addr={LOOPBACK}:{ports.public}", f"--metrics-addr={LOOPBACK}:{ports.metrics}"]
        return [str(program()), *arguments]

    return ServerSpec(
        name="oxia",
        command=command,
        log_file=home / "logs" / "oxia.log",
        is_ready=lambda _start: _serves(ports.metrics),
        working_folder=home,
        environment={"NO_COLOR": "1"},
        detached=detached,
    )


class OxiaServer(ServerProcess):
    """One Oxia server of its own on free ports; its data outlives `kill`, `stop` and `start`.

    It ends with this process, however that ends.
    """

    def __init__(self, home: Path, *, shards: int = 1, progress: Progress = lambda _line: None) -> None:
        if shards < 1:
            raise ConfigError(f"an Oxia server has at least one shard, not {shards}")
        self.ports = OxiaPorts(*free_ports(2))
        self.shards = shards
        super().__init__(oxia_spec(home, self.ports, partial(ensure_oxia, progress=progress), shards=shards))

    @property
    def address(self) -> str:
        """Its address for clients, as "host:port"."""
        return oxia_address(self.ports.public)

    @property
    def url(self) -> str:
        """Its namespace, as Pulsar writes the URL of a metadata store."""
        return oxia_url(self.ports.public)


def oxia_address(port: int) -> str:
    """Return where clients of the server with this public port connect, as "host:port"."""
    return f"{LOOPBACK}:{port}"


def oxia_url(port: int) -> str:
    """Return the URL of its namespace, as Pulsar writes that of a metadata store."""
    return f"oxia://{oxia_address(port)}/{NAMESPACE}"


def _serves(metrics_port: int) -> bool:
    # Metrics come last: all shards have their leader then, and the public service has begun.
    with urllib3.PoolManager(retries=False, timeout=_PROBE_SECONDS) as pool:
        try:
            return pool.request("HEAD", f"http://{LOOPBACK}:{metrics_port}/metrics").status == 200
        except urllib3.exceptions.HTTPError:
            return False


@dataclass(frozen=True, slots=True)
class OxiaClient:
    """Asks the Oxia server at an address ("host:port") by the program `oxia`; each request is a process of its own."""

    program: Path
    address: str

    def exists(self, key: str) -> bool:
        """Return whether there is a record of this key; raise ServerError if Oxia does not say."""
        return self._run("get", "--hex", key) is not None

    def delete(self, key: str) -> bool:
        """Delete a record of any version; return whether there was one; raise ServerError on failure."""
        return self._run("delete", key) is not None

    def keys(self, first: str, end: str) -> list[str]:
        """Return the keys from ``first`` to before ``end``, in Oxia's order of paths; raise ServerError on failure.

        In that order a key with fewer slashes comes first: from "/a/" to before "/a//" are the children of "/a" only.
        """
        # The shards answer one after the other.
        return sorted((self._run("list", "--key-min", first, "--key-max", end) or "").splitlines(), key=_by_depth)

    def _run(self, *arguments: str) -> str | None:
        """Return what a request prints, None if there is no such key."""
        command = [str(self.program), "client", f"--service-address={self.address}"]
        command += [f"--request-timeout={_REQUEST_SECONDS}s", *arguments]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_END_SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ServerError(f"Oxia at {self.address} cannot be asked ({error}): start it first") from error
        if ended.returncode == 0:
            return ended.stdout
        lines = ended.stderr.strip().splitlines() or ["nothing"]
        if _ABSENT in lines[-1]:
            return None
        raise ServerError(f"Oxia at {self.address} did not answer, and its client printed: {lines[-1]}")


def _by_depth(key: str) -> tuple[int, str]:
    return key.count("/"), key
