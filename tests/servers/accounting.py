"""What a test run cost: seconds and processor time of each file, processor time by kind of process, servers started.

Every process that inherits the run's mark in its environment belongs to the run. They are sampled from /proc once a
second, so that what a process used in its last second is not counted. Source of the fields: proc(5).
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

# Names a file for the cost of each test.
_TESTS: Final = "COST_OF_TESTS"
# Not with BOOKWARDEN_ in front: that would be a setting.
_MARK: Final = "TEST_RUN_OF_BOOKWARDEN"
# An xdist worker's name; it sets it in its own environment, for what it starts.
_WORKER: Final = b"PYTEST_XDIST_WORKER="
_INTERVAL_S: Final = 1.0
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
# What the command line of a process holds, for each kind; the first that fits. A guard becomes the server it names.
_COMMANDS: Final = "commands"
_PYTEST: Final = "pytest"
_KINDS: Final = {
    _COMMANDS: ("guard.py ",),
    "broker": ("org.apache.pulsar.PulsarBrokerStarter",),
    "bookie": ("org.apache.bookkeeper.server.Main",),
    "ZooKeeper": ("ZooKeeperServerMain", "QuorumPeerMain"),
    "metadata setup": ("PulsarClusterMetadataSetup", "BookieShell"),
    "Spark's launcher": ("org.apache.spark.launcher.",),
    "Spark (Java)": ("org.apache.spark.",),
    "other Java": ("/java ", "java "),
    "Oxia": ("/oxia ",),
    "Spark (Python)": ("-m pyspark.",),
    _PYTEST: ("-m pytest ", "/bin/pytest ", "import sys;exec(eval(sys.stdin.readline()))"),
}
_SERVERS: Final = ("broker", "bookie", "ZooKeeper", "Oxia", "metadata setup", "Spark (Java)")


@dataclass
class _Process:
    worker: str  #: The name of the one whose tests started it; of a worker itself, its id.
    kind: str = _COMMANDS
    ticks: int = 0


@dataclass
class _Cost:
    seconds: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)  #: Ticks by kind of process.
    brokers: int = 0

    @property
    def ticks(self) -> int:
        return self.kinds.total()


class Account:
    """The account of a run from here to `end`, kept by the process that prints pytest's summary."""

    def __init__(self) -> None:
        self._files = defaultdict[str, _Cost](_Cost)
        self._tests = defaultdict[str, _Cost](_Cost)
        # By worker, since its last test ended.
        self._since = defaultdict[str, _Cost](_Cost)
        self._processes: dict[tuple[int, str], _Process] = {}
        self._others: set[tuple[int, str]] = set()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._machine, self._begin = _machine_ticks(), time.monotonic()
        self._idle, self._wall_s = 0.0, 0.0
        os.environ[_MARK] = f"{os.getpid()}-{time.time_ns()}"
        self._mark = f"{_MARK}={os.environ[_MARK]}".encode()
        self._thread = threading.Thread(target=self._keep, name="accounting", daemon=True)
        self._thread.start()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a step of a test: what its worker, and all that its tests started, used since the step before.

        The steps of a test that may be tried again are reported together.
        """
        costs = (self._files[report.nodeid.partition("::")[0]], self._tests[report.nodeid])
        node = getattr(report, "node", None)
        workers = ("", str(os.getpid())) if node is None else (node.gateway.id, str(node.gateway._io.popen.pid))
        with self._lock:
            since = [self._since.pop(worker, _Cost()) for worker in workers]
        for cost in costs:
            cost.seconds += report.duration
            for each in since:
                cost.kinds += each.kinds
            cost.brokers += sum(each.brokers for each in since)

    def end(self) -> None:
        """End the account; a second call does nothing."""
        if not self._ended.is_set():
            self._ended.set()
            self._thread.join()
            busy, total = (now - then for now, then in zip(_machine_ticks(), self._machine, strict=True))
            self._idle, self._wall_s = 1 - busy / max(total, 1), time.monotonic() - self._begin

    def _keep(self) -> None:
        while not self._ended.wait(_INTERVAL_S):
            for folder in Path("/proc").glob("[0-9]*"):
                # A process may end while it is read.
                with contextlib.suppress(OSError):
                    self._sample(folder)

    def _sample(self, folder: Path) -> None:
        fields = (folder / "stat").read_text("ascii", "replace").rpartition(")")[2].split()
        key, ticks = (int(folder.name), fields[19]), int(fields[11]) + int(fields[12])
        if key in self._others:
            return
        process = self._processes.get(key)
        if process is None:
            environment = (folder / "environ").read_bytes().split(b"\0")
            if self._mark not in environment and key[0] != os.getpid():
                self._others.add(key)
                return
            named = next((each for each in environment if each.startswith(_WORKER)), _WORKER)
            process = self._processes[key] = _Process(named.removeprefix(_WORKER).decode())
        kind = process.kind
        if kind == _COMMANDS:
            process.kind = _kind_of((folder / "cmdline").read_bytes())
            if process.kind == _PYTEST and not process.worker:
                process.worker = folder.name
        with self._lock:
            since = self._since[process.worker]
            since.kinds[process.kind] += ticks - process.ticks
            since.brokers += process.kind != kind and process.kind == "broker"
        process.ticks = ticks

    def lines(self, slowest: int = 10) -> list[str]:
        """Write the account: the slowest files, processor time by kind of process, servers started; after `end`."""
        if _TESTS in os.environ:
            Path(os.environ[_TESTS]).write_text("\n".join(_table(self._tests, kinds=True)), encoding="utf-8")
        told = [" wall time  processor  brokers"]
        told += _table(self._files)[:slowest]
        ticks, processes = Counter[str](), Counter[str]()
        for process in self._processes.values():
            ticks[process.kind] += process.ticks
            processes[process.kind] += 1
        total = max(1, ticks.total())
        minutes, idle = self._wall_s / 60, self._idle
        told.append(f"processor time {total / _TICKS_PER_S:.0f} s in {minutes:.1f} minutes, processors {idle:.0%} idle")
        told += [f"{used / _TICKS_PER_S:7.0f} s  {used / total:4.0%}  {kind}" for kind, used in ticks.most_common()]
        told.append("started: " + ", ".join(f"{processes[kind]} {kind}" for kind in _SERVERS if processes[kind]))
        return told


def _table(costs: Mapping[str, _Cost], *, kinds: bool = False) -> list[str]:
    def row(name: str, of: _Cost) -> str:
        line = f"{of.seconds:8.0f} s {of.ticks / _TICKS_PER_S:8.0f} s {of.brokers:8}  {name}"
        by_kind = of.kinds.most_common() if kinds else ()
        return line + "".join(f"  {kind} {ticks / _TICKS_PER_S:.1f}" for kind, ticks in by_kind if ticks)

    return [row(*each) for each in sorted(costs.items(), key=lambda each: each[1].seconds, reverse=True)]


def _kind_of(command: bytes) -> str:
    line = command.replace(b"\0", b" ").decode("utf-8", "replace")
    return next((kind for kind, words in _KINDS.items() if any(word in line for word in words)), _COMMANDS)


def _machine_ticks() -> tuple[int, int]:
    """Read the ticks in which the machine's processors were busy, and all; (0, 0) where there is no /proc."""
    try:
        with open("/proc/stat", encoding="ascii") as stat:
            ticks = [int(word) for word in stat.readline().split()[1:9]]
    except OSError:
        return 0, 0
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)
