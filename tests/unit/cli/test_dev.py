"""Choosing what a development cluster is of, for a new one only, and what stands beside it, at any time."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bookwarden.cli.main import cli
from bookwarden.errors import RefusedError, ServerError
from bookwarden_dev.devcluster import ClusterOptions, ClusterPorts, DevCluster, ServerProcess, cluster
from bookwarden_dev.devcluster.releases.cache import Progress
from bookwarden_dev.devcluster.state import ClusterState, read_state, write_state


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The versions of the clusters that a command would have started."""
    made: list[str] = []
    monkeypatch.setattr(DevCluster, "up", lambda cluster: made.append(cluster.options.pulsar))
    return made


def kept(home: Path, pulsar: str, metadata: str = "zookeeper") -> Path:
    """Make a home of a cluster that does not run."""
    home.mkdir()
    options = ClusterOptions(pulsar=pulsar, metadata=metadata)
    write_state(home, ClusterState(ClusterPorts(1, 2, 3, 4), options, True, {}))
    return home


class Running:
    """Servers by name as if they were processes; what the handles did with them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self.names = set(names)
        self.calls: list[str] = []
        monkeypatch.setattr(ServerProcess, "is_running", lambda server: server.name in self.names)
        monkeypatch.setattr(ServerProcess, "pid", 4711)
        monkeypatch.setattr(ServerProcess, "is_ready", lambda server: server.name in self.names)
        monkeypatch.setattr(ServerProcess, "wait_until_ready", lambda server: None)
        monkeypatch.setattr(ServerProcess, "start", lambda server, *, wait=True: self.start(server))
        monkeypatch.setattr(ServerProcess, "stop", lambda server: self.stop(server))

    def start(self, server: ServerProcess) -> None:
        self.names.add(server.name)
        self.calls.append(f"start {server.name}")
        server._on_start()

    def stop(self, server: ServerProcess) -> None:
        self.names.discard(server.name)
        self.calls.append(f"stop {server.name}")


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


def test_a_new_cluster_keeps_its_metadata_where_it_is_asked_to_and_stays_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, ...]] = []
    monkeypatch.setattr(DevCluster, "up", lambda cluster: made.append(cluster.options.servers))
    ended = up(tmp_path / "new", "--metadata", "oxia")
    assert ended.exit_code == 0, ended.output
    home = kept(tmp_path / "home", "4.2.4", "oxia")
    up(home)
    assert made == [("oxia", "bookie", "broker")] * 2
    ended = up(home, "--metadata", "zookeeper")
    assert ended.exit_code == RefusedError.exit_code
    assert "holds a cluster with its metadata in oxia, not zookeeper: choose another --home" in ended.output
    assert len(made) == 2


def test_oxia_comes_beside_a_cluster_that_runs_and_leaves_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = kept(tmp_path / "home", "4.2.4")
    running = Running(monkeypatch, "zookeeper", "bookie", "broker")
    up(home)
    assert running.calls == []
    ended = up(home, "--with", "oxia")
    assert ended.exit_code == 0, ended.output
    assert running.calls == ["start oxia"]
    # From now on the cluster has it, at the same place.
    state = read_state(home)
    assert state is not None
    assert (state.ports.zookeeper, state.ports.web) == (1, 4)
    assert state.options.servers == ("zookeeper", "oxia", "bookie", "broker")
    listed = CliRunner().invoke(cli, ["dev", "status", "--home", str(home)]).output
    assert f"oxia://127.0.0.1:{state.ports.oxia}/default" in listed
    up(home)
    assert running.calls == ["start oxia"]


def test_all_of_a_cluster_is_started_anew_where_more_is_gone_than_what_stands_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = kept(tmp_path / "home", "4.0.8")
    running = Running(monkeypatch, "zookeeper", "bookie")
    up(home, "--with", "oxia")
    assert running.calls == [
        *(f"stop {name}" for name in ("broker", "bookie", "oxia", "zookeeper")),
        *(f"start {name}" for name in ("zookeeper", "oxia", "bookie", "broker")),
    ]


def test_what_has_to_be_fetched_is_said_before_a_server_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(version: str, progress: Progress) -> None:
        progress(f"fetching Pulsar {version}")

    def fail(_server: ServerProcess) -> None:
        raise ServerError("the first server does not start")

    monkeypatch.setattr(cluster, "load_runtime", fetch)
    monkeypatch.setattr(ServerProcess, "start", fail)
    result = up(tmp_path / "dev")
    assert (result.exit_code, result.stdout) == (ServerError.exit_code, "")
    assert [line.split()[0] for line in result.stderr.splitlines()] == ["fetching", "starting", "bookwarden:"]
