"""The lock that keeps two processes from working on one scan.

On this machine it is a lock of the operating system, which ends with its process. Elsewhere it is a file that its
holder writes again from time to time, and one that was not written for long counts as left by a dead process.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bookwarden.errors import FormatError, RefusedError
from bookwarden.leases import Renewal, describe_holder, holder_here
from bookwarden.pipelines.folders import Folder

_FILE = "lock.json"
WRITTEN_AGAIN_SECONDS = 20.0
DEAD_AFTER_SECONDS = 120.0


@contextmanager
def alone(folder: Folder) -> Iterator[None]:
    """Hold the folder's lock; RefusedError if another process has it."""
    local = folder.local_path
    with _locked_file(folder, local / "lock") if local else _written_again(folder):
        yield


@contextmanager
def _locked_file(folder: Folder, path: Path) -> Iterator[None]:
    folder.make()
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RefusedError(f"another process works on {folder.location}: wait for it, or stop it") from error
        yield


@contextmanager
def _written_again(folder: Folder) -> Iterator[None]:
    mine = holder_here()
    found = _holder(folder)
    age = time.time() - float(found.get("written", 0))
    if found and age < DEAD_AFTER_SECONDS:
        raise RefusedError(
            f"another process works on {folder.location}, or did so {age:.0f} s ago, on {describe_holder(found)}: "
            f"stop it, or try again in {DEAD_AFTER_SECONDS - age:.0f} s if it is dead"
        )

    def is_mine() -> bool:
        return bool(_holder(folder).get("id") == mine["id"])

    def write() -> None:
        folder.write_json(_FILE, {**mine, "written": time.time()})

    def renew() -> bool:
        with suppress(OSError):
            if is_mine():
                write()
        return True

    write()
    try:
        with Renewal(renew, WRITTEN_AGAIN_SECONDS, name="scan-lock", end_wait_s=5):
            yield
        if not is_mine():
            other = describe_holder(_holder(folder))
            raise RefusedError(
                f"another process took over {folder.location}, on {other}: what this one did there does not count"
            )
    finally:
        if is_mine():
            folder.remove(_FILE)


def _holder(folder: Folder) -> dict[str, Any]:
    try:
        found = folder.read_json(_FILE)
    except (FileNotFoundError, FormatError):
        return {}
    return found if isinstance(found, dict) else {}
