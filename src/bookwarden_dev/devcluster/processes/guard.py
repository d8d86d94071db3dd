"""Start a command so that it ends with its parent, or outlives it: run as a script, imports nothing of ours.

    python -I -S guard.py tied PARENT_PID STARTED SLACK COMMAND...   become COMMAND, be killed when PARENT_PID ends
    python -I -S guard.py detached 0 STARTED SLACK COMMAND...        start COMMAND as an orphan, print its id, end

SLACK is how late its timers may be, in nanoseconds; 0 leaves them as they are (prctl(2), PR_SET_TIMERSLACK).
STARTED is a pipe's descriptor, or -1. It is closed once COMMAND runs, or cannot be run. Before that the starter
must send no signal: a SIGSTOP to a guard that has no watcher yet would leave it behind for ever.

Tied: the kernel's own PR_SET_PDEATHSIG follows the *thread* that forked, which may be a short-lived one, so a
watcher process waits for the parent process instead. The watcher is a child of the command, in a session of its
own, so that neither a signal to the command's group nor Ctrl-C in the terminal reaches it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time


def main(arguments: list[str]) -> None:
    """Run the command that the arguments name; never return."""
    mode, command = arguments[0], arguments[4:]
    parent, started, slack = map(int, arguments[1:4])
    if slack:
        # It is kept by whatever this process becomes or starts. Not every system has it.
        with contextlib.suppress(OSError), open("/proc/self/timerslack_ns", "w") as file:
            file.write(str(slack))
    if started >= 0:
        # Then running the command closes it.
        os.set_inheritable(started, False)
    if mode == "detached":
        _start_orphan(command)
    else:
        _become_tied(parent, started, command)


def _start_orphan(command: list[str]) -> None:
    if child := os.fork():
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()
        os._exit(0)
    os.setsid()
    os.dup2(2, 1)
    _exec(command)


def _become_tied(parent: int, started: int, command: list[str]) -> None:
    server = os.getpid()
    ready_read, ready_write = os.pipe()
    if os.fork() == 0:
        os.close(ready_read)
        if started >= 0:
            os.close(started)
        _watch(parent, server, ready_write)
        os._exit(0)
    os.close(ready_write)
    os.read(ready_read, 1)
    os.close(ready_read)
    # Checked after the watcher holds its handles: a parent that died before that is noticed here.
    if os.getppid() != parent:
        os._exit(1)
    _exec(command)


def _exec(command: list[str]) -> None:
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(127)


def _watch(parent: int, server: int, ready: int) -> None:
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    wait_for_either = _waiter(parent, server)
    os.write(ready, b"1")
    os.close(ready)
    wait_for_either()
    # Our own parent is the server for as long as it lives, so its process id cannot have been given away.
    if os.getppid() == server:
        with contextlib.suppress(ProcessLookupError):
            os.kill(server, signal.SIGKILL)


def _waiter(parent: int, server: int):  # type: ignore[no-untyped-def]  # a script for -I -S: typing is slow to import
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):
            poll = select.poll()
            for process in (parent, server):
                poll.register(os.pidfd_open(process), select.POLLIN)
            return poll.poll
    return lambda: _poll_processes(parent, server)


def _poll_processes(parent: int, server: int) -> None:
    while os.getppid() == server:
        try:
            os.kill(parent, 0)
        except ProcessLookupError:
            return
        time.sleep(0.2)


if __name__ == "__main__":
    main(sys.argv[1:])
