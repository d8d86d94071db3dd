"""Getting the release: whole or not at all, the pinned archive only, once for all processes."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import pytest

from bookwarden import java
from bookwarden.errors import ServerError
from bookwarden_dev.devcluster.releases import program
from bookwarden_dev.devcluster.releases.cache import Progress
from bookwarden_dev.devcluster.releases.distribution import (
    ensure_distribution,
    fetch_with_maven,
    fetched_share,
)
from bookwarden_dev.devcluster.releases.versions import Release


def archive(version: str = "9", *names: str) -> bytes:
    """Make an archive in the form of the release's."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        for name in names or ("a",):
            member = tarfile.TarInfo(f"apache-pulsar-{version}/lib/{name}.jar")
            member.size = 3
            tar.addfile(member, io.BytesIO(b"jar"))
    return content.getvalue()


ARCHIVE = archive()
RELEASE = Release("9", hashlib.sha512(ARCHIVE).hexdigest(), len(ARCHIVE))


def fetch(release: Release, folder: Path, progress: Progress) -> Path:
    path = folder / release.archive_name
    path.write_bytes(ARCHIVE)
    return path


def fetch_nothing(release: Release, folder: Path, progress: Progress) -> Path:
    raise AssertionError("fetched, though the cache has it")


def visible(cache: Path) -> set[str]:
    return {path.name for path in cache.iterdir() if not path.name.startswith(".lock")}


def test_it_is_fetched_once_and_nothing_else_stays(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    unpacked = ensure_distribution(RELEASE, cache, fetch=fetch)
    assert (unpacked / "lib" / "a.jar").read_bytes() == b"jar"
    assert visible(cache) == {"apache-pulsar-9"}
    assert ensure_distribution(RELEASE, cache, fetch=fetch_nothing) == unpacked


def test_only_the_files_that_are_asked_for_are_unpacked(tmp_path: Path) -> None:
    content = archive("9", "a", "b")
    release = Release("9", hashlib.sha512(content).hexdigest(), len(content), only=("/lib/b",))

    def fetch_both(release: Release, folder: Path, progress: Progress) -> Path:
        path = folder / release.archive_name
        path.write_bytes(content)
        return path

    unpacked = ensure_distribution(release, tmp_path, fetch=fetch_both)
    assert [path.name for path in (unpacked / "lib").iterdir()] == ["b.jar"]


def test_another_archive_than_the_pinned_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="has SHA-512"):
        ensure_distribution(Release("9", "0" * 128, 1), tmp_path, fetch=fetch)
    assert visible(tmp_path) == set()


def test_a_broken_archive_leaves_nothing(tmp_path: Path) -> None:
    broken = ARCHIVE[: len(ARCHIVE) // 2]

    def fetch_half(release: Release, folder: Path, progress: Progress) -> Path:
        path = folder / release.archive_name
        path.write_bytes(broken)
        return path

    with pytest.raises(ServerError, match="could not be unpacked"):
        ensure_distribution(Release("9", hashlib.sha512(broken).hexdigest(), 1), tmp_path, fetch=fetch_half)
    assert visible(tmp_path) == set()


KILLED_WHILE_UNPACKING = """
import os, pathlib, signal, sys
from bookwarden_dev.devcluster.releases.distribution import ensure_distribution
from bookwarden_dev.devcluster.releases.versions import Release
def fetch(release, folder, progress):
    (folder / release.folder_name).mkdir()
    os.kill(os.getpid(), signal.SIGKILL)
ensure_distribution(Release("9", "", 1), pathlib.Path(sys.argv[1]), fetch=fetch)
"""


def test_what_a_killed_process_left_is_never_used_and_cleared_by_the_next(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED_WHILE_UNPACKING, str(tmp_path)], check=False)
    assert ended.returncode == -9
    assert not (tmp_path / "apache-pulsar-9").exists()
    assert visible(tmp_path)
    ensure_distribution(RELEASE, tmp_path, fetch=fetch)
    assert visible(tmp_path) == {"apache-pulsar-9"}


def test_two_at_once_fetch_once(tmp_path: Path) -> None:
    waits, fetches, results = threading.Event(), [], []

    def fetch_slowly(release: Release, folder: Path, progress: Progress) -> Path:
        fetches.append(folder)
        assert waits.wait(30)
        return fetch(release, folder, progress)

    def first() -> None:
        results.append(ensure_distribution(RELEASE, tmp_path, fetch=fetch_slowly))

    def second() -> None:
        # The line that it waits for the other lets the other finish.
        results.append(ensure_distribution(RELEASE, tmp_path, lambda _line: waits.set(), fetch=fetch_slowly))

    threads = [threading.Thread(target=first)]
    threads[0].start()
    while not fetches:
        threads[0].join(0.01)
    threads.append(threading.Thread(target=second))
    threads[1].start()
    for thread in threads:
        thread.join(30)
    assert len(fetches) == 1
    assert results == [tmp_path / "apache-pulsar-9"] * 2


def executable(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_without_maven_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerError, match=r"no mvn on PATH: install it"):
        ensure_distribution(RELEASE, tmp_path / "cache")


def test_what_maven_complains_of_is_in_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executable(tmp_path / "mvn", r"printf '\033[0m\033[0m[ERROR] no such host\n'; exit 1")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    said: list[str] = []
    with pytest.raises(ServerError, match=r"could not fetch .*9:tar\.gz:bin: no such host; check the network"):
        fetch_with_maven(RELEASE, tmp_path, said.append)
    assert "fetching Pulsar 9" in said[0]


def test_without_java_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerError, match="there is no java on PATH: install it"):
        java.find_java()


def test_a_java_home_without_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ServerError, match="has no bin/java"):
        java.find_java()


def test_an_old_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    executable(tmp_path / "bin" / "java", "echo 'openjdk version \"11.0.2\"' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ServerError, match=r"is Java 11, .* 17 or newer"):
        java.find_java()


def test_how_much_maven_has_fetched_is_seen_in_its_repository(tmp_path: Path) -> None:
    release = Release("9", "", 1_000)
    assert fetched_share(release, tmp_path) is None
    folder = tmp_path / "org" / "apache" / "pulsar" / release.distribution / "9"
    folder.mkdir(parents=True)
    (folder / "_remote.repositories").write_bytes(b"x" * 5_000)
    (folder / f"{release.archive_name}.123.tmp").write_bytes(b"x" * 250)
    assert fetched_share(release, tmp_path) == 0.25
    (folder / release.archive_name).write_bytes(b"x" * 2_000)
    assert fetched_share(release, tmp_path) == 1.0


def test_a_long_fetch_tells_its_percentage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "_SHOWN_EVERY_SECONDS", 0.05)
    told: list[str] = []
    shares = iter([None, 0.25])

    def tell(line: str) -> None:
        told.append(line)
        if len(told) == 2:
            (tmp_path / "enough").touch()

    waits = ["sh", "-c", "until [ -e enough ]; do sleep 0.01; done"]
    program.run_to_its_end(
        waits, tmp_path, tmp_path / "log", tell, label="fetching Pulsar", done=lambda: next(shares, None)
    )
    assert told[:2] == ["fetching Pulsar: 0 s", "fetching Pulsar: 25%, 0 s"]
