"""The orphan scan with its folder in a real S3 server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from bookwarden.cli.main import cli
from bookwarden.errors import NotFoundError, RefusedError
from bookwarden.ledgers.kinds import CursorHolder
from bookwarden.pipelines.folders import Folder
from bookwarden.pipelines.scan import lock as scan_lock
from bookwarden.pipelines.scan.folder import scan_folder
from bookwarden.pipelines.scan.lock import alone
from bookwarden.pipelines.streams.outcome_table import OutcomeTable, beat_batch
from servers.lone_zookeeper import LoneZooKeeper
from servers.object_store import ACCESS_KEY, REGION, SECRET_KEY, ObjectStore
from servers.scanned_site import ScannedSite, broker_telling_the_time

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(900)]

BUCKET = "scans"
ORDERS = "t/n/persistent/orders"


@pytest.fixture(scope="module")
def server(object_store: ObjectStore) -> ObjectStore:
    object_store.create_bucket(BUCKET)
    return object_store


@pytest.fixture
def server_in_environment(server: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """The server, where clients of S3 look for it."""
    for name, value in {
        "AWS_ENDPOINT_URL": server.endpoint,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": REGION,
    }.items():
        monkeypatch.setenv(name, value)
    return server


@pytest.fixture
def site(server_in_environment: ObjectStore, quiet_zookeeper: LoneZooKeeper, tmp_path: Path) -> Iterator[ScannedSite]:
    with (
        broker_telling_the_time(60) as admin_url,
        closing(ScannedSite(quiet_zookeeper.hosts, f"/s-{uuid4().hex}", admin_url, tmp_path / "orphans")) as made,
    ):
        made.overrides["orphans.folder"] = f"s3://{BUCKET}/{uuid4().hex}/orphans"
        yield made


def options_of(overrides: dict[str, str]) -> list[str]:
    return [word for name, value in overrides.items() for word in ("--set", f"{name}={value}")]


def test_a_whole_scan_with_its_folder_in_a_bucket(site: ScannedSite, server: ObjectStore) -> None:
    site.topic(ORDERS, [1, 2, 3])
    site.ledgers(CursorHolder(ORDERS, "gone"), [7])
    # What the scan lets Spark join: an owner of another cluster, and a ledger that is lost.
    site.ledgers(CursorHolder("elsewhere/n/persistent/x", "c"), [8])
    site.remove(3)
    command = [sys.executable, "-m", "bookwarden.cli", *options_of({**site.overrides, "spark.master": "local[2]"})]
    ended = subprocess.run(
        [*command, "-o", "json", "orphans", "scan"], capture_output=True, text=True, timeout=600, env=os.environ
    )
    assert ended.returncode == 21, ended.stderr[-3000:]
    found = json.loads(ended.stdout)
    plan_id = found["plan"]["plan_id"]
    assert [one["ledger_id"] for one in found["summary"]["missing"]] == [3]
    assert [one["ledger_ids"] for one in found["summary"]["foreign"]] == [[8]]

    # By the name that Hadoop has for it as well.
    for scheme in ("s3", "s3a"):
        overrides = {**site.overrides, "orphans.folder": site.overrides["orphans.folder"].replace("s3", scheme, 1)}
        shown_by = CliRunner().invoke(cli, [*options_of(overrides), "-o", "json", "orphans", "plan", "show"])
        shown = json.loads(shown_by.stdout)
        assert shown["plan"]["plan_id"] == plan_id
        assert [one["ledger_id"] for one in shown["candidates"]] == [7]
    names = {key.rpartition("/")[2] for key in server.keys(BUCKET)}
    assert {"scan.json", "manifest.json", "piece-00000.parquet"} <= names
    # No lock is left, and nothing that was written halfway.
    assert not [name for name in names if name.startswith(("lock", "_"))]


def test_a_scan_in_a_bucket_is_one_processs_alone(
    site: ScannedSite, server: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = scan_folder(site.settings, "s1")
    with pytest.raises(NotFoundError):
        folder.header()
    with alone(folder.folder), pytest.raises(RefusedError, match="works on s3://"), alone(folder.folder):
        pytest.fail("both have it")
    assert folder.folder.files() == []
    monkeypatch.setattr(scan_lock, "DEAD_AFTER_SECONDS", 0.0)
    with pytest.raises(RefusedError, match="took over"), alone(folder.folder), alone(folder.folder):
        pass


def test_a_file_in_a_bucket_that_was_written_halfway_is_not_there(server_in_environment: ObjectStore) -> None:
    folder = Folder(f"s3://{BUCKET}/{uuid4().hex}")

    def break_off(sink: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        folder.write("plans/p/manifest.json", break_off)
    assert (folder.exists("plans/p/manifest.json"), folder.files("plans/p")) == (False, [])
    folder.write_json("plans/p/manifest.json", 1)
    folder.write_json("plans/p/manifest.json", 2)
    assert (folder.read_json("plans/p/manifest.json"), folder.folders("plans")) == (2, ["p"])


def test_the_outcome_table_is_kept_in_a_bucket_under_hadoops_name_of_it_too(server_in_environment: ObjectStore) -> None:
    location = f"s3a://{BUCKET}/{uuid4().hex}/outcomes"
    one_row = pa.Table.from_batches([beat_batch("")])
    table = OutcomeTable(location, merge_after=2)
    query = str(uuid4())
    for batch in (0, 1, 2):
        table.write(one_row, query, batch)
    OutcomeTable(location).write(one_row, query, 2)
    folder = Folder(location)
    names = [name.rpartition("/")[2] for name in folder.all_files()]
    assert names == [f"{query}-000000000000-000000000001.parquet", f"{query}-000000000002-000000000002.parquet"]
    assert [pq.ParquetFile(folder.open(name)).metadata.num_rows for name in folder.all_files()] == [2, 1]
