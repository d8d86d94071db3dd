"""A migrated store verified by Spark's tasks: what they find is what one process finds, down to the last row."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from bookwarden.cli.main import cli
from bookwarden.cli.migration.differences import DIFFERENCES_FOUND
from bookwarden.config import load_settings
from bookwarden.devcluster.servers.oxia import OxiaServer
from bookwarden.errors import RefusedError
from bookwarden.leases import LeaseTimes
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.oxia.store import OxiaStore
from bookwarden.metastore.urls import open_store
from bookwarden.migration.comparison.findings import VersionRule
from bookwarden.migration.rehearsal.copying import Copy
from bookwarden.migration.rehearsal.marker import MARKER
from bookwarden.migration.rehearsal.scratch import claim
from bookwarden.pipelines.scan.files import ScanFolder
from bookwarden.pipelines.scan.stage import Stages
from bookwarden.pipelines.verification import store_comparison
from bookwarden.pipelines.verification.store_comparison import ComparedStores, StoreComparison
from servers.lone_zookeeper import LoneZooKeeper
from servers.metadata_tree import CURSORS, LEDGERS, filled_root

# The first start of an Oxia on a machine builds it.
pytestmark = [pytest.mark.servers, pytest.mark.timeout(1800)]

FLAT = [f"/managed-ledgers/t/n/persistent/topic-03/flat-{number:04d}" for number in range(1_500)]


@pytest.fixture(scope="module")
def stores(zookeeper: LoneZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A store and its damaged copy on Oxia."""
    oxia = OxiaServer(tmp_path_factory.mktemp("oxia"), shards=2)
    try:
        oxia.start()
        source_url = filled_root(zookeeper.hosts)
        with closing(open_store(source_url)) as source, closing(open_store(oxia.url)) as target:
            for path in FLAT:
                source.create(path, b"cursor")
            source.create("/available", b"")
            assert isinstance(target, OxiaStore)
            with claim(target, LeaseTimes()) as hold:
                assert not Copy(source, target, hold).run().not_copied
                delete(target, [(MARKER, hold.release())])
            damage(target)
            source.ephemeral_sequential("/available/bookie-", b"here")
            yield source_url, oxia.url
    finally:
        oxia.kill()


def delete(store: MetadataStore, pairs: list[tuple[str, int]]) -> None:
    assert {result.value for result in store.delete_many(pairs)} == {"deleted"}


def damage(target: OxiaStore) -> None:
    """Damage every part of the tree: its top, its largest directory, and leaves here and there."""
    gone = [*LEDGERS[5:180:60], *FLAT[100:1_500:450]]
    nodes = target.get_many(gone)
    delete(target, [(path, node.version) for path, node in zip(gone, nodes, strict=True) if node])
    for path in (*LEDGERS[9:180:40], *FLAT[7:1_500:333], CURSORS[2], "/empty"):
        node = target.get(path)
        assert node is not None
        target.put(path, node.value + b"!", node.version)
    for path in ("/new", "/new/below", f"{LEDGERS[2]}/below", f"{FLAT[3]}/a"):
        target.create(path, b"")


def plain(stores: tuple[str, str], file: Path, *arguments: str) -> dict[str, Any]:
    source, target = stores
    command = ["-o", "json", "metadata-migration", "verify", "--source", source, "--target", target, *arguments]
    result = CliRunner().invoke(cli, [*command, "--differences", str(file)])
    assert result.exit_code == DIFFERENCES_FOUND, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def rows_of(place: Path) -> list[dict[str, Any]]:
    return sorted(pq.read_table(place).to_pylist(), key=lambda row: str(row["path"]))


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make so many rounds of a small tree as a large one has."""
    monkeypatch.setattr(store_comparison, "_FIRST_NODES", 20)
    monkeypatch.setattr(store_comparison, "_NODES", 150)
    monkeypatch.setattr(store_comparison, "_MOST_ROWS_IN_PIECE", 200)


def comparison(spark: SparkSession, stores: tuple[str, str], folder: ScanFolder, rule: VersionRule) -> StoreComparison:
    compared = ComparedStores(load_settings(), *stores, None, rule, None)
    return StoreComparison(Stages(spark, folder), folder, compared, tasks=2)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("rule", [VersionRule.REQUIRED, VersionRule.IGNORED])
def test_tasks_find_what_one_process_finds(
    spark: SparkSession, stores: tuple[str, str], tmp_path: Path, rule: VersionRule
) -> None:
    file = tmp_path / "plain.parquet"
    expected = plain(stores, file, "--versions", rule.value)
    folder = ScanFolder(str(tmp_path / "verified"))
    report = comparison(spark, stores, folder, rule).run(keep=20)
    found = {kind.value: count for kind, count in report.counts.items()}
    assert found == expected["counts"]
    assert found["missing"] > 0
    assert found["bytes"] > 0
    assert found["extra"] > 0
    figures = (report.compared, report.equal, report.ephemeral, report.other_versions)
    assert figures == tuple(expected[name] for name in ("compared", "equal", "ephemeral", "other_versions"))
    assert rows_of(tmp_path / "verified" / "differences") == rows_of(file)
    for kind, first in report.first.items():
        assert len(first) == min(20, report.counts[kind])
    rounds = [path for path in (tmp_path / "verified").iterdir() if path.name.startswith("left-")]
    assert len(rounds) > 2
    assert max(len(folder.finished(path.name)) for path in rounds) > 5


@pytest.mark.usefixtures("small_pieces")
def test_a_comparison_that_was_stopped_goes_on_with_what_is_left(
    spark: SparkSession, stores: tuple[str, str], tmp_path: Path
) -> None:
    folder = ScanFolder(str(tmp_path / "verified"))
    whole = comparison(spark, stores, folder, VersionRule.IGNORED).run(keep=5)
    before = rows_of(tmp_path / "verified" / "differences")
    # As if it had been killed in the second round.
    rounds = sorted(path.name for path in (tmp_path / "verified").iterdir() if path.name.startswith("left-"))
    for name in rounds[2:]:
        folder.folder.remove(f"stages/{name}.json")
        for number in folder.finished(name):
            folder.folder.remove(f"{name}/piece-{number:05d}.parquet")
    kept = sorted(folder.finished(rounds[1]))[0]
    for number in folder.finished(rounds[1]) - {kept}:
        folder.folder.remove(f"{rounds[1]}/piece-{number:05d}.parquet")
    file = tmp_path / "verified" / rounds[1] / f"piece-{kept:05d}.parquet"
    written = file.stat().st_mtime_ns
    again = comparison(spark, stores, folder, VersionRule.IGNORED).run(keep=5)
    # Which nodes were left when enough were compared depends on the threads; what is found does not.
    assert (again.compared, again.equal, again.counts) == (whole.compared, whole.equal, whole.counts)
    assert file.stat().st_mtime_ns == written
    assert {row["path"] for row in rows_of(tmp_path / "verified" / "differences")} == {row["path"] for row in before}


def test_the_command_says_the_same_with_spark(stores: tuple[str, str], tmp_path: Path) -> None:
    expected = plain(stores, tmp_path / "plain.parquet")
    source, target = stores
    folder = tmp_path / "verified"
    command = [sys.executable, "-m", "bookwarden.cli", "-o", "json", "--set", "spark.master=local[2]"]
    command += ["metadata-migration", "verify", "--source", source, "--target", target, "--spark"]
    command += ["--differences", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == DIFFERENCES_FOUND, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("differences_file") == f"{folder}/differences"
    assert json.loads((folder / "result.json").read_text())["counts"] == expected["counts"]
    for one in (found, expected):
        one.pop("seconds")
        one["first"] = {(row["class"], row["path"]) for row in one["first"]}
    expected.pop("differences_file")
    assert found == expected
    assert rows_of(folder / "differences") == rows_of(tmp_path / "plain.parquet")
    for more, hint in ([], "has a verification already"), (["--resume"], "is finished"):
        again = subprocess.run([*command, *more], capture_output=True, text=True, check=False)
        assert again.returncode == RefusedError.exit_code
        assert hint in again.stderr


def test_the_job_says_the_same(stores: tuple[str, str], tmp_path: Path) -> None:
    expected = plain(stores, tmp_path / "plain.parquet")
    source, target = stores
    script = Path(__file__).parents[2] / "jobs" / "metadata_verify.py"
    command = [sys.executable, str(script), "--source", source, "--target", target, "--max-reads-per-second", "20000"]
    done = subprocess.run(
        [*command, "--differences", str(tmp_path / "verified")], capture_output=True, text=True, check=False
    )
    assert done.returncode == DIFFERENCES_FOUND, done.stderr
    result = json.loads((tmp_path / "verified" / "result.json").read_text())
    assert {name: result[name] for name in ("compared", "equal", "counts", "versions_kept", "clean")} == {
        name: expected[name] for name in ("compared", "equal", "counts", "versions_kept", "clean")
    }
    assert rows_of(tmp_path / "verified" / "differences") == rows_of(tmp_path / "plain.parquet")
