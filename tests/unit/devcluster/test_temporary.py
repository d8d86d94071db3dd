"""Temporary files in the folder of a run."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from bookwarden_dev.devcluster.temporary import temporary_files_in


@pytest.mark.parametrize("given", ["/elsewhere", None])
def test_this_process_and_those_it_starts_use_the_folder_during_the_block_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    if given is None:
        monkeypatch.delenv("TMPDIR", raising=False)
    else:
        monkeypatch.setenv("TMPDIR", given)
    before, folder = tempfile.gettempdir(), tmp_path / "home" / "tmp"
    with temporary_files_in(folder):
        with tempfile.NamedTemporaryFile() as file:
            assert Path(file.name).parent == folder
        command = [sys.executable, "-c", "import tempfile; print(tempfile.gettempdir())"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert said.strip() == str(folder)
    assert os.environ.get("TMPDIR") == given
    assert tempfile.gettempdir() == before
