"""The Go that builds servers: find it, check it, build a program with all its modules pinned by checksum."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from bookwarden.errors import ServerError
from bookwarden_dev.devcluster.releases.cache import Progress
from bookwarden_dev.devcluster.releases.program import run_to_its_end

Version = tuple[int, int, int]

_INSTALL = "install it (https://go.dev/dl, or the package golang-go where that is new enough)"
_SHOWN_LOG_LINES = 3
# Go keeps counters of its use in a folder there, or none where it cannot; it has no variable of its own for it.
_UNCOUNTED = {"XDG_CONFIG_HOME": os.devnull}


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


def find_go(oldest: Version) -> Go:
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


def parse_version(text: str) -> Version | None:
    """Read what `go env GOVERSION` prints: "go1.24.2" is (1, 24, 2), "go1.25rc1" is (1, 25, 0)."""
    found = re.match(r"go(\d+)\.(\d+)(?:\.(\d+))?", text.strip())
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else None


def _render(version: Version) -> str:
    return ".".join(map(str, version))


def _environment_file() -> str:
    configuration = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return os.environ.get("GOENV") or str(Path(configuration, "go", "env"))
