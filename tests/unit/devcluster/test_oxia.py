"""Building Oxia: once, whole or not at all, from the pinned modules; what is said where Go is missing or fails."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from bookwarden.errors import ConfigError, ServerError
from bookwarden_dev.devcluster import ClusterOptions, ClusterPorts, DevCluster
from bookwarden_dev.devcluster.releases.program import Go, find_go, parse_version
from bookwarden_dev.devcluster.releases.versions import OXIA_0_14_0
from bookwarden_dev.devcluster.servers.oxia import OxiaClient, OxiaServer, ensure_oxia
from bookwarden_dev.devcluster.servers.settings import bookie_settings, broker_settings

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


def test_the_broker_and_the_bookie_of_a_cluster_on_oxia_know_no_other_store(tmp_path: Path) -> None:
    ports, options = ClusterPorts(1, 2, 3, 4, 5, 6), ClusterOptions(metadata="oxia")
    broker, bookie = broker_settings({}, ports, options), bookie_settings({}, ports, tmp_path, options)
    assert broker["metadataStoreUrl"] == broker["configurationMetadataStoreUrl"] == "oxia://127.0.0.1:5/default"
    assert bookie["metadataServiceUri"] == "metadata-store:oxia://127.0.0.1:5/default"
    assert not any("zk:" in value for value in (*broker.values(), *bookie.values()))


def test_a_cluster_beside_an_oxia_keeps_to_its_zookeeper(tmp_path: Path) -> None:
    cluster = DevCluster(tmp_path, ClusterOptions(oxia=True))
    assert [server.name for server in cluster.servers] == ["zookeeper", "oxia", "bookie", "broker"]
    assert cluster.store is cluster.zookeeper
    assert cluster.store_url == f"zk:127.0.0.1:{cluster.ports.zookeeper}"
    assert cluster.extra == (cluster.oxia,)
    assert cluster.oxia_url == f"oxia://127.0.0.1:{cluster.ports.oxia}/default"


def test_servers_that_a_cluster_has_not_are_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no zookeeper, only oxia, bookie, broker"):
        _ = DevCluster(tmp_path, ClusterOptions(metadata="oxia")).zookeeper
    with pytest.raises(ConfigError, match="no oxia, only zookeeper, bookie, broker"):
        _ = DevCluster(tmp_path).oxia_url


@pytest.mark.parametrize(
    ("options", "says"),
    [({"metadata": "etcd"}, "zookeeper or oxia"), ({"metadata": "oxia", "zookeeper_digest": True}, "no ZooKeeper")],
)
def test_impossible_options_are_refused(options: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ClusterOptions(**options)


def client(tmp_path: Path, script: str) -> OxiaClient:
    """Return a client whose program is a script."""
    program = tmp_path / "oxia"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return OxiaClient(program, "127.0.0.1:1")


def test_a_key_that_is_not_there_is_no_failure(tmp_path: Path) -> None:
    absent = client(tmp_path, "echo Error: key not found >&2; exit 1")
    assert not absent.exists("/a")
    assert not absent.delete("/a")


def test_no_answer_is_not_taken_for_no_key(tmp_path: Path) -> None:
    unheard = client(tmp_path, "echo Error: context deadline exceeded >&2; exit 1")
    with pytest.raises(ServerError, match=r"Oxia at 127.0.0.1:1 did not answer.*context deadline exceeded"):
        unheard.exists("/a")
    with pytest.raises(ServerError, match="start it first"):
        OxiaClient(tmp_path / "none", "127.0.0.1:1").delete("/a")


def test_keys_of_several_shards_come_in_the_order_of_paths(tmp_path: Path) -> None:
    assert client(tmp_path, r'printf "/a/c\n/a/b/x\n/a/b\n"').keys("/a/", "/b") == ["/a/b", "/a/c", "/a/b/x"]
