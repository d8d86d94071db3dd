"""The place of a run's temporary files: in its own home, which is removed as a whole."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def temporary_files_in(folder: Path) -> Iterator[None]:
    """Keep the temporary files of this process and its children in a folder during the block; make it if needed."""
    folder.mkdir(parents=True, exist_ok=True)
    before, given = tempfile.tempdir, os.environ.get("TMPDIR")
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before
        if given is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = given
