"""Verify and delete by bookwarden, in a process of its own: what phase two does to BookKeeper, without the rest."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from benchmarks.doomed import DoomedLedgers
from bookwarden.clusters.pulsar.metadata.paths import managed_ledger_path
from bookwarden.config import load_settings
from bookwarden.ledgers.custom_metadata import custom_metadata_mismatch
from bookwarden.ledgers.metadata import AbsentLedger, Condition, DeleteResult, StoredLedger
from bookwarden.pipelines.workers import collect_seldom
from bookwarden.wiring.cluster import Cluster

_READ_BACK = 10_000


@dataclass(frozen=True, slots=True)
class Deletion:
    """How long it took, in seconds: all of it, the reads with their parsing, and the deletes; the rest is the check."""

    seconds: float
    read_seconds: float
    delete_seconds: float


class Deleter:
    """The process, connected; it deletes in the sweep's steps."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool
        self.pid = pool.submit(os.getpid).result()

    def delete(self, doomed: DoomedLedgers, *, as_read: bool = False) -> Deletion:
        """Read, check and delete the ledgers; with ``as_read`` only while the nodes of their holders are version 0."""
        return self._pool.submit(_delete, doomed, as_read).result()

    def require_gone(self, doomed: DoomedLedgers) -> None:
        """Raise RuntimeError if any of the ledgers is there."""
        self._pool.submit(_require_gone, doomed).result()


@contextmanager
def deleter(settings_file: Path) -> Iterator[Deleter]:
    """Start the process; it ends with this context."""
    with ProcessPoolExecutor(1, get_context("spawn"), _open, (settings_file,)) as pool:
        yield Deleter(pool)


_opened: list[tuple[Cluster, int]] = []


def _open(settings_file: Path) -> None:
    settings = load_settings(settings_file)
    _opened.append((Cluster(settings), settings.sweep.ledgers_per_step))


def _delete(doomed: DoomedLedgers, as_read: bool) -> Deletion:
    # As Spark's workers do it.
    collect_seldom()
    cluster, step = _opened[0]
    reading = deleting = 0.0
    started = time.monotonic()
    for ledgers in doomed.steps(step):
        begin = time.monotonic()
        readings = cluster.bookkeeper.catalog.read_many([ledger_id for ledger_id, _ in ledgers])
        reading += time.monotonic() - begin
        verified = [
            found
            for (_, holder), found in zip(ledgers, readings, strict=True)
            if isinstance(found, StoredLedger) and custom_metadata_mismatch(holder, found.metadata.custom) is None
        ]
        begin = time.monotonic()
        conditions = [[Condition(managed_ledger_path(holder.name), 0)] for _, holder in ledgers] if as_read else None
        results = cluster.bookkeeper.catalog.delete_many(verified, conditions)
        deleting += time.monotonic() - begin
        if results.count(DeleteResult.DELETED) != len(ledgers):
            raise RuntimeError(f"{results.count(DeleteResult.DELETED)} of {len(ledgers)} ledgers were deleted")
    return Deletion(time.monotonic() - started, reading, deleting)


def _require_gone(doomed: DoomedLedgers) -> None:
    cluster, _ = _opened[0]
    for ledgers in doomed.steps(_READ_BACK):
        readings = cluster.bookkeeper.catalog.read_many([ledger_id for ledger_id, _ in ledgers])
        if left := sum(not isinstance(reading, AbsentLedger) for reading in readings):
            raise RuntimeError(f"{left} of {len(ledgers)} ledgers are still there")
