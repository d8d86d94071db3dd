"""A migration rehearsed on real stores: ZooKeeper to Oxia, killed at any time, and cleaned up after."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bookwarden.cli.main import cli
from bookwarden.errors import RefusedError
from bookwarden.exit_codes import NOT_DONE
from bookwarden.metadata_migration.rehearsal import MARKER
from bookwarden.metadata_migration.walking import TreeWalk
from bookwarden.metastore.following.flag import MIGRATION_PATH
from bookwarden.metastore.interface import MetadataStore, Versioned
from bookwarden.metastore.urls import open_store
from bookwarden_dev.devcluster.servers.oxia import OxiaServer
from servers.lone_zookeeper import LoneZooKeeper, running_zookeeper
from servers.metadata_tree import CURSORS, LEDGERS, filled_root
from servers.waiting import eventually

# The first start of an Oxia on a machine builds it.
pytestmark = [pytest.mark.servers, pytest.mark.timeout(1800)]

BIG = 5 * 1024 * 1024


@pytest.fixture
def oxia(tmp_path: Path) -> Iterator[OxiaServer]:
    """An Oxia whose namespace is the test's own."""
    server = OxiaServer(tmp_path / "oxia", shards=2)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def command(source_url: str, oxia: OxiaServer, *arguments: str) -> list[str]:
    return ["-o", "json", "metadata-migration", "rehearse", "--source", source_url, "--target", oxia.url, *arguments]


def rehearse(source_url: str, oxia: OxiaServer, *arguments: str) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(cli, command(source_url, oxia, *arguments))
    assert result.exit_code in (0, NOT_DONE, RefusedError.exit_code), result.stderr
    return result.exit_code, json.loads(result.stdout or result.stderr)


def everything_in(store: MetadataStore) -> dict[str, Versioned]:
    found: dict[str, Versioned] = {}
    TreeWalk([store], lambda paths, nodes: found.update(zip(paths, nodes[0], strict=True))).run()  # type: ignore[arg-type]
    return found


def has_moved_on(target: MetadataStore, version: int) -> bool:
    found = target.get(MARKER)
    return found is None or found.version != version


def test_a_store_is_copied_and_only_read_and_the_copy_is_removed(zookeeper: LoneZooKeeper, oxia: OxiaServer) -> None:
    source_url = filled_root(zookeeper.hosts)
    with closing(open_store(source_url)) as source, closing(open_store(oxia.url)) as target:
        source.create("/available", b"")
        source.ephemeral_sequential("/available/bookie-", b"here")
        source.create(MIGRATION_PATH, b'{"phase":"FAILED","targetUrl":"oxia://elsewhere:1/n"}', make_parents=True)
        before = everything_in(source)
        code, report = rehearse(source_url, oxia)
        persistent = {
            path: node
            for path, node in before.items()
            if not node.ephemeral and not path.startswith("/pulsar/migration-coordinator")
        }
        assert (code, report["good"], report["nodes"], report["ephemeral"]) == (0, True, len(persistent), 1), report
        assert (report["equal"], report["damaged"], report["versions_kept"]) == (len(persistent), 0, False)
        assert report["value_bytes"] == sum(len(node.value) for node in persistent.values())
        assert report["removed"] is None
        copied = everything_in(target)
        copied.pop(MARKER)
        assert {path: node.value for path, node in copied.items()} == {
            path: node.value for path, node in persistent.items()
        }
        # The copy of a migration is no place for another, nor for a cluster.
        code, refused = rehearse(source_url, oxia)
        assert code == RefusedError.exit_code
        assert "remove it with --clean" in json.dumps(refused)

        code, report = rehearse(source_url, oxia, "--clean", "--max-reads-per-second", "2000")
        assert (code, report["removed"]) == (0, len(persistent))
        assert report["estimate"]["copying_seconds"] <= report["seconds"]
        assert everything_in(target) == {}
        assert everything_in(source) == before


def test_nothing_is_removed_that_a_cluster_may_use(zookeeper: LoneZooKeeper, oxia: OxiaServer) -> None:
    source_url = filled_root(zookeeper.hosts)
    assert rehearse(source_url, oxia)[0] == 0
    with closing(open_store(oxia.url)) as target:
        node = target.get(LEDGERS[7])
        assert node is not None
        time.sleep(0.01)
        version = target.put(LEDGERS[7], node.value, node.version)
        before = everything_in(target)
        code, refused = rehearse(source_url, oxia, "--only-clean")
        assert code == RefusedError.exit_code
        assert f"{LEDGERS[7]} of the target was not made by the rehearsal" in json.dumps(refused)
        assert everything_in(target).keys() == before.keys()
        assert target.get(LEDGERS[7]).version == version  # type: ignore[union-attr]


def test_a_namespace_that_has_anything_in_it_is_refused(zookeeper: LoneZooKeeper, oxia: OxiaServer) -> None:
    source_url = filled_root(zookeeper.hosts)
    with closing(open_store(oxia.url)) as target:
        target.create("/admin", b"precious")
        for arguments in ([], ["--clean"]):
            code, refused = rehearse(source_url, oxia, *arguments)
            assert code == RefusedError.exit_code
            assert "not empty: it has /admin" in json.dumps(refused)
        assert {path: node.value for path, node in everything_in(target).items()} == {"/admin": b"precious"}


def test_nodes_that_brokers_could_not_read_are_named(tmp_path: Path, oxia: OxiaServer) -> None:
    home = tmp_path / "zookeeper"
    home.mkdir()
    with running_zookeeper(home, java_options=(f"-Djute.maxbuffer={2 * BIG}",)) as server:
        source_url = filled_root(server.hosts)
        with closing(open_store(source_url, max_request_bytes=2 * BIG)) as source:
            source.create("/big", b"b" * BIG)
            source.create("/large", b"l" * 3_000_000)
            source.create("/large/below", b"")
        code, report = rehearse(source_url, oxia, "--clean")
    assert (code, report["good"], report["damaged"]) == (NOT_DONE, False, 0), report
    assert report["first_not_copied"] == [{"path": "/big", "size": BIG, "reason": "too large"}]
    assert report["largest"] == {"path": "/big", "size": BIG}
    assert report["removed"] == report["nodes"] == report["equal"]


MANY = 3_000
# By how many copies the target has when it is killed: at least, and then at most, which is once it removes them.
MOMENTS = ((0, MANY), (MANY // 10, MANY), (MANY // 2, MANY), (MANY, MANY), (MANY, MANY - 1))


def test_a_rehearsal_that_is_killed_at_any_time_is_cleaned_up_by_the_next(
    zookeeper: LoneZooKeeper, oxia: OxiaServer
) -> None:
    source_url = filled_root(zookeeper.hosts)
    with closing(open_store(source_url)) as source:
        for number in range(MANY):
            source.create(f"/ledgers/00/0000/M{number:05d}", CURSORS[0].encode())
        before = everything_in(source)
    program = [sys.executable, "-m", "bookwarden.cli"]
    left_something = 0
    with closing(open_store(oxia.url)) as target:

        def copies() -> int:
            return sum(name.startswith("M") for name in target.children_of("/ledgers/00/0000"))

        # At reads of 4,000 a second it takes some time to copy, and as much to compare.
        limit = ("--clean", "--max-reads-per-second", "4000")
        for least, most in MOMENTS:
            process = subprocess.Popen([*program, *command(source_url, oxia, *limit)], stdout=subprocess.DEVNULL)
            eventually(lambda: target.get(MARKER))
            eventually(lambda least=least: copies() >= least, 60)
            eventually(lambda most=most: copies() <= most, 60)
            process.kill()
            process.wait()
            marker = target.get(MARKER)
            left_something += marker is not None
            assert marker is not None or everything_in(target) == {}
            if marker is not None:
                # The one that cleans up is killed as well.
                process = subprocess.Popen(
                    [*program, *command(source_url, oxia, "--only-clean")], stdout=subprocess.DEVNULL
                )
                eventually(partial(has_moved_on, target, marker.version))
                process.kill()
                process.wait()
            code, report = rehearse(source_url, oxia, "--only-clean")
            assert code == 0, report
            assert everything_in(target) == {}
        assert left_something > 3
        code, report = rehearse(source_url, oxia, "--clean")
        assert (code, report["nodes"], report["removed"]) == (0, len(before), len(before))
    with closing(open_store(source_url)) as source:
        assert everything_in(source) == before
