"""Processes, identified by id and start time, since ids are reused; and the descendants of one."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process id and a text that no later process with the same id shares (boot and start time)."""

    pid: int
    started: str

    def is_alive(self) -> bool:
        """Return whether exactly this process still runs; one that ended but was not reaped does not."""
        return start_of(self.pid) == self.started

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal if exactly this process still runs; return whether it was sent."""
        if not self.is_alive():
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True


def identify(pid: int) -> ProcessIdentity | None:
    """Return the identity of a running process, None if there is none with this id."""
    started = start_of(pid)
    return None if started is None else ProcessIdentity(pid, started)


def descendants(pid: int) -> list[int]:
    """List the process and its present descendants; only the process where there is no /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = entry.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(entry.parent.name))
    found = [pid]
    for known in found:
        found.extend(children.get(known, ()))
    return found


def command_line(pid: int) -> str:
    """Return the command of a running process and its arguments; "" if it ended, and where there is no /proc."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def process_ids_of() -> str:
    """Return the pid namespace of this process as an opaque text that no other machine or container shares."""
    try:
        return f"{socket.gethostname()}:{_boot()}:{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def described_here() -> dict[str, Any]:
    """Describe this process in JSON values, for `has_certainly_ended`; people find its host and pid there."""
    pid = os.getpid()
    return {"host": socket.gethostname(), "pid": pid, "ids": process_ids_of(), "started": start_of(pid)}


def has_certainly_ended(described: Mapping[str, Any]) -> bool:
    """Return whether a described process ended for certain: only if it ran in this machine's pid namespace."""
    try:
        process = ProcessIdentity(described["pid"], described["started"])
        return bool(described["ids"] == process_ids_of()) and not process.is_alive()
    except (TypeError, KeyError):
        return False


def start_of(pid: int) -> str | None:
    """Return when a running process started, as an opaque text; None if it ended."""
    if Path("/proc/self/stat").exists():
        try:
            return parse_stat(Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace"), _boot())
        except (FileNotFoundError, ProcessLookupError):
            return None
    answer = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, started = answer.stdout.strip().partition(" ")
    return None if not started or state.startswith("Z") else started.strip()


def parse_stat(text: str, boot: str) -> str | None:
    """Read the start from a line of /proc/PID/stat (proc(5): state is field 3, start in ticks field 22)."""
    fields = text.rpartition(")")[2].split()
    state, ticks = fields[0], fields[19]
    return None if state in "ZX" else f"{boot}:{ticks}"


@functools.cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
