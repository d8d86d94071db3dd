"""`bookwarden dev`: its servers outlive the command, and each kind of leak comes about, is found, marked and swept."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from bookwarden.cli.main import cli
from bookwarden.config import load_settings
from bookwarden.errors import ServerError
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.wiring.cluster import Cluster
from bookwarden_dev.commands import dev
from bookwarden_dev.devcluster import DevCluster
from servers.class_archives import QUICK_BOOKWARDEN
from servers.population import Population
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow]

KINDS = {"trim", "topic", "unlisted", "cursor", "schema"}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """What `dev up` tells in a process of its own, which its servers outlive."""
    folder = tmp_path_factory.mktemp("leak") / "dev"
    command = [*QUICK_BOOKWARDEN, "-o", "json", "dev", "up", "--home", str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    yield json.loads(ended.stdout)
    run("dev", "down", "--home", str(folder))


@pytest.fixture
def home(up: Any) -> Path:
    return Path(up["settings_file"]).parent


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["-o", "json", *arguments])


def run(*arguments: str) -> Any:
    result = invoke(*arguments)
    assert result.exit_code == 0, (result.stderr, result.exception)
    return json.loads(result.stdout)


@pytest.mark.usefixtures("spark")
def test_a_cluster_comes_up_once_and_serves_all_commands(up: Any, home: Path) -> None:
    assert [server["ready"] for server in up["servers"]] == [True, True, True]
    again = run("dev", "up", "--home", str(home))
    assert [server["pid"] for server in again["servers"]] == [server["pid"] for server in up["servers"]]
    assert run("dev", "status", "--home", str(home)) == again

    # A ledger of this moment is one that may not be listed yet.
    config = ("--config", up["settings_file"], "--set", "deletion.unlisted_grace_seconds=0")
    run(*config, "init")
    settings = load_settings(up["settings_file"])
    ledger = 3_000_000_000 + uuid4().int % 100_000_000
    with Cluster(settings) as opened:
        Population(opened.store).ledger(ledger, ManagedLedgerHolder("public/default/persistent/gone"))
    run(*config, "mark", "ledger", str(ledger), "--yes")
    assert run(*config, "sweep", "--dry-run")["counts"] == {"would delete": 1}
    assert run(*config, "sweep", "--once")["drained"] is True
    assert run(*config, "ledger", "explain", str(ledger))["present"] is False
    assert run(*config, "inflight")["total"] == 0
    assert Path(settings.sweep.journal).is_relative_to(home)

    cluster = DevCluster.attach(home)
    with pytest.raises(ServerError, match="already runs"):
        cluster.up()


def test_each_leak_is_found_by_the_commands_that_it_names_and_swept(
    home: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ("--config", str(home / "bookwarden.yaml"), "--set", "follow.grace_seconds=0.1")
    swept_at_once = ("--set", "deletion.unlisted_grace_seconds=0")
    run(*config, "init")
    # What is named and dropped between two looks follow does not see: it looks once while all is healthy.
    monkeypatch.setattr(dev, "_stay_healthy", lambda _: invoke(*config, "follow", "--once"))
    leaks = run("dev", "leak", "--home", str(home))["leaks"]
    monkeypatch.undo()
    made = {leak["kind"]: leak["ledgers"] for leak in leaks}
    assert set(made) == KINDS
    assert all(made.values())
    assert len(made["trim"]) == 2

    everything = {ledger for ledgers in made.values() for ledger in ledgers}
    invoke(*config, *swept_at_once, "orphans", "scan")
    (plan,) = run(*config, "orphans", "list")["plans"]
    shown = run(*config, "orphans", "plan", "show", plan["plan"]["plan_id"])
    assert {row["ledger_id"] for row in shown["candidates"]} == everything

    followed = {ledger for leak in leaks if "follow" in leak["found_by"] for ledger in leak["ledgers"]}

    def marked() -> set[int]:
        invoke(*config, "follow", "--once")
        return {row["ledger_id"] for row in run(*config, *swept_at_once, "sweep", "--dry-run")["outcomes"]}

    eventually(lambda: marked() >= followed, 60)
    assert marked() == followed
    assert {leak["kind"] for leak in leaks if "follow" in leak["found_by"]} == {"trim", "topic", "cursor"}

    run(*config, *swept_at_once, "orphans", "apply", "--plan", plan["plan"]["plan_id"], "--execute")

    def swept() -> bool:
        invoke(*config, *swept_at_once, "sweep", "--once")
        return not any(run(*config, "ledger", "explain", str(ledger))["present"] for ledger in sorted(everything))

    eventually(swept, 60)


def test_a_second_time_the_leaks_are_in_another_namespace(home: Path) -> None:
    (first,) = {
        leak["topic"].rpartition("/")[0] for leak in run("dev", "leak", "--home", str(home), "--pause", "0")["leaks"]
    }
    (second,) = {
        leak["topic"].rpartition("/")[0] for leak in run("dev", "leak", "--home", str(home), "--pause", "0")["leaks"]
    }
    assert first != second


def test_clusters_that_dev_up_did_not_make_or_that_settings_do_not_name_are_refused(home: Path, tmp_path: Path) -> None:
    assert invoke("dev", "leak", "--home", str(tmp_path)).exit_code == 4
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(home / "cluster.json", other)
    refused = invoke("dev", "leak", "--home", str(other))
    assert (refused.exit_code, "no cluster of `bookwarden dev up`" in refused.stderr) == (5, True)
    elsewhere = tmp_path / "production.yaml"
    elsewhere.write_text("metadata_store: {urls: ['zk:production:2181']}\n", encoding="utf-8")
    refused = invoke("--config", str(elsewhere), "dev", "leak", "--home", str(home))
    assert (refused.exit_code, "the settings are " in refused.stderr) == (5, True)
    set_elsewhere = ("--set", "metadata_store.urls=['zk:production:2181']")
    refused = invoke(*set_elsewhere, "dev", "leak", "--home", str(home))
    assert (refused.exit_code, "another metadata store" in refused.stderr) == (5, True)


def test_servers_that_were_started_again_go_down_by_the_command(home: Path) -> None:
    cluster = DevCluster.attach(home)
    cluster.bookie.kill()
    cluster.bookie.start()
    assert DevCluster.attach(home).bookie.pid == cluster.bookie.pid
    run("dev", "down", "--home", str(home))
    assert not any(server.is_running() for server in cluster.servers)
    assert [server["pid"] for server in run("dev", "status", "--home", str(home))["servers"]] == [None] * 3
