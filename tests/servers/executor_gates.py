"""Gates in the Python of Spark's executors, which imports this at its start: what happens to a process at a point.

A test writes a file named after the point into the folder that STORM_GATES names: an action, and how many of a
process's passages it lets through. The process that takes the file away acts, alone and once. Points and actions:
POINTS, ACTIONS. With a file `rates` the folder also gets what each process asks of the metadata store.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path

FOLDER = "STORM_GATES"
#: After the journal has the records, a ledger was deleted, the broker confirmed, the record of that was written.
POINTS = ("journal", "delete", "sends", "record")
#: End the executor, end this process alone, wait for another attempt at the same task.
ACTIONS = ("kill", "die", "wait")
_WAIT_S = 60.0
_passages = Counter()


def reached(point):
    """Act if there is a gate."""
    from pyspark import TaskContext

    folder = Path(os.environ[FOLDER])
    task = TaskContext.get()
    attempt = task.attemptNumber() if task else 0
    if attempt:
        (folder / "second-attempt").touch()
    gate = folder / point
    try:
        action, _, passages = gate.read_text().partition(" ")
    except FileNotFoundError:
        return
    _passages[point] += 1
    if _passages[point] <= int(passages or 0):
        return
    worker = _parent(os.getppid())
    taken = folder / f"{time.time_ns()}.{point}"
    try:
        gate.rename(taken)
    except FileNotFoundError:
        return
    # It is another user's, perhaps, and is read while it is written.
    note = folder / f".{taken.name}"
    note.write_text(json.dumps({"action": action, "python": os.getpid(), "executor": worker, "user": os.getuid()}))
    note.rename(taken)
    if action == "wait":
        end = time.monotonic() + _WAIT_S
        while time.monotonic() < end and not (folder / "second-attempt").exists():
            time.sleep(0.05)
        return
    if action == "kill":
        os.kill(worker, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _after(owner, name, point, counts):
    call = getattr(owner, name)

    def wrapped(*arguments, **options):
        result = call(*arguments, **options)
        if counts(arguments, result):
            reached(point)
        return result

    setattr(owner, name, wrapped)


def _deleting(module):
    _after(
        *(module.LedgerDeleter, "_delete", "delete"),
        lambda _, result: any(one.decision.outcome is module.Outcome.DELETED for one in result[0]),
    )


def _rates(module):
    reserve = module.Rate.reserve

    def reserved(self, nodes):
        wait = reserve(self, nodes)
        folder = Path(os.environ[FOLDER])
        if (folder / "rates").exists():
            with (folder / f"rates-{_parent(os.getppid())}-{os.getpid()}").open("a") as file:
                file.write(f"{time.time() + wait} {nodes}\n")
        return wait

    module.Rate.reserve = reserved


_WRAPPERS = {
    "bookwarden.deletion.journal.writing": lambda module: _after(
        module.FileJournal, "append", "journal", lambda arguments, _: bool(arguments[1])
    ),
    "bookwarden.deletion.phase_two.ledger_deletion": _deleting,
    "bookwarden.clusters.pulsar.messages.retries": lambda module: _after(
        module.RetrySender, "flush", "sends", lambda _arguments, _result: True
    ),
    "bookwarden.deletion.phase_two.sent_on": lambda module: _after(
        module.Sendings, "_note", "record", lambda _arguments, _result: True
    ),
    "bookwarden.metastore.pacing": _rates,
}


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name not in _WRAPPERS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def and_wrap(module):
            execute(module)
            _WRAPPERS[name](module)

        spec.loader.exec_module = and_wrap
        return spec


if FOLDER in os.environ:
    sys.meta_path.insert(0, _Finder())
