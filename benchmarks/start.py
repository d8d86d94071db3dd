"""Starts of commands: help, completion, plain ones, a sweep and a scan on Spark, and a follow, all of which soon end.

No peer: each figure has its goal. The least of some rounds, since whatever else runs can only add to it. The runs on
Spark are measured without an archive of its classes (the first makes it) and with it.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.cluster import Site, running_site
from benchmarks.options import Options
from benchmarks.results import Result, publish, say
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.ledgers.pending_deletion import mark_of_holder
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.deletion import PhaseOne

_PROGRAM = (sys.executable, "-m", "bookwarden.cli")
_HELP = ("mark topic", "sweep", "orphans scan", "undo", "bookie-clusters switch", "cluster-migration preflight", "demo")
_PLAIN = ("inflight", "undo --list", "dlq list", "init --dry-run", "ledger show 0", "sweep --once", "sweep --dry-run")
_ONE_TAB = {"_BOOKWARDEN_COMPLETE": "bash_complete", "COMP_WORDS": "bookwarden orphans sc", "COMP_CWORD": "2"}
_LEDGER = 4_000_000_000


def run(options: Options) -> None:
    """Run the benchmark."""
    rounds = options.rounds or 3
    results = [_least(f"{words} --help", [*_PROGRAM, *words.split(), "--help"], rounds, 0.3) for words in _HELP]
    results.append(_least("one Tab", _PROGRAM, rounds, 0.3, _ONE_TAB))
    with running_site() as site:
        program = [*_PROGRAM, "--config", str(site.settings_file)]
        results += [_least(words, [*program, *words.split()], rounds, 0.45) for words in _PLAIN]
        cache = {"XDG_CACHE_HOME": str(site.settings_file.parent / "cache")}
        for title in ("the first time", "again"):
            _mark(site)
            results += _timed(f"sweep --once, {title}", [*program, "sweep", "--once"], 10, cache)
            results += _timed(f"orphans scan, {title}", [*program, "orphans", "scan"], 12, cache)
            results += _timed(f"follow --once, {title}", [*program, "follow", "--once"], 2, cache)
    publish("Starts", results)


def _mark(site: Site) -> None:
    holder = ManagedLedgerHolder("public/default/persistent/gone")
    with Cluster(site.settings) as opened:
        phase_one = PhaseOne(opened)
        phase_one.marker.mark([mark_of_holder(_LEDGER, holder, "trimmed")])


def _least(
    name: str, command: Sequence[str], rounds: int, goal: float, environment: dict[str, str] | None = None
) -> Result:
    used = min(_run(command, environment or {})[0] for _ in range(rounds))
    say(f"{used:.2f} s of processor time: {name}")
    return Result(name, "s of processor", used, None, 1, f"<= {goal}")


def _timed(name: str, command: Sequence[str], goal: float, environment: dict[str, str]) -> list[Result]:
    used, lasted = _run(command, environment)
    say(f"{used:.1f} s of processor time, {lasted:.1f} s: {name}")
    target = f"<= {goal:g}" if name.endswith("again") else ""
    return [Result(name, "s of processor", used, None, 1), Result(name, "s", lasted, None, 1, target)]


def _run(command: Sequence[str], environment: dict[str, str]) -> tuple[float, float]:
    """Run a command; return the processor time of it and all that it started, and how long it took."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **environment}, cwd=Path.home()
    )
    if done.returncode not in (0, 4):
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, time.monotonic() - started
