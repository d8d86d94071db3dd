"""The verification of a copy, on real stores: ZooKeeper to Oxia, and to another root of the same ZooKeeper."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from bookwarden.cli.main import cli
from bookwarden.exit_codes import NOT_DONE
from bookwarden.metastore.following.flag import MIGRATION_PATH
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.urls import open_store
from bookwarden_dev.devcluster.servers.oxia import OxiaServer
from servers.lone_zookeeper import LoneZooKeeper
from servers.metadata_tree import CURSORS, LEDGERS, empty_root, filled_root
from servers.waiting import eventually

# The first start of an Oxia on a machine builds it.
pytestmark = [pytest.mark.servers, pytest.mark.timeout(1800)]

SHARDS = 3


@pytest.fixture
def source_url(zookeeper: LoneZooKeeper) -> str:
    """A root of the test's own, filled as a broker and a bookie would."""
    return filled_root(zookeeper.hosts)


@pytest.fixture
def oxia(tmp_path: Path) -> Iterator[OxiaServer]:
    """An Oxia whose namespace is the test's own."""
    server = OxiaServer(tmp_path / "oxia", shards=SHARDS)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def copy(source: MetadataStore, target: MetadataStore, path: str = "/") -> int:
    """Copy what is below a node, ephemeral nodes left out, as often written as in the source; return how many."""
    copied = 0
    for name in source.list_children(path):
        child = f"{path.rstrip('/')}/{name}"
        node = source.get(child)
        assert node is not None
        if node.ephemeral:
            continue
        target.create(child, b"" if node.version else node.value)
        copied += 1
        for version in range(node.version):
            found = target.get(child)
            assert found is not None
            target.put(child, node.value if version == node.version - 1 else b"", found.version)
        copied += copy(source, target, child)
    return copied


def verify(*arguments: str) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(cli, ["-o", "json", "metadata-migration", "verify", *arguments])
    assert result.exit_code in (0, NOT_DONE), result.stderr
    return result.exit_code, json.loads(result.stdout)


def version_of(store: MetadataStore, path: str) -> int:
    node = store.get(path)
    assert node is not None
    return node.version


def passed(milliseconds: int) -> bool:
    return time.time() * 1000 > milliseconds + 2


def test_a_copy_on_oxia_is_clean_and_each_damage_to_it_is_found(
    source_url: str, oxia: OxiaServer, tmp_path: Path
) -> None:
    file = tmp_path / "differences.parquet"
    with closing(open_store(source_url)) as source, closing(open_store(oxia.url)) as target:
        copied = copy(source, target)
        # Participants are made again where they go; this one is alive in both.
        source.create("/available", b"")
        target.create("/available", b"")
        source.ephemeral_sequential("/available/bookie-", b"here")
        target.ephemeral_sequential("/available/bookie-", b"there")

        code, report = verify("--source", source_url, "--target", oxia.url)
        assert (code, report["clean"]) == (0, True), report
        assert (report["compared"], report["equal"], report["phase"]) == (copied + 1, copied + 1, None)
        assert report["ephemeral"] == 2
        # What Oxia 0.14.0 does with versions; a key of each shard may have got the same by chance.
        assert report["versions_kept"] is False
        assert report["other_versions"] >= copied - 3 * SHARDS

        target.delete_many([(LEDGERS[7], version_of(target, LEDGERS[7]))])
        target.put(CURSORS[3], b"damaged", version_of(target, CURSORS[3]))
        target.create(f"{LEDGERS[100]}/below", b"")
        source.create(MIGRATION_PATH, b'{"phase":"PREPARATION"}', make_parents=True)
        target.create("/pulsar", b"")
        state = json.dumps({"phase": "COMPLETED", "targetUrl": oxia.url}).encode()
        source.put(MIGRATION_PATH, state, 0)
        flag = source.get(MIGRATION_PATH)
        assert flag is not None
        eventually(lambda: passed(flag.modified_ms))
        source.put(LEDGERS[20], b"by a bookie that did not follow", 0)
        target.put(LEDGERS[21], b"by a broker", version_of(target, LEDGERS[21]))
        target.create("/ledgers/00/0003", b"")

        # The target comes from the flag.
        code, report = verify("--source", source_url, "--differences", str(file))
    assert code == NOT_DONE
    assert (report["target"], report["phase"], report["switched_ms"]) == (oxia.url, "COMPLETED", flag.modified_ms)
    found = {row["path"]: row["class"] for row in pq.read_table(file).to_pylist()}
    assert found == {
        LEDGERS[7]: "missing",
        CURSORS[3]: "bytes",
        f"{LEDGERS[100]}/below": "extra",
        LEDGERS[20]: "written to the source after the switch",
        LEDGERS[21]: "changed after the switch",
        "/ledgers/00/0003": "changed after the switch",
    }
    code, report = verify("--source", source_url, "--versions", "required", "--max-reads-per-second", "5000")
    assert code == NOT_DONE
    assert report["counts"]["version"] >= copied - 3 * SHARDS - len(found)


def test_versions_that_were_kept_are_compared(source_url: str, zookeeper: LoneZooKeeper) -> None:
    target_url = empty_root(zookeeper.hosts)
    with closing(open_store(source_url)) as source, closing(open_store(target_url)) as target:
        copied = copy(source, target)
        code, report = verify("--source", source_url, "--target", target_url)
        assert (code, report["equal"], report["other_versions"]) == (0, copied, 0)
        target.put(LEDGERS[5], LEDGERS[5].encode(), 0)
        source.ephemeral_sequential(f"{CURSORS[0]}/lock-", b"")
    code, report = verify("--source", source_url, "--target", target_url)
    assert code == NOT_DONE
    assert [(row["class"], row["path"], row["source_version"], row["target_version"]) for row in report["first"]] == [
        ("version", LEDGERS[5], 0, 1)
    ]
