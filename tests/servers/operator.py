"""Somebody at a terminal, whose commands must tell no secret: in no output, file or command line."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

_SECONDS = 300.0
_LOOK_SECONDS = 0.2


class Operator:
    """Runs commands with a settings file and an environment of its own, and keeps all that could be seen of them.

    ``settings`` lack the paths of the sweep's state, which lies in ``folder`` too.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.file = folder / "bookwarden.yaml"
        state = {name: str(folder / name) for name in ("checkpoint", "outcomes", "journal")}
        self.file.write_text(yaml.safe_dump({**settings, "sweep": state}))
        kept = {name: value for name, value in os.environ.items() if not name.startswith("BOOKWARDEN_")}
        self._environment = {**kept, **environment}
        self._command_lines: set[str] = set()
        self._commands = 0

    def run(self, *arguments: str, expected: int = 0, **more: str) -> str:
        """Run a command that logs all it can, with more variables in its environment; return what it said."""
        return self._run(("--debug", *arguments), expected, more)

    def fails(self, exit_code: int, part: str, *arguments: str, **more: str) -> None:
        """Run a command that must end with this code and one line that has this part."""
        text = self._run(arguments, exit_code, more)
        assert text.startswith("bookwarden: "), text
        assert part in text
        assert text.count("\n") == 1, text

    def telltales(self, secrets: Iterable[str], *more: Path) -> list[tuple[str, str]]:
        """Find the places where one of the secrets stands; ``more`` are folders to search beside our own."""
        files = [path for folder in (self.folder, *more) for path in folder.rglob("*") if path.is_file()]
        seen = [("command line", line) for line in self._command_lines]
        seen += [(str(path), path.read_bytes().decode(errors="replace")) for path in files]
        wanted = list(secrets)
        return [
            (where, line[:60])
            for where, text in seen
            for line in text.splitlines()
            if any(secret in line for secret in wanted)
        ]

    def _run(self, arguments: tuple[str, ...], expected: int, more: Mapping[str, str]) -> str:
        command = [sys.executable, "-m", "bookwarden.cli", "--config", str(self.file), *arguments]
        self._commands += 1
        environment, output = {**self._environment, **more}, self.folder / f"said-{self._commands}"
        with output.open("w") as file:
            started = subprocess.Popen(command, env=environment, cwd=self.folder, stdout=file, stderr=file)
            try:
                self._watch(started)
            finally:
                started.kill()
                started.wait()
        text = output.read_text()
        assert started.returncode == expected, f"{arguments}: {started.returncode}: {text[-3000:]}"
        return text

    def _watch(self, started: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _SECONDS
        while started.poll() is None:
            assert time.monotonic() < deadline, f"not done after {_SECONDS:g} s: {started.args}"
            self._command_lines |= _command_lines()
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.wait(_LOOK_SECONDS)


def _command_lines() -> set[str]:
    lines = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        # Processes come and go.
        with contextlib.suppress(OSError):
            lines.add(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return lines
