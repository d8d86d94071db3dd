"""Writes that outlive a loss of power."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path | str) -> None:
    """Wait until a file's content, or a folder's list of names, is on disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
