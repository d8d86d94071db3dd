"""Copies by bookwarden, in a process of its own: what a task of Spark does of a build, without the rest."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from bookwarden.bookie_clusters.moving.scope import Route
from bookwarden.clusters.bookkeeper.copying.copier import LedgerCopier
from bookwarden.config import load_settings
from bookwarden.ledgers.outcomes import CopyOutcome
from bookwarden.pipelines.copying.stages import copier_of
from bookwarden.pipelines.workers import collect_seldom
from bookwarden.wiring.cluster import Cluster

#: When memory is looked at, in hundredths of a run.
MEMORY_AT = (10, 50, 100)


@dataclass(frozen=True, slots=True)
class Copying:
    """What a run took: seconds, seconds of processor time, and the memory at MEMORY_AT of it, in bytes."""

    seconds: float
    cpu_seconds: float
    memory: tuple[int, ...]


class Copier:
    """The process, connected; it copies from cluster a to b."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def copy(self, ledger_ids: range) -> Copying:
        """Copy these ledgers; RuntimeError unless each is copied."""
        return self._pool.submit(_copy, ledger_ids).result()


@contextmanager
def copier(settings_file: Path) -> Iterator[Copier]:
    """Start the process; it ends with this context."""
    with ProcessPoolExecutor(1, get_context("spawn"), _open, (settings_file,)) as pool:
        yield Copier(pool)


_opened: list[LedgerCopier] = []


def _open(settings_file: Path) -> None:
    # As Spark's workers do it.
    collect_seldom()
    _opened.append(copier_of(Cluster(load_settings(settings_file)), Route("a", "b")))


def _copy(ledger_ids: range) -> Copying:
    count = len(ledger_ids)
    marks = [max(count * share // 100, 1) for share in MEMORY_AT]
    memory: list[int] = []
    began, used = time.monotonic(), time.process_time()
    for number, result in enumerate(_opened[0].copy(ledger_ids), start=1):
        if result.outcome is not CopyOutcome.COPIED:
            raise RuntimeError(f"ledger {result.ledger_id} was not copied: {result.outcome.name}, {result.reason}")
        while len(memory) < len(marks) and number >= marks[len(memory)]:
            memory.append(_resident_bytes())
    return Copying(time.monotonic() - began, time.process_time() - used, tuple(memory))


def _resident_bytes() -> int:
    pages = int(Path(f"/proc/{os.getpid()}/statm").read_text().split()[1])
    return pages * resource.getpagesize()
