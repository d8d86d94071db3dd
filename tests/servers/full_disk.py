"""A file system of a test's own, with little room or none."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """Mount one of so many bytes, as `mount` takes them, for the block; the test is skipped where that is refused."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"a file system cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def enlarge(folder: Path, size: str) -> None:
    """Give a small disk another size."""
    subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True)
