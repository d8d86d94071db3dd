"""Get a Pulsar that has no published distribution: its jars, as Maven resolves them, once, into the cache folder."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bookwarden.errors import ServerError
from bookwarden_dev.devcluster.releases.cache import Progress, ensure_entry
from bookwarden_dev.devcluster.releases.maven import run_dependency_goal

# In the form of sha256sum: `sha256sum -c SHA256SUMS` in the folder of the jars checks them.
LIST_NAME = "SHA256SUMS"


@dataclass(frozen=True, slots=True)
class ResolvedRelease:
    """A release by its jars: the project file that names them, and the SHA-256 of the list of their SHA-256.

    The list is that of Linux with Java 11 or newer; ``size`` (bytes) is that of all jars.
    """

    version: str
    project: Path
    sha256: str
    size: int

    @property
    def artifact(self) -> str:
        """The Maven coordinates of the artifact that needs all the jars."""
        return f"org.apache.pulsar:pulsar-broker:{self.version}"

    @property
    def folder_name(self) -> str:
        """The name of its folder in the cache."""
        return f"pulsar-broker-{self.version}"


PULSAR_4_2_4 = ResolvedRelease(
    version="4.2.4",
    project=Path(__file__).with_name("pulsar-4.2.4.xml"),
    sha256="8e7c6b95ed226d33c4bcc5dd173e1a930b7f7e62c821dcc023e180f9685cd57f",
    size=252_965_642,
)


def ensure_jars(
    release: ResolvedRelease = PULSAR_4_2_4,
    cache: Path | None = None,
    progress: Progress = lambda _line: None,
    fetch: Callable[[ResolvedRelease, Path, Progress], None] | None = None,
) -> Path:
    """Return the folder whose folder ``lib`` has the release's jars, and the list of their digests.

    They are fetched first if the cache lacks them; safe in several processes at once. Raises ServerError if Maven is
    missing or fails, or if the jars are not the pinned ones.
    """

    def make(temporary: Path) -> Path:
        (fetch or fetch_jars_with_maven)(release, temporary, progress)
        _check(temporary / "lib", release)
        folder = temporary / release.folder_name
        folder.mkdir()
        (temporary / "lib").rename(folder / "lib")
        return folder

    return ensure_entry(release.folder_name, make, cache, progress)


def fetch_jars_with_maven(release: ResolvedRelease, folder: Path, progress: Progress) -> None:
    """Copy all jars into the folder's ``lib`` through Maven (and its own cache); raise ServerError if that fails."""
    # Kept under another name elsewhere: Maven takes a project's folder for a place to write to.
    shutil.copyfile(release.project, folder / "pom.xml")
    label = f"fetching the jars of Pulsar {release.version} ({release.size / 1e6:.0f} MB)"
    arguments = [f"-DoutputDirectory={folder / 'lib'}", "-DincludeScope=runtime"]
    run_dependency_goal("copy-dependencies", arguments, folder, progress, artifact=release.artifact, label=label)


def list_digests(folder: Path) -> str:
    """Return a line for each jar, by name: its SHA-256 and its name."""
    lines = []
    for jar in sorted(folder.glob("*.jar")):
        digest = hashlib.sha256()
        with jar.open("rb") as content:
            while block := content.read(1 << 20):
                digest.update(block)
        lines.append(f"{digest.hexdigest()}  {jar.name}\n")
    return "".join(lines)


def _check(folder: Path, release: ResolvedRelease) -> None:
    listed = list_digests(folder)
    (folder / LIST_NAME).write_text(listed, encoding="utf-8")
    found = hashlib.sha256(listed.encode()).hexdigest()
    if found != release.sha256:
        raise ServerError(
            f"the {len(listed.splitlines())} jars of Pulsar {release.version} have as the SHA-256 of their list "
            f"{found[:16]}..., expected {release.sha256[:16]}...: remove org/apache/pulsar and what else is damaged "
            "from Maven's repository (~/.m2) and try again; on other systems than Linux use Pulsar 4.0.8"
        )
