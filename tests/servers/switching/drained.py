"""A former bookie cluster emptied by the commands of an operator, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from bookwarden.switching.moving.report import MORE_LATER
from servers.switching.site import SwitchingSite

_PATIENCE = 300
_PASSES = 4


def run(site: SwitchingSite, home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command; the settings name the cluster that is active."""
    active = site.servers.clusters[site.registry().active]
    sets = [f"metadata_store.bookkeeper_url={active.metadata_service_uri}", "spark.master=local[2]"]
    sets += [f"sweep.{name}={home / name}" for name in ("checkpoint", "outcomes", "journal")]
    options = [*site.options, *(word for setting in sets for word in ("--set", setting))]
    command = [sys.executable, "-m", "bookwarden.cli", "-o", "json", *options, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=False, cwd=home)


def done(site: SwitchingSite, home: Path, *words: str, exit_code: int = 0) -> dict[str, Any]:
    """Run a command that has to end so; return what it prints."""
    ended = run(site, home, *words)
    assert ended.returncode == exit_code, ended.stdout + ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def drain(site: SwitchingSite, home: Path, left: str, *words: str, exit_code: int = 0) -> dict[str, Any]:
    """Run a drain of this cluster."""
    return done(site, home, "bookie-clusters", "drain", "--from", left, *words, exit_code=exit_code)


def empty_and_unregister(site: SwitchingSite, home: Path, left: str) -> None:
    """Drain this cluster and sweep, until nothing is there and it is unregistered; do not wait for the window's end."""
    stays = site.registry().clusters.keys() - {left}
    for _ in range(_PASSES):
        ended = run(site, home, "bookie-clusters", "drain", "--from", left, "--yes", "--force", "--per-second", "20")
        if not ended.returncode:
            break
        assert ended.returncode == MORE_LATER, ended.stdout + ended.stderr
        swept = run(site, home, "sweep", "--once")
        assert swept.returncode == 0, swept.stdout + swept.stderr
    assert ended.returncode == 0, ended.stdout
    assert {cluster["name"] for cluster in json.loads(ended.stdout)["clusters"]} == stays
    assert not site.places().by_cluster[left]
