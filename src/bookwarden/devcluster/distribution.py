"""Get the released Pulsar: through Maven, once, into a cache folder that several processes may share."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bookwarden.errors import ServerError

Progress = Callable[[str], None]

_MAVEN_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
_TEMPORARY = ".unpacking-"
_SHOWN_EVERY_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Release:
    """A released distribution: its version and the SHA-512 and size (bytes) of its archive.

    ``folder`` is the one folder inside the archive, without the version. Of ``only``, if not empty, a file's name must
    have one in it to be unpacked. ``title`` is for people.
    """

    version: str
    sha512: str
    size: int
    distribution: str = "pulsar-server-distribution"
    folder: str = "apache-pulsar"
    only: tuple[str, ...] = ()
    title: str = "Pulsar"

    @property
    def artifact(self) -> str:
        """The Maven coordinates of the archive."""
        return f"org.apache.pulsar:{self.distribution}:{self.version}:tar.gz:bin"

    @property
    def archive_name(self) -> str:
        """The file name that Maven gives the archive."""
        return f"{self.distribution}-{self.version}-bin.tar.gz"

    @property
    def folder_name(self) -> str:
        """The one folder inside the archive."""
        return f"{self.folder}-{self.version}"

    def unpacks(self, name: str) -> bool:
        """Whether a file of the archive is unpacked."""
        return not self.only or any(part in name for part in self.only)


PULSAR_4_0_8 = Release(
    version="4.0.8",
    sha512=(
        "65b769b10696cdfebf7fc5bcdc95dd663702e27051e616c1a13cb100e91279525"
        "be35352171befe7b0011176330aab29bd0a6c8a0f2f0646641af46d2e33cbd6"
    ),
    size=245494718,
)

# Of its two offloaders the one for object stores: the other, for file systems, is four times as large.
OFFLOADERS_4_0_8 = Release(
    version="4.0.8",
    sha512=(
        "f0e98550b99271c02863eb91cb250b580524e198669ff14ec8341f2eadad886a"
        "bb54a0f593449350b2a60672e626bead6bd813179788bc7e938ff56a2b28e0a7"
    ),
    size=62028727,
    distribution="pulsar-offloader-distribution",
    folder="apache-pulsar-offloaders",
    only=("/tiered-storage-jcloud-",),
    title="Pulsar's offloaders",
)


def cache_folder() -> Path:
    """Return where downloads are kept: BOOKWARDEN_CACHE, else ~/.cache/bookwarden."""
    chosen = os.environ.get("BOOKWARDEN_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "bookwarden"


def ensure_distribution(
    release: Release = PULSAR_4_0_8,
    cache: Path | None = None,
    progress: Progress = lambda _line: None,
    fetch: Callable[[Release, Path, Progress], Path] | None = None,
) -> Path:
    """Return the unpacked distribution's folder, fetching it first if the cache lacks it.

    Safe in several processes at once: one fetches, the others wait. The folder appears whole or not at all.
    Raises ServerError if Maven is missing or fails, or if the archive is not the pinned one.
    """
    folder = cache or cache_folder()
    unpacked = folder / release.folder_name
    if unpacked.is_dir():
        return unpacked
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / ".lock", progress):
        if unpacked.is_dir():
            return unpacked
        # The lock is ours, so whatever is left here belongs to a process that was killed.
        for leftover in folder.glob(f"{_TEMPORARY}*"):
            shutil.rmtree(leftover)
        with tempfile.TemporaryDirectory(prefix=_TEMPORARY, dir=folder) as temporary:
            archive = (fetch or fetch_with_maven)(release, Path(temporary), progress)
            check_archive(archive, release)
            progress(f"unpacking {release.title} {release.version}")
            _unpack(archive, Path(temporary), release).rename(unpacked)
    return unpacked


def fetch_with_maven(release: Release, folder: Path, progress: Progress) -> Path:
    """Copy the archive into a folder through Maven (and its own cache); raise ServerError if that fails."""
    maven = shutil.which("mvn")
    if maven is None:
        raise ServerError("Pulsar is fetched through Maven, and there is no mvn on PATH: install it (package maven)")
    progress(f"fetching {release.title} {release.version} ({release.size / 1e6:.0f} MB) through Maven")
    guard = str(Path(__file__).with_name("guard.py"))
    command = [sys.executable, "-I", "-S", guard, "tied", str(os.getpid()), "-1", maven, "-q", "-B", _MAVEN_PLUGIN]
    command += [f"-Dartifact={release.artifact}", f"-DoutputDirectory={folder}", "-Dmdep.useBaseVersion=true"]
    log = folder / "maven.log"
    with log.open("wb") as output:
        code = _wait_for(command, output.fileno(), f"fetching {release.title} {release.version}", progress, folder)
    archive = folder / release.archive_name
    if code != 0 or not archive.is_file():
        raise ServerError(
            f"Maven could not fetch {release.artifact}: {_first_error(log)}; check the network, then retry"
        )
    return archive


def _wait_for(command: list[str], output: int, label: str, progress: Progress, folder: Path) -> int:
    started = time.monotonic()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=folder)
    try:
        while True:
            try:
                return process.wait(timeout=_SHOWN_EVERY_SECONDS)
            except subprocess.TimeoutExpired:
                progress(f"{label}: {time.monotonic() - started:.0f} s")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _first_error(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line for line in lines if line.startswith("[ERROR]")] or lines or ["it printed nothing"]
    return errors[0].removeprefix("[ERROR]").strip()


def check_archive(archive: Path, release: Release) -> None:
    """Raise ServerError unless the file is the pinned archive."""
    digest = hashlib.sha512()
    with archive.open("rb") as content:
        while block := content.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != release.sha512:
        raise ServerError(
            f"the archive of {release.title} {release.version} has SHA-512 {digest.hexdigest()[:16]}..., expected "
            f"{release.sha512[:16]}...: remove it from Maven's repository (~/.m2) and try again"
        )


def _unpack(archive: Path, folder: Path, release: Release) -> Path:
    # Python 3.10 and 3.11 have the filter only in their later patch releases; the archive is the pinned one anyway.
    options = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    try:
        with tarfile.open(archive, "r:gz") as content:
            chosen = [member for member in content if release.unpacks(member.name)]
            content.extractall(folder, chosen, **options)  # type: ignore[arg-type]  # the stubs know only the literal
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise ServerError(
            f"{release.title} {release.version} could not be unpacked into {folder.parent}: {error}"
        ) from error
    return folder / release.folder_name


@contextlib.contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    with path.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another process that fetches Pulsar")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
