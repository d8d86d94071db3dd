"""What a folder's location may be."""

from __future__ import annotations

from pathlib import Path

import pytest

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
