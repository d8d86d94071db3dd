"""Programs that fetch and build: Maven with its checks of checksums, and a Go that pins all modules by checksum.

Each is tied to this process, its output goes to a log, which is shown while it takes long.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bookwarden.errors import ServerError
from bookwarden_dev.devcluster.releases.cache import Progress
from bookwarden_dev.devcluster.releases.versions import GoVersion

_SHOWN_EVERY_SECONDS = 10.0
_GUARD = str(Path(__file__).parents[1] / "processes" / "guard.py")
_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
_INSTALL = "install it (https://go.dev/dl, or the package golang-go where that is new enough)"
_SHOWN_LOG_LINES = 3
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
# Go keeps counters of its use in a folder there, or none where it cannot; it has no variable of its own for it.
_UNCOUNTED = {"XDG_CONFIG_HOME": os.devnull}


def run_to_its_end(
    command: Sequence[str],
    folder: Path,
    log: Path,
    progress: Progress,
    *,
    label: str,
    environment: Mapping[str, str] | None = None,
    done: Callable[[], float | None] = lambda: None,
) -> int:
    """Run a command in a folder, over this process's environment, and return its exit code.

    It is killed when this process ends, however that ends. ``label`` says what is under way, ``done`` how much of it is
    done, from 0 to 1, if that is known.
    """
    started = time.monotonic()
    guarded = [sys.executable, "-I", "-S", _GUARD, "tied", str(os.getpid()), "-1", "0", *command]
    with log.open("wb") as output:
        process = subprocess.Popen(
            guarded,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=folder,
            env={**os.environ, **(environment or {})},
        )
        try:
            while True:
                try:
                    return process.wait(timeout=_SHOWN_EVERY_SECONDS)
                except subprocess.TimeoutExpired:
                    share = done()
                    percent = "" if share is None else f"{share:.0%}, "
                    progress(f"{label}: {percent}{time.monotonic() - started:.0f} s")
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


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
    # Maven writes some before its first complaint, also with -Dstyle.color=never.
    lines = _COLOURS.sub("", (folder / "maven.log").read_text(encoding="utf-8", errors="replace")).splitlines()
    errors = [line for line in lines if line.startswith("[ERROR]")] or lines or ["it printed nothing"]
    said = errors[0].removeprefix("[ERROR]").strip()
    return ServerError(f"Maven could not fetch {artifact}: {said}; check the network, then retry")


@dataclass(frozen=True, slots=True)
class Go:
    """A Go that is new enough, by its path."""

    executable: str

    def build(self, package: str, folder: Path, output: Path, progress: Progress, *, label: str) -> None:
        """Build a package by the folder's go.mod and go.sum; raise ServerError, with Go's complaint, if that fails.

        Go checks each module against go.sum. The modules come into Go's own cache (GOMODCACHE); everything else is
        written below the folder. No C compiler is needed.
        """
        command = [self.executable, "build", "-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags=-s -w"]
        command += ["-o", str(output), package]
        log = folder / "go.log"
        progress(f"{label}, which takes some minutes once")
        environment = {
            "CGO_ENABLED": "0",
            "GO111MODULE": "on",
            "GOCACHE": str(folder / "gocache"),
            # By its name: its default follows XDG_CONFIG_HOME, and it may hold the GOPROXY that is needed here.
            "GOENV": _environment_file(),
            "GOTMPDIR": str(folder),
            "GOTOOLCHAIN": "local",
            "GOWORK": "off",
            **_UNCOUNTED,
        }
        code = run_to_its_end(command, folder, log, progress, label=label, environment=environment)
        if code != 0:
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
            errors = [line for line in lines if not line.startswith("go: downloading ")] or ["it printed nothing"]
            said = " | ".join(errors[:_SHOWN_LOG_LINES])
            raise ServerError(f"Go could not build {package}: {said}; check the network and the disk, then retry")


def find_go(oldest: GoVersion) -> Go:
    """Return the Go of PATH; raise ServerError, which says what to install, if there is none or it is too old."""
    needed = _render(oldest)
    executable = shutil.which("go")
    if executable is None:
        raise ServerError(f"Go {needed} or newer is needed, and there is no go on PATH: {_INSTALL}")
    environment = {**os.environ, **_UNCOUNTED, "GOTOOLCHAIN": "local", "GOENV": "off"}
    answer = subprocess.run(
        [executable, "env", "GOVERSION"], capture_output=True, text=True, check=False, env=environment
    )
    version = parse_version(answer.stdout)
    if version is None or answer.returncode != 0:
        raise ServerError(f"{executable} env GOVERSION does not run: {_INSTALL}")
    if version < oldest:
        raise ServerError(f"{executable} is Go {_render(version)}, needed is {needed} or newer: {_INSTALL}")
    return Go(executable)


def parse_version(text: str) -> GoVersion | None:
    """Read what `go env GOVERSION` prints: "go1.24.2" is (1, 24, 2), "go1.25rc1" is (1, 25, 0)."""
    found = re.match(r"go(\d+)\.(\d+)(?:\.(\d+))?", text.strip())
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else None


def _render(version: GoVersion) -> str:
    return ".".join(map(str, version))


def _environment_file() -> str:
    configuration = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return os.environ.get("GOENV") or str(Path(configuration, "go", "env"))
