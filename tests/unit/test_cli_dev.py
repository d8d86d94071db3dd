"""Choosing the version of a development cluster: for a new one only."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bookwarden.cli.main import cli
from bookwarden.devcluster import ClusterOptions, ClusterPorts, DevCluster
from bookwarden.devcluster.state import ClusterState, write_state
from bookwarden.errors import RefusedError


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The versions of the clusters that a command would have started."""
    made: list[str] = []
    monkeypatch.setattr(DevCluster, "up", lambda cluster: made.append(cluster.options.pulsar))
    return made


def kept(home: Path, pulsar: str) -> Path:
    """Make a home of a cluster that does not run."""
    home.mkdir()
    write_state(home, ClusterState(ClusterPorts(1, 2, 3, 4), ClusterOptions(pulsar=pulsar), True, {}))
    return home


def up(home: Path, *options: str) -> Result:
    home.mkdir(exist_ok=True)
    return CliRunner().invoke(cli, ["dev", "up", "--home", str(home), *options])


def test_a_new_cluster_is_of_the_version_that_is_asked_for_or_the_default(tmp_path: Path, started: list[str]) -> None:
    up(tmp_path / "a")
    up(tmp_path / "b", "--pulsar", "4.2.4")
    assert started == ["4.0.8", "4.2.4"]


def test_a_cluster_keeps_its_version(tmp_path: Path, started: list[str]) -> None:
    home = kept(tmp_path / "home", "4.2.4")
    up(home)
    up(home, "--pulsar", "4.2.4")
    assert started == ["4.2.4", "4.2.4"]


def test_another_version_than_the_clusters_is_refused(tmp_path: Path, started: list[str]) -> None:
    home = kept(tmp_path / "home", "4.0.8")
    ended = up(home, "--pulsar", "4.2.4")
    assert ended.exit_code == RefusedError.exit_code
    assert "holds a cluster of Pulsar 4.0.8, not 4.2.4: choose another --home" in ended.output
    assert started == []
