"""`bookwarden dev leak`: each kind of leak comes about on a cluster of `dev up`, and is found, marked and swept."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from bookwarden.cli.main import cli
from bookwarden_dev.commands import dev
from servers.class_archives import QUICK_BOOKWARDEN
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow]

KINDS = {"trim", "topic", "unlisted", "cursor", "schema"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("leak") / "dev"
    subprocess.run([*QUICK_BOOKWARDEN, "dev", "up", "--home", str(folder)], check=True, capture_output=True)
    yield folder
    run("dev", "down", "--home", str(folder))


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["-o", "json", *arguments])


def run(*arguments: str) -> Any:
    result = invoke(*arguments)
    assert result.exit_code == 0, (result.stderr, result.exception)
    return json.loads(result.stdout)


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
