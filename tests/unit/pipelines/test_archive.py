"""What goes into the archive for executors, and that equal files make equal archives."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from bookwarden.pipelines import archive


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    folder = tmp_path / "env"
    for name in (
        "bookwarden/__init__.py",
        "bookwarden/schemas/ledger_outcome.avsc",
        "bookwarden/__pycache__/__init__.cpython-311.pyc",
        "pandas/tests/test_frame.py",
        "pandas/_testing/contexts.py",
        "pyarrow/include/arrow/api.h",
        "pyarrow/lib.pyi",
        "pyarrow/libarrow.so.2600",
        "pyarrow-26.dist-info/RECORD",
        "pyarrow-26.dist-info/METADATA",
        "bin/bookwarden",
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return folder


def test_only_what_is_imported_is_packed(environment: Path, tmp_path: Path) -> None:
    output = tmp_path / "dist" / "env.tar.gz"
    assert archive.pack(environment, output) == 5
    with tarfile.open(output) as members:
        assert sorted(members.getnames()) == [
            "bookwarden/__init__.py",
            "bookwarden/schemas/ledger_outcome.avsc",
            "pandas/_testing/contexts.py",
            "pyarrow-26.dist-info/METADATA",
            "pyarrow/libarrow.so.2600",
        ]


def test_the_same_files_make_the_same_bytes_whenever_and_by_whomever_they_were_written(
    environment: Path, tmp_path: Path
) -> None:
    first, second = tmp_path / "first.tar.gz", tmp_path / "second.tar.gz"
    archive.pack(environment, first)
    os.utime(environment / "bookwarden" / "__init__.py", (1, 1))
    (environment / "bookwarden" / "__init__.py").chmod(0o600)
    archive.pack(environment, second)
    assert first.read_bytes() == second.read_bytes()


def test_the_libraries_of_offload_stores_are_packed_when_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed: list[str] = []

    def pip(*arguments: str) -> None:
        if arguments[0] == "install":
            installed.append(arguments[-1])
            Path(arguments[2]).mkdir()

    monkeypatch.setattr(archive, "_pip", pip)
    monkeypatch.setattr(archive, "_build_wheel", lambda checkout, scratch: Path("bookwarden.whl"))
    (tmp_path / "setup.cfg").touch()
    output = tmp_path / "env.tar.gz"
    for extras in ([], ["--extra", "s3", "--extra", "gcs"]):
        assert archive.main(["--checkout", str(tmp_path), "--output", str(output), *extras]) == 0
    assert installed == ["bookwarden.whl[executor]", "bookwarden.whl[executor,s3,gcs]"]


def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    output = tmp_path / "env.tar.gz"
    assert archive.main(["--checkout", str(tmp_path), "--output", str(output)]) == 3
    assert "give the folder of a bookwarden checkout" in caplog.text
    assert not output.exists()
