"""The process controller, on small programs instead of servers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bookwarden.errors import ServerError
from bookwarden.processes import identify
from bookwarden_dev.devcluster.processes.process import ServerProcess, ServerSpec
from servers.waiting import eventually

Make = Callable[..., ServerProcess]

SERVES = "import pathlib, signal; pathlib.Path('serves').touch(); signal.pause()"
IGNORES_TERM = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SERVES}"


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Make a controller for a Python program that is ready once it made the file `serves`."""
    made: list[ServerProcess] = []

    def build(
        program: str = SERVES, *, detached: bool = False, ready_seconds: float = 30.0, timer_slack_ms: int = 0
    ) -> ServerProcess:
        serves = tmp_path / "serves"

        def command() -> list[str]:
            serves.unlink(missing_ok=True)
            return [sys.executable, "-I", "-S", "-c", program]

        spec = ServerSpec(
            name="server",
            command=command,
            log_file=tmp_path / "logs" / "server.log",
            is_ready=lambda _started: serves.exists(),
            working_folder=tmp_path,
            detached=detached,
            ready_seconds=ready_seconds,
            stop_seconds=0.5,
            timer_slack_ms=timer_slack_ms,
        )
        made.append(ServerProcess(spec))
        return made[-1]

    yield build
    for server in made:
        server.kill()


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("detached", [False, True])
def test_it_starts_stops_and_starts_again(make: Make, detached: bool) -> None:
    server = make(detached=detached)
    server.start()
    first = server.pid
    assert server.is_ready()
    with pytest.raises(ServerError, match=f"already runs as process {first}"):
        server.start()
    server.stop()
    assert not server.is_running()
    with pytest.raises(ServerError, match="does not run"):
        _ = server.pid
    server.start()
    assert server.pid != first


def test_the_process_id_is_that_of_the_program_itself(make: Make) -> None:
    server = make()
    server.start()
    assert b"serves" in Path(f"/proc/{server.pid}/cmdline").read_bytes()
    assert b"guard.py" not in Path(f"/proc/{server.pid}/cmdline").read_bytes()


@pytest.mark.parametrize("detached", [False, True])
def test_its_timers_may_be_as_late_as_it_is_told(make: Make, detached: bool) -> None:
    server = make(detached=detached, timer_slack_ms=10)
    server.start()
    assert int(Path(f"/proc/{server.pid}/timerslack_ns").read_text()) == 10_000_000


def test_a_death_before_it_is_ready_is_told_at_once_with_the_log(make: Make) -> None:
    server = make("raise SystemExit('the disk is on fire')", ready_seconds=600)
    with pytest.raises(ServerError, match=r"ended before it was ready.*the disk is on fire"):
        server.start()


def test_a_program_that_does_not_exist_is_told(tmp_path: Path) -> None:
    # By its whole path: a PATH may name folders that may not be read, and that would be told.
    command = [str(tmp_path / "no-such")]
    server = ServerProcess(ServerSpec("server", lambda: command, tmp_path / "log", lambda _start: False, tmp_path))
    with pytest.raises(ServerError, match="no-such: No such file"):
        server.start()


def test_one_that_is_never_ready_fails_at_its_deadline(make: Make) -> None:
    server = make("import signal; signal.pause()", ready_seconds=0.3)
    with pytest.raises(ServerError, match="was not ready within"):
        server.start()


@pytest.mark.parametrize("detached", [False, True])
def test_one_that_ignores_sigterm_is_killed(make: Make, detached: bool) -> None:
    server = make(IGNORES_TERM, detached=detached)
    server.start()
    server.stop()
    assert not server.is_running()


def test_one_that_is_paused_can_be_stopped(make: Make) -> None:
    server = make()
    server.start()
    pid = server.pid
    with server.paused():
        eventually(lambda: state_of(pid) == "T")
    eventually(lambda: state_of(pid) != "T")
    server.pause()
    server.stop()
    assert not server.is_running()


def test_an_outage_ends_even_if_the_test_in_it_fails(make: Make) -> None:
    server = make()
    server.start()
    before = server.pid
    with pytest.raises(ZeroDivisionError), server.outage():  # noqa: PT012 -- what happens inside is the subject
        assert not server.is_running()
        _ = 1 / 0
    assert server.is_ready()
    assert server.pid != before


def test_a_program_is_run_to_its_end_and_its_failure_told(make: Make) -> None:
    make("pass").run(30)
    with pytest.raises(ServerError, match=r"server failed.*no good"):
        make("raise SystemExit('no good')").run(30)


def test_it_outlives_the_thread_that_started_it(make: Make) -> None:
    server = make()
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    assert server.is_ready()
    server.stop()


# What a shell starts in the background ignores SIGINT, and so does all that it starts.
PARENT = """
import pathlib, signal, sys, threading
signal.signal(signal.SIGINT, signal.default_int_handler)
from bookwarden_dev.devcluster.processes.process import ServerProcess, ServerSpec
home = pathlib.Path(sys.argv[1])
command = [sys.executable, "-I", "-S", "-c", "import signal; signal.pause()"]
detached = sys.argv[2] == "detached"
server = ServerProcess(ServerSpec("s", lambda: command, home / "log", lambda _start: True, home, detached=detached))
server.start()
if len(sys.argv) > 3:
    server.pause()
print(server.pid, flush=True)
threading.Event().wait()
"""


def orphan(tmp_path: Path, ending: signal.Signals, *arguments: str) -> int:
    """End a process that started a server; return the server's id."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path), *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert parent.stdout
    try:
        pid = int(parent.stdout.readline())
        assert identify(pid)
        parent.send_signal(ending)
        parent.wait(30)
    finally:
        parent.kill()
        parent.communicate()
    return pid


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("arguments", [["tied"], ["tied", "paused"]])
def test_it_ends_with_its_parent_however_that_ends(
    tmp_path: Path, ending: signal.Signals, arguments: list[str]
) -> None:
    pid = orphan(tmp_path, ending, *arguments)
    try:
        eventually(lambda: identify(pid) is None)
    finally:
        if identify(pid):
            os.kill(pid, signal.SIGKILL)


def test_a_detached_one_outlives_its_parent(tmp_path: Path) -> None:
    server = identify(orphan(tmp_path, signal.SIGKILL, "detached"))
    assert server
    assert server.signal(signal.SIGKILL)
    eventually(lambda: not server.is_alive())
