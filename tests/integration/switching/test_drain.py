"""A former bookie cluster is emptied and unregistered under load; its bookies are stopped, and nothing is missed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bookwarden.switching.moving.report import MORE_LATER
from bookwarden.switching.order import Phase
from servers.switching.site import SwitchingSite, switching_site
from servers.switching.watched_load import watched_load

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(900)]

PATIENCE = 300
PASSES = 4


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwitchingSite]:
    with switching_site(tmp_path_factory.mktemp("drain"), ("4.0.8",)) as running:
        yield running


def run(site: SwitchingSite, home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own; the settings name the cluster that stays."""
    sets = ["metadata_store.ledgers_root=/bookies-b", "spark.master=local[2]"]
    sets += [f"sweep.{name}={home / name}" for name in ("checkpoint", "outcomes", "journal")]
    options = [*site.options, *(word for setting in sets for word in ("--set", setting))]
    command = [sys.executable, "-m", "bookwarden.cli", "-o", "json", *options, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=home)


def drain(site: SwitchingSite, home: Path, *words: str, exit_code: int = 0) -> dict[str, Any]:
    ended = run(site, home, "bookie-clusters", "drain", "--from", "a", *words)
    assert ended.returncode == exit_code, ended.stdout + ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def test_a_cluster_is_emptied_under_load_and_leaves(site: SwitchingSite, tmp_path: Path) -> None:
    site.register("b")
    site.wait_until_followed()
    with watched_load(site) as load:
        load.goes_on()
        assert site.command("switch", "--target", "b", "--yes")["phase"] == "DONE"
        load.goes_on()
        assert run(site, tmp_path, "init").returncode == 0
        before = drain(site, tmp_path, "--dry-run")
        assert before["ledgers"] > before["open"] >= len(load.topics)
        assert before["mayGo"] == 0
        # Within the rollback window nothing is marked; everything else is done.
        first = drain(site, tmp_path, "--yes", "--per-second", "20", exit_code=MORE_LATER)
        assert (first["open"], first["marked"], first["failed"]) == (0, 0, 0)
        assert first["mayGo"] >= before["ledgers"] // 2
        for _ in range(PASSES):
            left = drain(site, tmp_path, "--dry-run")
            if not left["ledgers"]:
                break
            drain(site, tmp_path, "--yes", "--force", "--per-second", "20", exit_code=MORE_LATER)
            swept = run(site, tmp_path, "sweep", "--once")
            assert swept.returncode == 0, swept.stdout + swept.stderr
        assert left["ledgers"] == 0, left
        assert [cluster["name"] for cluster in drain(site, tmp_path, "--yes")["clusters"]] == ["b"]
        for bookie in site.servers.clusters["a"].processes:
            bookie.kill()
        load.goes_on()
        # Brokers that find everything anew.
        site.kill_brokers()
        load.goes_on()
        found = load.end()
    # One cluster is left, so that nothing is to be switched.
    assert found.harm == {"phase": Phase.NOT_REGISTERED}
    assert found.ledgers.get("a", 0) == 0
