"""Sweeps and scans in processes of their own, and what those processes take of the machine."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from bookwarden.processes import descendants

_SAMPLE_SECONDS = 0.5
_STOP_SECONDS = 60.0
_TICKS = os.sysconf("SC_CLK_TCK")
MAPPED = "mapped files"


@dataclass(frozen=True, slots=True)
class Usage:
    """What processes took, by kind: the most memory held together (PSS, bytes), and processor seconds.

    Pages of mapped files, as of a snapshot, are a kind of their own: the system takes them back when it needs them.
    """

    memory: dict[str, int]
    cpu: dict[str, float]

    @property
    def peak_bytes(self) -> int:
        """The most memory that all held at once."""
        return sum(self.memory.values())

    @property
    def cpu_seconds(self) -> float:
        """The processor time of all."""
        return sum(self.cpu.values())


class DriverProcess:
    """The driver of a sweep or scan, started and ready; it ends with this process."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._child = child

    @property
    def pid(self) -> int:
        """The driver's Python process."""
        return self._child.pid

    def ask(self, order: str) -> Any:
        """Let it carry out an order; return what it reports."""
        self.write(order)
        return self.answer()

    def write(self, order: str) -> None:
        """Give it an order."""
        assert self._child.stdin is not None
        self._child.stdin.write(order + "\n")
        self._child.stdin.flush()

    def answer(self) -> Any:
        """Wait for the next line that the driver reports."""
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise RuntimeError(f"the driver ended with exit code {self._child.wait()}; its log is above")
        return json.loads(line)

    def stop(self) -> None:
        """End it as an operator would, by force if that takes too long."""
        if self._child.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._child.stdin.close()
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM)
        try:
            self._child.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()


class SweepProcess(DriverProcess):
    """The driver of a sweep."""

    def drain(self) -> float:
        """Sweep what is due; return the seconds from the start of the query to its end, when all is acknowledged."""
        return float(self.ask("once")["seconds"])

    def begin(self) -> None:
        """Sweep from now on until this process is left."""
        self.write("stream")


class ScanProcess(DriverProcess):
    """The driver of orphan scans."""

    def scan(self, snapshot: str = "") -> dict[str, Any]:
        """Scan a snapshot, or the live stores; return ``seconds``, ``ledgers``, ``orphans`` and ``stages``."""
        found: dict[str, Any] = self.ask(f"scan {snapshot}")
        return found

    def disk(self, snapshot: str) -> dict[str, Any]:
        """Add up the disk use of a snapshot; return ``seconds`` and ``ledgers``."""
        found: dict[str, Any] = self.ask(f"disk {snapshot}")
        return found


def told_stages(stages: dict[str, float]) -> str:
    """Say how long the longest stages of a scan took."""
    longest = sorted(stages.items(), key=lambda item: -item[1])[:5]
    return ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in longest)


_DriverT = TypeVar("_DriverT", bound=DriverProcess)


@contextmanager
def sweep_process(settings_file: Path) -> Iterator[SweepProcess]:
    """Start Spark and the sweep's driver in a process of their own, which waits for orders."""
    with driver_process(SweepProcess, "benchmarks.sweeper", settings_file) as process:
        yield process


@contextmanager
def scan_process(settings_file: Path) -> Iterator[ScanProcess]:
    """Start Spark and the scan's driver in a process of their own, which waits for orders."""
    with driver_process(ScanProcess, "benchmarks.scanner", settings_file) as process:
        yield process


@contextmanager
def driver_process(kind: type[_DriverT], module: str, settings_file: Path) -> Iterator[_DriverT]:
    """Start a module with the settings, as a process that takes orders."""
    child = subprocess.Popen(
        [sys.executable, "-m", module, str(settings_file)],
        cwd=Path(__file__).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # Ctrl-C reaches this process alone, which then ends the other in order.
        start_new_session=True,
    )
    process = kind(child)
    try:
        process.answer()
        yield process
    finally:
        process.stop()


@contextmanager
def measured(pid: int, usages: list[Usage]) -> Iterator[None]:
    """Watch a process and all its descendants meanwhile; append what they took."""
    watcher = _Watcher(pid)
    watcher.start()
    try:
        yield
    finally:
        usages.append(watcher.stop())


class _Watcher(threading.Thread):
    def __init__(self, pid: int) -> None:
        super().__init__(name="memory", daemon=True)
        self._pid = pid
        self._ended = threading.Event()
        self._peak: dict[str, int] = {}
        self._cpu: dict[int, float] = {}
        self._kinds: dict[int, str] = {}
        self._cpu_before = _cpu_of(descendants(pid))

    def run(self) -> None:
        while not self._ended.wait(_SAMPLE_SECONDS):
            self._sample()

    def stop(self) -> Usage:
        self._ended.set()
        self.join()
        self._sample()
        cpu: dict[str, float] = {}
        for pid, seconds in self._cpu.items():
            kind = self._kinds[pid]
            cpu[kind] = cpu.get(kind, 0.0) + seconds - self._cpu_before.get(pid, 0.0)
        return Usage(self._peak, cpu)

    def _sample(self) -> None:
        pids = descendants(self._pid)
        self._cpu.update(_cpu_of(pids))
        held: dict[str, int] = {}
        for pid in pids:
            kind = self._kinds.setdefault(pid, self._kind(pid))
            for of, size in zip((kind, MAPPED), _pss(pid), strict=True):
                held[of] = held.get(of, 0) + size
        if sum(held.values()) > sum(self._peak.values()):
            self._peak = held

    def _kind(self, pid: int) -> str:
        if pid == self._pid:
            return "driver"
        return "JVM" if _name(pid) == "java" else "workers"


def cpu_seconds_of(pid: int) -> float:
    """Return the processor time that a process has taken."""
    return sum(_cpu_of([pid]).values())


def _cpu_of(pids: list[int]) -> dict[int, float]:
    seconds: dict[int, float] = {}
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            seconds[pid] = (int(fields[11]) + int(fields[12])) / _TICKS
    return seconds


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _pss(pid: int) -> tuple[int, int]:
    """Return a process's share of memory in bytes: its own, and that of the files that it mapped."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0, 0
    sizes = {name: int(size.split()[0]) * 1024 for name, _, size in (line.partition(":") for line in lines[1:])}
    mapped = sizes.get("Pss_File", 0)
    return sizes.get("Pss", 0) - mapped, mapped
