"""Run Maven: found, tied to this process, shown while it takes long, its first complaint in the error."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bookwarden.devcluster.cache import Progress
from bookwarden.errors import ServerError

_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
_SHOWN_EVERY_SECONDS = 10.0


def run_dependency_goal(
    goal: str, arguments: Sequence[str], folder: Path, progress: Progress, *, artifact: str, label: str
) -> None:
    """Run a goal of Maven's dependency plugin in a folder; raise ServerError, naming the artifact, if that fails.

    Maven checks what it downloads against the checksums of the repository, and fails where they differ. ``label`` says
    what is under way.
    """
    maven = shutil.which("mvn")
    if maven is None:
        raise ServerError("Pulsar is fetched through Maven, and there is no mvn on PATH: install it (package maven)")
    progress(f"{label} through Maven")
    guard = str(Path(__file__).with_name("guard.py"))
    command = [sys.executable, "-I", "-S", guard, "tied", str(os.getpid()), "-1", maven, "-q", "-B"]
    command += ["--strict-checksums", f"{_PLUGIN}:{goal}", *arguments]
    log = folder / "maven.log"
    with log.open("wb") as output:
        code = _wait_for(command, output.fileno(), label, progress, folder)
    if code != 0:
        raise failure(artifact, folder)


def failure(artifact: str, folder: Path) -> ServerError:
    """Return the error of a goal that did not bring the artifact into this folder, with Maven's first complaint."""
    lines = (folder / "maven.log").read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line for line in lines if line.startswith("[ERROR]")] or lines or ["it printed nothing"]
    said = errors[0].removeprefix("[ERROR]").strip()
    return ServerError(f"Maven could not fetch {artifact}: {said}; check the network, then retry")


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
