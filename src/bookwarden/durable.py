"""Writes that outlive a loss of power."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path | str) -> None:
    """Wait until what was written to a file, or which names a folder has, is on disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
