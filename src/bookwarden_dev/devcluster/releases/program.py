"""Run a program that fetches or builds: tied to this process, its output in a log, shown while it takes long."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bookwarden_dev.devcluster.releases.cache import Progress

_SHOWN_EVERY_SECONDS = 10.0
_GUARD = str(Path(__file__).parents[1] / "processes" / "guard.py")


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
    guarded = [sys.executable, "-I", "-S", _GUARD, "tied", str(os.getpid()), "-1", *command]
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
