"""Building Oxia: once, whole or not at all, from the pinned modules; what is said where Go is missing or fails."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from bookwarden.devcluster.golang import Go, find_go, parse_version
from bookwarden.devcluster.oxia import OXIA_0_14_0, OxiaServer, ensure_oxia
from bookwarden.errors import ConfigError, ServerError

# Ends as `go build -o FILE PACKAGE` does, and tells what it was given.
BUILDS = """
while [ "$1" != -o ]; do shift; done
echo built > "$2"; echo "$3" > "$2.package"; cp go.mod "$2.mod"; cp go.sum "$2.sum"; env > "$2.environment"
"""


def stub(folder: Path, script: str, version: str = "go1.26.8") -> Go:
    """Write a program that answers as Go does, and return it."""
    program = folder / "bin" / "go"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\nif [ "$1" = env ]; then echo {version}; exit; fi\n{script}\n')
    program.chmod(0o755)
    return Go(str(program))


def visible(cache: Path) -> set[str]:
    return {path.name for path in cache.iterdir() if not path.name.startswith(".lock")}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_the_program_is_built_once_of_the_pinned_modules(tmp_path: Path, cache: Path) -> None:
    program = ensure_oxia(cache=cache, find=lambda _oldest: stub(tmp_path, BUILDS))
    assert program == cache / "oxia-0.14.0" / "oxia"
    assert visible(cache) == {"oxia-0.14.0"}
    assert program.with_suffix(".package").read_text() == "github.com/oxia-db/oxia/cmd\n"
    assert program.with_suffix(".mod").read_bytes() == OXIA_0_14_0.modules.read_bytes()
    assert program.with_suffix(".sum").read_bytes() == OXIA_0_14_0.checksums.read_bytes()
    assert ensure_oxia(cache=cache, find=lambda _oldest: stub(tmp_path, "exit 1")) == program


def test_oxia_itself_is_pinned_by_version_and_checksum() -> None:
    assert "github.com/oxia-db/oxia v0.14.0 " in OXIA_0_14_0.modules.read_text()
    assert "github.com/oxia-db/oxia v0.14.0 h1:" in OXIA_0_14_0.checksums.read_text()


def test_go_writes_only_below_the_cache_and_keeps_the_settings_of_its_user(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("GOENV", raising=False)
    program = ensure_oxia(cache=cache, find=lambda _oldest: stub(tmp_path, BUILDS))
    given = dict(line.split("=", 1) for line in program.with_suffix(".environment").read_text().splitlines())
    assert given["GOENV"] == str(tmp_path / "config/go/env")
    assert given["XDG_CONFIG_HOME"] == os.devnull
    assert Path(given["GOCACHE"]).parents[1] == Path(given["GOTMPDIR"]).parent == cache


def test_a_build_that_fails_says_why_and_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    fails = 'echo "go: downloading golang.org/x/net v0.40.0"; echo "verifying module: checksum mismatch" >&2; exit 1'
    with pytest.raises(ServerError, match=r"Go could not build .*oxia/cmd: verifying module: checksum mismatch;"):
        ensure_oxia(cache=cache, find=lambda _oldest: stub(tmp_path, fails))
    assert visible(cache) == set()


def test_a_missing_go_is_named_with_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerError, match=r"Go 1.24.2 or newer is needed, and there is no go on PATH: install it"):
        find_go(OXIA_0_14_0.oldest_go)


@pytest.mark.parametrize(
    ("version", "says"),
    [("go1.24.1", r"is Go 1.24.1, needed is 1.24.2 or newer: install"), ("devel", r"does not run: install")],
)
def test_another_go_than_is_needed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, says: str
) -> None:
    monkeypatch.setenv("PATH", str(Path(stub(tmp_path, "exit 1", version).executable).parent), prepend=":")
    with pytest.raises(ServerError, match=says):
        find_go(OXIA_0_14_0.oldest_go)


def test_a_go_that_is_new_enough_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = stub(tmp_path, "exit 1", "go1.24.2")
    monkeypatch.setenv("PATH", str(Path(go.executable).parent), prepend=":")
    assert find_go(OXIA_0_14_0.oldest_go) == go


@pytest.mark.parametrize(
    ("text", "version"),
    [("go1.24.2\n", (1, 24, 2)), ("go1.25rc1", (1, 25, 0)), ("go1.26", (1, 26, 0)), ("", None), ("devel +1a", None)],
)
def test_the_version_of_go(text: str, version: Sequence[int] | None) -> None:
    assert parse_version(text) == version


def test_a_server_without_shards_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least one shard, not 0"):
        OxiaServer(tmp_path, shards=0)
