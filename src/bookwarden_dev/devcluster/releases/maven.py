"""Run Maven: found, its checks of checksums on, its first complaint in the error."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from bookwarden.errors import ServerError
from bookwarden_dev.devcluster.releases.cache import Progress
from bookwarden_dev.devcluster.releases.program import run_to_its_end

_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"


def run_dependency_goal(
    goal: str,
    arguments: Sequence[str],
    folder: Path,
    progress: Progress,
    *,
    artifact: str,
    label: str,
    done: Callable[[], float | None] = lambda: None,
) -> None:
    """Run a goal of Maven's dependency plugin in a folder; raise ServerError, naming the artifact, if that fails.

    Maven checks what it downloads against the checksums of the repository, and fails where they differ. ``label`` says
    what is under way, and ``done`` is as for `run_to_its_end`.
    """
    maven = shutil.which("mvn")
    if maven is None:
        raise ServerError("Pulsar is fetched through Maven, and there is no mvn on PATH: install it (package maven)")
    progress(f"{label} through Maven")
    command = [maven, "-q", "-B", "--strict-checksums", f"{_PLUGIN}:{goal}", *arguments]
    code = run_to_its_end(command, folder, folder / "maven.log", progress, label=label, done=done)
    if code != 0:
        raise failure(artifact, folder)


def failure(artifact: str, folder: Path) -> ServerError:
    """Return the error of a goal that did not bring the artifact into this folder, with Maven's first complaint."""
    lines = (folder / "maven.log").read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line for line in lines if line.startswith("[ERROR]")] or lines or ["it printed nothing"]
    said = errors[0].removeprefix("[ERROR]").strip()
    return ServerError(f"Maven could not fetch {artifact}: {said}; check the network, then retry")
