"""Getting a release by its jars: whole or not at all, the pinned jars only, with the list that checks them."""

from __future__ import annotations

import hashlib
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from bookwarden.errors import ServerError
from bookwarden_dev.devcluster.releases.cache import Progress
from bookwarden_dev.devcluster.releases.distribution import (
    LIST_NAME,
    ensure_jars,
    fetch_jars_with_maven,
)
from bookwarden_dev.devcluster.releases.versions import PULSAR_4_2_4, ResolvedRelease

JARS = {"b.jar": b"second", "a.jar": b"first"}
LISTED = "".join(f"{hashlib.sha256(JARS[name]).hexdigest()}  {name}\n" for name in ("a.jar", "b.jar"))
RELEASE = replace(PULSAR_4_2_4, version="9", sha256=hashlib.sha256(LISTED.encode()).hexdigest(), size=11)


def fetch(release: ResolvedRelease, folder: Path, progress: Progress) -> None:
    (folder / "lib").mkdir()
    for name, content in JARS.items():
        (folder / "lib" / name).write_bytes(content)


def fetch_nothing(release: ResolvedRelease, folder: Path, progress: Progress) -> None:
    raise AssertionError("fetched, though the cache has it")


def visible(cache: Path) -> set[str]:
    return {path.name for path in cache.iterdir() if not path.name.startswith(".lock")}


def test_jars_are_fetched_once_with_a_list_that_checks_them(tmp_path: Path) -> None:
    folder = ensure_jars(RELEASE, tmp_path, fetch=fetch)
    assert visible(tmp_path) == {"pulsar-broker-9"}
    assert {path.name for path in folder.iterdir()} == {"lib"}
    subprocess.run(["sha256sum", "--check", "--strict", LIST_NAME], cwd=folder / "lib", check=True)
    assert ensure_jars(RELEASE, tmp_path, fetch=fetch_nothing) == folder


@pytest.mark.parametrize("change", [{"a.jar": b"forged"}, {"c.jar": b"more"}])
def test_other_jars_than_the_pinned_ones_are_refused_and_leave_nothing(
    tmp_path: Path, change: dict[str, bytes]
) -> None:
    def fetch_others(release: ResolvedRelease, folder: Path, progress: Progress) -> None:
        fetch(release, folder, progress)
        for name, content in change.items():
            (folder / "lib" / name).write_bytes(content)

    with pytest.raises(ServerError, match=r"jars of Pulsar 9 have as the SHA-256 of their list .* expected"):
        ensure_jars(RELEASE, tmp_path, fetch=fetch_others)
    assert visible(tmp_path) == set()


def test_maven_is_told_to_check_what_it_downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maven = tmp_path / "bin" / "mvn"
    maven.parent.mkdir()
    maven.write_text('#!/bin/sh\necho "$@" > arguments; grep -c pulsar-broker pom.xml >> arguments; mkdir lib\n')
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", str(maven.parent), prepend=":")
    fetch_jars_with_maven(RELEASE, tmp_path, lambda _line: None)
    arguments, named = (tmp_path / "arguments").read_text().splitlines()
    assert "--strict-checksums" in arguments.split()
    assert int(named) > 0


def test_what_maven_complains_of_is_in_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maven = tmp_path / "bin" / "mvn"
    maven.parent.mkdir()
    maven.write_text('#!/bin/sh\necho "[ERROR] Checksum validation failed"; exit 1\n')
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", str(maven.parent), prepend=":")
    with pytest.raises(ServerError, match=r"could not fetch .*pulsar-broker:9: Checksum validation failed"):
        fetch_jars_with_maven(RELEASE, tmp_path, lambda _line: None)
