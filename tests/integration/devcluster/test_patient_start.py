"""Starting again what lost its ZooKeeper, on small programs instead of servers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bookwarden.errors import ServerError
from bookwarden_dev.devcluster.processes.process import ServerProcess, ServerSpec
from bookwarden_dev.devcluster.servers.readiness import PatientServer, PatientStart

Make = Callable[[str], ServerProcess]

LOSES = "raise SystemExit('KeeperErrorCode = ConnectionLoss')"
NO_LEADER = "raise SystemExit('KeeperErrorCode = NoNode for /loadbalance/leader')"
MISCONFIGURED = "print('zookeeperSessionExpiredPolicy=reconnect'); raise SystemExit('no such setting')"
SERVES = "import pathlib, signal; pathlib.Path('serves').touch(); signal.pause()"
# Each start appends a line here, so that a test sees how many there were.
STARTED = "import os; log = open('starts', 'a'); log.write('x'); log.close(); nth = os.path.getsize('starts')"


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Make a controller for a Python program that knows, which of its starts it is (``nth``)."""
    made: list[ServerProcess] = []

    def build(program: str) -> ServerProcess:
        spec = ServerSpec(
            name="program",
            command=lambda: [sys.executable, "-I", "-S", "-c", f"{STARTED}\n{program}"],
            log_file=tmp_path / "log",
            is_ready=lambda _started: (tmp_path / "serves").exists(),
            working_folder=tmp_path,
            stop_seconds=0.5,
        )
        made.append(ServerProcess(spec))
        return made[-1]

    yield build
    for server in made:
        server.kill()


@pytest.fixture
def starts(tmp_path: Path) -> Callable[[], int]:
    return lambda: (tmp_path / "starts").stat().st_size


def patient(said: list[str], *, zookeeper_runs: bool = True, at_once: float = 0.0) -> PatientStart:
    return PatientStart(lambda: zookeeper_runs, said.append, pause=0.0, at_once=at_once)


def test_a_program_that_fails_once_is_run_again_and_that_is_told(make: Make, starts: Callable[[], int]) -> None:
    said: list[str] = []
    patient(said).run(make(f"if nth == 1: {LOSES}"), 60)
    assert starts() == 2
    assert said == ["program ended too early; starting it again (2 of 3)"]


def test_a_program_that_always_fails_is_run_three_times_and_raises_with_its_log(
    make: Make, starts: Callable[[], int]
) -> None:
    with pytest.raises(ServerError, match=r"program failed.*no good, run 3$"):
        patient([]).run(make("raise SystemExit(f'no good, run {nth}')"), 60)
    assert starts() == 3


def test_nothing_is_run_again_without_a_zookeeper(make: Make, starts: Callable[[], int]) -> None:
    with pytest.raises(ServerError, match="ConnectionLoss"):
        patient([], zookeeper_runs=False).run(make(LOSES), 60)
    server = make(LOSES)
    server.start(wait=False)
    with pytest.raises(ServerError, match="ConnectionLoss"):
        patient([], zookeeper_runs=False).wait_until_ready(server)
    assert starts() == 2


def test_a_program_is_not_run_again_when_its_time_is_over(make: Make, starts: Callable[[], int]) -> None:
    with pytest.raises(ServerError, match="did not end within 1 s"):
        patient([]).run(make("import signal; signal.pause()"), 1.0)
    assert starts() == 1


@pytest.mark.parametrize("ends", [LOSES, NO_LEADER], ids=["session", "leader"])
def test_a_server_that_lost_its_session_or_leader_is_started_again_and_that_is_told(
    make: Make, starts: Callable[[], int], ends: str
) -> None:
    said: list[str] = []
    server = make(f"if nth == 1: {ends}\n{SERVES}")
    server.start(wait=False)
    patient(said).wait_until_ready(server)
    assert server.is_ready()
    assert starts() == 2
    assert said == ["program ended too early; starting it again (2 of 3)"]


def test_a_patient_server_is_started_again_by_whoever_starts_it(make: Make, starts: Callable[[], int]) -> None:
    said: list[str] = []
    server = PatientServer(patient(said), make(f"if nth == 1: {NO_LEADER}\n{SERVES}").spec)
    try:
        server.start()
        assert server.is_ready()
        assert (starts(), len(said)) == (2, 1)
    finally:
        server.kill()


def test_a_server_that_loses_its_session_at_each_start_raises_with_its_log(
    make: Make, starts: Callable[[], int]
) -> None:
    server = make(LOSES)
    server.start(wait=False)
    with pytest.raises(ServerError, match=r"ended before it was ready.*ConnectionLoss"):
        patient([]).wait_until_ready(server)
    assert starts() == 3


def test_a_server_that_ends_at_once_twice_in_a_row_is_not_started_a_third_time(
    make: Make, starts: Callable[[], int]
) -> None:
    server = make(LOSES)
    server.start(wait=False)
    with pytest.raises(ServerError, match="ConnectionLoss"):
        patient([], at_once=60.0).wait_until_ready(server)
    assert starts() == 2


def test_a_server_that_ends_for_another_reason_is_told_at_once_though_an_earlier_start_lost_its_session(
    make: Make, starts: Callable[[], int], tmp_path: Path
) -> None:
    (tmp_path / "log").write_text("KeeperErrorCode = ConnectionLoss\n")
    server = make(MISCONFIGURED)
    server.start(wait=False)
    with pytest.raises(ServerError, match="no such setting"):
        patient([]).wait_until_ready(server)
    assert starts() == 1
