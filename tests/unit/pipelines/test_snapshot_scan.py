"""A scan of a snapshot is of that one file, and its ledgers are as old as the file says."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks.zookeeper_files import node, record, set_data, write_log, write_snapshot

from bookwarden.bookie_clusters.registry import serialize_registry
from bookwarden.config import Settings, load_settings
from bookwarden.errors import ConfigError, RefusedError
from bookwarden.pipelines.scan.operation import OrphanScan
from bookwarden.wiring.scan import ScanSources
from unit.switching.two_bookie_clusters import REGISTRY

LATEST_MS = 1_700_000_001_000


@pytest.fixture
def url(tmp_path: Path) -> str:
    (tmp_path / "zk").mkdir()
    file = tmp_path / "zk/snapshot.10"
    values = {"/pulsar": b"", "/pulsar/ledgers": b"", "/pulsar/ledgers/INSTANCEID": b"the-cluster"}
    nodes = [node(path, value, created_ms=LATEST_MS - 5) for path, value in {"": b"", **values}.items()]
    write_snapshot(file, [*nodes, node("/pulsar/managed-ledgers", created_ms=LATEST_MS)], last_zxid=0x10)
    return f"zk-snapshot:{file}?work={tmp_path / 'work'}"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    orphans = {"orphans.folder": str(tmp_path / "orphans"), "orphans.max_reads_per_second": "1"}
    return load_settings(overrides={"metadata_store.urls": "['zk:127.0.0.1:1/pulsar']", **orphans})


def test_a_snapshot_is_read_below_the_chroot_with_its_own_time_and_without_a_limit(
    settings: Settings, url: str
) -> None:
    with ScanSources(settings, url, max_reads_per_second=0.001) as context:
        assert context.snapshot_ms == LATEST_MS
        assert context.listing.pieces() == []
        assert {piece.kind for piece in context.cluster.references.pieces.pieces()} == {"logs"}
        assert context.plan_cluster.identity().instance_id == "the-cluster"


def test_a_snapshot_without_its_logs_is_known_not_to_be_of_one_moment(
    settings: Settings, url: str, tmp_path: Path
) -> None:
    with ScanSources(settings, url) as context:
        assert context.fuzzy is None
    renamed = (tmp_path / "zk/snapshot.10").rename(tmp_path / "copied")
    with ScanSources(settings, f"zk-snapshot:{renamed}?fuzzy=yes") as context:
        assert context.fuzzy is not None
        assert context.fuzzy.startswith(f"{renamed}: its name is not that which the server gave it")


def test_a_scan_is_not_resumed_on_another_snapshot(settings: Settings, url: str, tmp_path: Path) -> None:
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=1))
    scan = OrphanScan(spark, settings)
    scan_id = scan.begin(url)
    write_log(tmp_path / "zk/log.11", [record(0x11, set_data("/pulsar", b"x", 1), time_ms=LATEST_MS + 7)])
    with pytest.raises(RefusedError, match=rf"begun on zk-snapshot:.*{LATEST_MS} ms.*{LATEST_MS + 7} ms.*new scan"):
        scan.run(scan_id)


def test_a_snapshot_is_refused_where_several_bookie_clusters_are_registered(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "zk").mkdir()
    values = {"/ledgers/INSTANCEID": b"instance-a", "/bookies-b/INSTANCEID": b"instance-b"}
    values |= {"/bookwarden/bookie-clusters": serialize_registry(REGISTRY)}
    parents = ["", *(f"/pulsar{path.rpartition('/')[0]}" for path in ["/x", *values])]
    nodes = [node(path, created_ms=LATEST_MS) for path in parents]
    nodes += [node(f"/pulsar{path}", value, created_ms=LATEST_MS) for path, value in values.items()]
    write_snapshot(tmp_path / "zk/snapshot.10", nodes, last_zxid=0x10)
    url = f"zk-snapshot:{tmp_path / 'zk/snapshot.10'}?work={tmp_path / 'work'}"
    with ScanSources(settings, url) as context:
        assert context.cluster.bookkeeper.clusters.names() == {"a", "b"}
        with pytest.raises(RefusedError, match="bookie clusters a, b are registered"):
            context.plan_cluster.prove_roots()


def test_a_snapshot_of_a_zookeeper_is_refused_where_the_metadata_is_in_oxia(url: str) -> None:
    settings = load_settings(overrides={"metadata_store.urls": "['oxia://127.0.0.1:1/default']"})
    with pytest.raises(
        ConfigError, match=r"is a snapshot of a ZooKeeper, and the metadata is in oxia://.*scan it live"
    ):
        ScanSources(settings, url)
