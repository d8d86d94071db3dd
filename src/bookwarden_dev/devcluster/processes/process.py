"""One server process: start, wait until ready, stop, kill, pause, resume, an outage of a given length."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bookwarden.errors import ServerError
from bookwarden.processes import ProcessIdentity, identify

_GUARD = str(Path(__file__).with_name("guard.py"))
_POLL_SECONDS = 0.1
_SHOWN_LOG_LINES = 5
_READ_LOG_BYTES = 100_000


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """The specification of a server process; its TMPDIR is ``temporary_folder``, which Java needs as an option."""

    name: str  #: For messages, and unique in its cluster.
    command: Callable[[], Sequence[str]]  #: Called at each start; writes the files that the command needs.
    log_file: Path  #: Takes its output.
    is_ready: Callable[[float], bool]  #: Whether it serves; gets the time of its start, in seconds since the epoch.
    working_folder: Path  #: Its current directory; made at the start.
    environment: Mapping[str, str] = field(default_factory=dict)  #: Added to this process's own.
    detached: bool = False  #: It outlives this process; any other is killed when this process ends, however it ends.
    ready_seconds: float = 180.0  #: Limit of a start.
    stop_seconds: float = 20.0  #: Limit of an orderly stop, after which it is killed.
    timer_slack_ms: int = 0  #: How late its timers may be, so that several end at once; 0: as the system has it.

    @property
    def temporary_folder(self) -> Path:
        """The folder of its temporary files; emptied at each start."""
        return temporary_folder(self.working_folder, self.name)


def temporary_folder(home: Path, name: str) -> Path:
    """Return the folder for temporary files of a server with this name and working folder."""
    return home / "tmp" / name


class ServerProcess:
    """The one handle on a server: at most one process of it runs at a time."""

    def __init__(
        self,
        spec: ServerSpec,
        identity: ProcessIdentity | None = None,
        started_at: float = 0.0,
        on_start: Callable[[], None] = lambda: None,
    ) -> None:
        """Make a handle; ``identity`` is a process of an earlier handle, ``on_start`` is called after each start."""
        self.spec = spec
        self._on_start = on_start
        self._identity = identity
        self._popen: subprocess.Popen[bytes] | None = None
        self._started_at = started_at
        self._log_begins = 0

    @property
    def name(self) -> str:
        """The server's name."""
        return self.spec.name

    @property
    def identity(self) -> ProcessIdentity | None:
        """The process that was started last, None if none was; `is_running` tells whether it still runs."""
        return self._identity

    @property
    def started_at(self) -> float:
        """The time of the last start, in seconds since the epoch."""
        return self._started_at

    @property
    def pid(self) -> int:
        """The process id of the running server; raise ServerError if it does not run."""
        if self._identity is None or not self.is_running():
            raise ServerError(f"{self.name} does not run: start it first")
        return self._identity.pid

    def is_running(self) -> bool:
        """Return whether the process runs (ready or not, paused or not)."""
        if self._popen is not None:
            return self._popen.poll() is None
        return self._identity is not None and self._identity.is_alive()

    @property
    def exit_code(self) -> int | None:
        """The exit code of this handle's process, negative for a signal; None while it runs or if detached."""
        return self._popen.poll() if self._popen is not None else None

    def start(self, *, wait: bool = True) -> None:
        """Start the process, and wait until it is ready if ``wait`` is true; raise ServerError if it fails."""
        if self.is_running():
            raise ServerError(f"{self.name} already runs as process {self.pid}: stop it first")
        # The files that killed processes could not remove, such as a Java's native libraries, would pile up.
        shutil.rmtree(self.spec.temporary_folder, ignore_errors=True)
        self.spec.temporary_folder.mkdir(parents=True, exist_ok=True)
        command = self.spec.command()
        self._started_at = time.time()
        self.spec.log_file.parent.mkdir(parents=True, exist_ok=True)
        with self.spec.log_file.open("ab") as log:
            self._log_begins = log.tell()
            if self.spec.detached:
                self._identity = self._launch_detached(command, log.fileno())
            else:
                self._popen = self._launch("tied", command, stdout=log.fileno(), stderr=log.fileno())
                self._identity = identify(self._popen.pid)
        self._on_start()
        if wait:
            self.wait_until_ready()

    def _launch(self, mode: str, command: Sequence[str], *, stdout: int, stderr: int) -> subprocess.Popen[bytes]:
        """Start the guard, and return when it has become, or started, the command."""
        read, write = os.pipe()
        with open(read, "rb") as started:
            numbers = (os.getpid(), write, self.spec.timer_slack_ms * 1_000_000)
            try:
                launched = subprocess.Popen(
                    [sys.executable, "-I", "-S", _GUARD, mode, *map(str, numbers), *command],
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    cwd=self.spec.working_folder,
                    env={**os.environ, "TMPDIR": str(self.spec.temporary_folder), **self.spec.environment},
                    pass_fds=[write],
                    start_new_session=True,
                )
            finally:
                os.close(write)
            started.read()
        return launched

    def _launch_detached(self, command: Sequence[str], log: int) -> ProcessIdentity:
        with self._launch("detached", command, stdout=subprocess.PIPE, stderr=log) as launcher:
            printed = launcher.stdout.readline() if launcher.stdout else b""
        identity = identify(int(printed)) if printed.strip().isdigit() else None
        if identity is None:
            raise ServerError(f"{self.name} ended at once; {self._log_says()}")
        return identity

    def wait_until_ready(self, seconds: float | None = None) -> None:
        """Wait until the server serves; raise ServerError as soon as it dies, or at the deadline."""
        limit = self.spec.ready_seconds if seconds is None else seconds
        deadline = time.monotonic() + limit
        while True:
            if not self.is_running():
                raise ServerError(f"{self.name} ended before it was ready; {self._log_says()}")
            if self.spec.is_ready(self._started_at):
                return
            if time.monotonic() > deadline:
                raise ServerError(f"{self.name} was not ready within {limit:.0f} s; {self._log_says()}")
            time.sleep(_POLL_SECONDS)

    def run(self, seconds: float) -> None:
        """Run a program that ends by itself, to its end; raise ServerError if it fails or takes longer."""
        self.start(wait=False)
        if not self._gone_within(seconds):
            self.kill()
            raise ServerError(f"{self.name} did not end within {seconds:.0f} s; {self._log_says()}")
        if self._popen is None or self._popen.returncode != 0:
            raise ServerError(f"{self.name} failed; {self._log_says()}")

    def is_ready(self) -> bool:
        """Return whether the server runs and serves."""
        return self.is_running() and self.spec.is_ready(self._started_at)

    def stop(self) -> None:
        """Ask the process to end, kill it if it does not within the spec's time; nothing if it does not run."""
        self._signal(signal.SIGTERM)
        # A paused process takes SIGTERM only once it runs again.
        self._signal(signal.SIGCONT)
        if not self._gone_within(self.spec.stop_seconds):
            self.kill()

    def kill(self) -> None:
        """Kill the process with SIGKILL, as a crash would; nothing if it does not run."""
        self._signal(signal.SIGKILL)
        if not self._gone_within(self.spec.stop_seconds):
            raise ServerError(f"{self.name} (process {self.pid}) does not end even when killed: look at it with ps")

    def pause(self) -> None:
        """Freeze the process (SIGSTOP): connections stay open and nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume a paused process."""
        self._signal(signal.SIGCONT)

    def restart(self) -> None:
        """Stop the server in order, then start it and wait until it is ready."""
        self.stop()
        self.start()

    @contextlib.contextmanager
    def outage(self, seconds: float = 0.0) -> Iterator[None]:
        """Kill the server for the body, and at least for some seconds; it is ready again when the block ends."""
        self.kill()
        end = time.monotonic() + seconds
        try:
            yield
            time.sleep(max(0.0, end - time.monotonic()))
        finally:
            self.start()

    @contextlib.contextmanager
    def paused(self, seconds: float = 0.0) -> Iterator[None]:
        """Freeze the server for the body, and at least for some seconds."""
        self.pause()
        end = time.monotonic() + seconds
        try:
            yield
            time.sleep(max(0.0, end - time.monotonic()))
        finally:
            self.resume()

    def log_since_start(self) -> str:
        """Return what this handle's last start logged, at most the last 100,000 bytes of it."""
        return self._log(self._log_begins)

    def log_tail(self, lines: int = 50) -> list[str]:
        """Return the last lines of the log that are not empty."""
        text = self._log(0)
        return [line for line in text.splitlines() if line.strip()][-lines:]

    def _log(self, begin: int) -> str:
        try:
            content = self.spec.log_file.read_bytes()[begin:]
        except FileNotFoundError:
            return ""
        return content[-_READ_LOG_BYTES:].decode("utf-8", errors="replace")

    def _log_says(self) -> str:
        # Without the frames of stack traces, which would hide what happened.
        lines = [line.strip() for line in self.log_tail(500) if not line.lstrip().startswith(("at ", "... "))]
        tail = " | ".join(lines[-_SHOWN_LOG_LINES:]) or "nothing"
        return f"its log {self.spec.log_file} ends with: {tail}"

    def _signal(self, number: signal.Signals) -> None:
        if self._popen is not None:
            # Popen checks for the end under a lock, so that a reaped process id is never signalled.
            self._popen.send_signal(number)
        elif self._identity is not None:
            self._identity.signal(number)

    def _gone_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.is_running():
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True
