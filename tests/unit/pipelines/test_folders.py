"""What a folder's location may be."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from pyarrow import fs

from bookwarden.errors import ConfigError
from bookwarden.pipelines.folders import Folder


@pytest.mark.parametrize(
    ("location", "says"),
    [
        ("s3://bucket/scans?endpoint_override=127.0.0.1:9000", r"options behind a \? are not taken.*AWS_ENDPOINT_URL"),
        ("ftp://host/scans", "neither a path nor a URI"),
    ],
)
def test_a_location_that_cannot_be_is_refused_with_what_to_write_instead(location: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Folder(location)


def test_a_folder_of_this_machine_is_the_same_by_path_and_by_uri(tmp_path: Path) -> None:
    by_path, by_uri = Folder(f"{tmp_path}/"), Folder(tmp_path.as_uri())
    by_path.write_json("one/two.json", {"three": 3})
    assert by_uri.read_json("one/two.json") == {"three": 3}
    assert by_path.local_path == by_uri.local_path == tmp_path


def test_a_folder_that_another_process_makes_while_it_is_listed_is_no_error(tmp_path: Path) -> None:
    folder, made = Folder(str(tmp_path / "scans")), tmp_path / "scans" / "one"
    files = folder._fs

    class Late:
        """A file system on which the folder comes to be between pyarrow's two looks at it."""

        def get_file_info(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
            if not made.exists():
                made.mkdir(parents=True)
                raise FileNotFoundError(errno.ENOENT, f"Cannot list directory '{selector.base_dir}'")
            return list(files.get_file_info(selector))

    folder._fs = Late()
    assert folder.folders() == ["one"]


def test_a_durable_file_is_on_disk_before_it_has_its_name_and_its_name_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, synced = tmp_path / "plans" / "one" / "file", []

    def fsync(opened: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{opened}"))
        synced.append((path.parent if path.is_file() else path, target.exists()))
        assert not path.is_file() or path.read_bytes() == b"whole"

    monkeypatch.setattr(os, "fsync", fsync)
    folder = Folder(str(tmp_path / "plans"))
    folder.write("one/file", lambda sink: sink.write(b"whole"), durable=True)
    assert synced == [(target.parent, False), (target.parent, True), (tmp_path / "plans", True), (tmp_path, True)]
    folder.write("one/other", lambda sink: sink.write(b"whole"))
    assert len(synced) == 4


def test_what_could_not_be_made_durable_leaves_the_file_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Folder(str(tmp_path))
    folder.write("file", lambda sink: sink.write(b"before"), durable=True)

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=r"Input/output error: .*/file"):
        folder.write("file", lambda sink: sink.write(b"after"), durable=True)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert folder.read("file") == b"before"
