"""The folder of fetched and built entries: each whole or absent, made by one of several processes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

Progress = Callable[[str], None]

_TEMPORARY = ".making-"


def cache_folder() -> Path:
    """Return where downloads are kept: BOOKWARDEN_CACHE, else ~/.cache/bookwarden."""
    chosen = os.environ.get("BOOKWARDEN_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "bookwarden"


def ensure_entry(
    name: str, make: Callable[[Path], Path], cache: Path | None = None, progress: Progress = lambda _line: None
) -> Path:
    """Return the cache's folder of this name, made first if the cache lacks it.

    ``make`` gets an empty folder for all that it writes, and returns the folder in it that becomes the entry. Safe in
    several processes at once: one makes it, the others wait.
    """
    folder = cache or cache_folder()
    entry = folder / name
    if entry.is_dir():
        return entry
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / f".lock-{name}", progress):
        if entry.is_dir():
            return entry
        # No name of another entry begins like this.
        prefix = f"{_TEMPORARY}{name}+"
        # The lock is ours, so anything left here belongs to a process that was killed.
        for leftover in folder.glob(f"{prefix}*"):
            # Or to a child of it, which may write for a moment yet: then the next time removes the rest.
            shutil.rmtree(leftover, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=prefix, dir=folder, ignore_cleanup_errors=True) as temporary:
            make(Path(temporary)).rename(entry)
    return entry


@contextlib.contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    with path.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another process that fetches or builds servers")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
