"""Get the released Pulsar: through Maven, once, into a cache folder that several processes may share.

One that has no published distribution comes as its jars, as Maven resolves them.
"""

from __future__ import annotations

import hashlib
import tarfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from bookwarden.errors import ServerError
from bookwarden_dev.devcluster.releases.cache import Progress, ensure_entry
from bookwarden_dev.devcluster.releases.program import failure, run_dependency_goal
from bookwarden_dev.devcluster.releases.versions import (
    PULSAR,
    PULSAR_4_0_8,
    PULSAR_4_2_4,
    Release,
    ResolvedRelease,
)

# In the form of sha256sum: `sha256sum -c SHA256SUMS` in the folder of the jars checks them.
LIST_NAME = "SHA256SUMS"


def ensure_servers(version: str, progress: Progress = lambda _line: None) -> Path:
    """Return the folder whose folder ``lib`` has the jars of a version's servers, fetched first if the cache lacks it.

    Raises ServerError as `ensure_distribution` and `ensure_jars` do.
    """
    release = PULSAR[version]
    if isinstance(release, Release):
        return ensure_distribution(release, progress=progress)
    return ensure_jars(release, progress=progress)


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

    def make(temporary: Path) -> Path:
        archive = (fetch or fetch_with_maven)(release, temporary, progress)
        check_archive(archive, release)
        progress(f"unpacking {release.title} {release.version}")
        return _unpack(archive, temporary, release)

    return ensure_entry(release.folder_name, make, cache, progress)


def fetch_with_maven(release: Release, folder: Path, progress: Progress) -> Path:
    """Copy the archive into a folder through Maven (and its own cache); raise ServerError if that fails."""
    label = f"fetching {release.title} {release.version} ({release.size / 1e6:.0f} MB)"
    arguments = [f"-Dartifact={release.artifact}", f"-DoutputDirectory={folder}", "-Dmdep.useBaseVersion=true"]
    run_dependency_goal(
        *("copy", arguments, folder, progress),
        artifact=release.artifact,
        label=label,
        done=lambda: fetched_share(release, Path.home() / ".m2" / "repository"),
    )
    archive = folder / release.archive_name
    if not archive.is_file():
        raise failure(release.artifact, folder)
    return archive


def fetched_share(release: Release, repository: Path) -> float | None:
    """Return how much of the archive Maven has in its own repository, from 0 to 1; None where nothing is there.

    Maven writes into a file of another name, which begins alike, until it has all.
    """
    folder = repository / "org" / "apache" / "pulsar" / release.distribution / release.version
    sizes = []
    for path in folder.glob(f"{release.archive_name}*"):
        # It is renamed at the end.
        with suppress(FileNotFoundError):
            sizes.append(path.stat().st_size)
    return min(1.0, max(sizes) / release.size) if sizes else None


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
    (folder / "pom.xml").write_text(release.project, encoding="utf-8")
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
