"""Whole sweep: from the first read to the last acknowledgement of pending deletions that are waiting.

Peer: the metadata store alone. One process reads the metadata of as many other ledgers and the references of
their holders, and deletes them, in steps of the sweep's size, by the same catalog; without Pulsar, Spark, decisions,
journal and outcome rows. It is the limit that the sweep could come near to.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from benchmarks.cluster import Site, running_site
from benchmarks.options import Options
from benchmarks.population import Population
from benchmarks.processes import SweepProcess, Usage, measured, sweep_process
from benchmarks.results import Result, compared, publish, say
from bookwarden.ledgers.metadata import DeleteResult, StoredLedger
from bookwarden.ledgers.pending_deletion import PendingDeletion
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.deletion import marker_of

COUNT = 200_000
LEDGERS_PER_TOPIC = 100
_GIB = 1 << 30


def run(options: Options) -> None:
    """Run the benchmark."""
    count = options.scaled(options.count or COUNT)
    rounds = options.rounds or (3 if count <= COUNT else 1)
    with running_site() as site:
        population = Population(site, max(count // LEDGERS_PER_TOPIC, 1))
        population.create_holders()
        say("starting Spark")
        with sweep_process(site.settings_file) as process:
            usages: list[Usage] = []
            ours: list[float] = []
            peer: list[float] = []
            # The first round has the JVM and the workers cold; it counts like the others.
            for number in range(1, rounds + 1):
                say(f"round {number} of {rounds}: the metadata store alone")
                peer.append(count / _store_alone(site, population.create_ledgers(count)))
                say(f"round {number} of {rounds}: {peer[-1]:,.0f} ledgers/s; now the sweep")
                ours.append(count / _swept(site, population.create_ledgers(count), process, usages))
                say(f"round {number} of {rounds}: {ours[-1]:,.0f} ledgers/s, {_describe(usages[-1], count)}")
        publish(f"Whole sweep of {count:,} pending deletions", _results(ours, peer, usages, count))


def _results(ours: Sequence[float], peer: Sequence[float], usages: Sequence[Usage], count: int) -> list[Result]:
    most = max(usages, key=lambda usage: usage.peak_bytes)
    cpu = min(usage.cpu_seconds for usage in usages) / count * 1e6
    return [
        compared("sweep", "ledgers/s", ours, peer, count, ">= 10,000"),
        Result("sweep memory", "GiB", most.peak_bytes / _GIB, None, count, "< 3", _describe(most, count)),
        Result("sweep processor", "us/ledger", cpu, None, count, "", "the best round"),
    ]


def _swept(site: Site, marks: list[PendingDeletion], process: SweepProcess, usages: list[Usage]) -> float:
    with Cluster(site.settings) as cluster:
        report = marker_of(cluster).mark(marks)
    if report.failed:
        raise RuntimeError(f"{len(report.failed)} marks were not sent: {report.failed[0].failure}")
    with measured(process.pid, usages):
        seconds = process.drain()
    _require_done(site, marks)
    return seconds


def _require_done(site: Site, marks: Sequence[PendingDeletion]) -> None:
    with Cluster(site.settings) as cluster:
        behind = cluster.deletion_topics.entries().values()
        if backlog := sum(entries for entries, _ in behind):
            raise RuntimeError(f"{backlog} entries were not acknowledged")
        readings = cluster.bookkeeper.catalog.read_many([mark.ledger_id for mark in marks])
    if left := sum(isinstance(reading, StoredLedger) for reading in readings):
        raise RuntimeError(f"{left} ledgers are still there")


def _store_alone(site: Site, marks: Sequence[PendingDeletion]) -> float:
    step = site.settings.sweep.ledgers_per_step
    ordered = sorted(marks, key=lambda mark: mark.topic_name)
    with Cluster(site.settings) as cluster:
        # The layout is read once, before the clock runs.
        cluster.bookkeeper.catalog.paths_of(0)
        started = time.monotonic()
        for start in range(0, len(ordered), step):
            _delete(cluster, ordered[start : start + step])
        return time.monotonic() - started


def _delete(cluster: Cluster, marks: Sequence[PendingDeletion]) -> None:
    readings = cluster.bookkeeper.catalog.read_many([mark.ledger_id for mark in marks])
    cluster.references.live.read(list({mark.holder() for mark in marks}))
    stored = [reading for reading in readings if isinstance(reading, StoredLedger)]
    results = cluster.bookkeeper.catalog.delete_many(stored)
    if results.count(DeleteResult.DELETED) != len(marks):
        raise RuntimeError("the metadata store alone did not delete every ledger")


def _describe(usage: Usage, count: int) -> str:
    held = ", ".join(f"{kind} {size / (1 << 20):.0f} MiB" for kind, size in sorted(usage.memory.items()))
    took = ", ".join(f"{kind} {seconds / count * 1e6:.0f} us" for kind, seconds in sorted(usage.cpu.items()))
    return f"memory: {held}; processor time a ledger: {took}"
