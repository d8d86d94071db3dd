"""`bookwarden dev`, whose servers outlive the command, and the sweep as an operator starts it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bookwarden.cli.main import cli
from bookwarden.config import load_settings
from bookwarden.errors import ServerError
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.wiring.cluster import Cluster
from bookwarden_dev.devcluster import DevCluster
from servers.class_archives import QUICK_BOOKWARDEN
from servers.population import Population

pytestmark = [pytest.mark.servers, pytest.mark.slow]

LEDGER = 3_000_000_000


def run(*arguments: str) -> Any:
    result = CliRunner().invoke(cli, ["-o", "json", *arguments])
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def run_apart(program: Sequence[str], *arguments: str) -> Any:
    """Run a command in a process of its own."""
    ended = subprocess.run([*program, "-o", "json", *arguments], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "dev"
    run("dev", "down", "--home", str(tmp_path / "dev"))


def test_a_cluster_comes_up_once_serves_all_commands_and_goes_down(home: Path) -> None:
    up = run_apart(QUICK_BOOKWARDEN, "dev", "up", "--home", str(home))
    assert [server["ready"] for server in up["servers"]] == [True, True, True]
    again = run("dev", "up", "--home", str(home))
    assert [server["pid"] for server in again["servers"]] == [server["pid"] for server in up["servers"]]
    assert run("dev", "status", "--home", str(home)) == again

    # A ledger of this moment is one that may not be listed yet.
    config = ("--config", up["settings_file"], "--set", "deletion.unlisted_grace_seconds=0")
    run(*config, "init")
    settings = load_settings(up["settings_file"])
    with Cluster(settings) as opened:
        Population(opened.store).ledger(LEDGER, ManagedLedgerHolder("public/default/persistent/gone"))
    run(*config, "mark", "ledger", str(LEDGER), "--yes")
    assert run(*config, "sweep", "--dry-run")["counts"] == {"would delete": 1}
    assert run_apart([sys.executable, "-m", "bookwarden.cli"], *config, "sweep", "--once")["drained"] is True
    assert run(*config, "ledger", "explain", str(LEDGER))["present"] is False
    assert run(*config, "inflight")["total"] == 0
    assert Path(settings.sweep.journal).is_relative_to(home)

    cluster = DevCluster.attach(home)
    with pytest.raises(ServerError, match="already runs"):
        cluster.up()
    cluster.bookie.kill()
    cluster.bookie.start()
    assert DevCluster.attach(home).bookie.pid == cluster.bookie.pid

    run("dev", "down", "--home", str(home))
    assert not any(server.is_running() for server in cluster.servers)
    assert [server["pid"] for server in run("dev", "status", "--home", str(home))["servers"]] == [None] * 3
