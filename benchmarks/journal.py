"""What the journal costs the sweep: verify and delete, with the journal on disk and without one.

Peer: the same sweep of as many other ledgers over the same ZooKeeper in the same process, whose journal keeps
nothing. Both without Pulsar and Spark, which would hide the journal's share.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from benchmarks.cluster import Site, running_site
from benchmarks.options import Options
from benchmarks.population import Population
from benchmarks.results import Result, compared, publish, say
from bookwarden.clusters.offload.stores import OffloadStores
from bookwarden.clusters.pulsar.messages.retries import RetrySender
from bookwarden.clusters.pulsar.references.live import MetadataReferences
from bookwarden.deletion.journal.entries import Journal, JournalRecord
from bookwarden.deletion.journal.reading import JournalFolder, JournalReader
from bookwarden.deletion.journal.writing import FileJournal
from bookwarden.deletion.node_check import NodeCheck
from bookwarden.deletion.phase_two.copy_deletion import CopyDeleter, CopyOwnerGuard
from bookwarden.deletion.phase_two.decide import DeletionPolicy
from bookwarden.deletion.phase_two.guards import NodeGuard
from bookwarden.deletion.phase_two.ledger_deletion import LedgerDeleter
from bookwarden.deletion.phase_two.sent_on import Sendings
from bookwarden.deletion.phase_two.superseded import SupersededGuard
from bookwarden.deletion.phase_two.sweeping import Acts, Sweep, SweepLimits
from bookwarden.deletion.phase_two.verifying import Verifier
from bookwarden.deletion.ports import LedgerCatalog, NoBookieClusters
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.ledgers.pending_deletion import PendingDeletion
from bookwarden.ledgers.received import ReceivedMark
from bookwarden.metastore.following.store import Migrations
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.deletion import policy_of

COUNT = 20_000
ROUNDS = 9
LEDGERS_PER_TOPIC = 100


class NoJournal:
    """A journal that keeps nothing."""

    def append(self, records: Sequence[JournalRecord]) -> None:
        """Do nothing."""


class NoOutbox:
    """Nothing is sent on: every mark of this benchmark is carried out."""

    def retry(self, *_: object) -> None:
        """Fail."""
        raise RuntimeError("a ledger was not deleted")

    delay = wait = give_up = retry

    def flush(self) -> None:
        """Do nothing."""


def plain_sweep(
    catalog: LedgerCatalog,
    references: MetadataReferences,
    journal: Journal,
    policy: DeletionPolicy,
    limits: SweepLimits,
    copies: OffloadStores | None = None,
) -> Sweep:
    """Make a sweep of one bookie cluster that asks no bookie, and sends nothing on."""
    stores, clusters = copies or OffloadStores(), NoBookieClusters()
    guards = [NodeGuard(NodeCheck(catalog, None, lambda: stores), None), CopyOwnerGuard(lambda: stores)]
    superseded = SupersededGuard(clusters, None, None)
    deleter = LedgerDeleter(*(catalog, journal, policy, time.time), clusters=clusters, superseded=superseded, again=[])
    sendings = Sendings(cast(RetrySender, NoOutbox()), None, policy.retry_delay)
    acts = Acts(CopyDeleter(stores, journal, policy, time.time), deleter, sendings, Migrations())
    return Sweep(Verifier(catalog, references, policy, guards), acts, limits)


def run(options: Options) -> None:
    """Run the benchmark."""
    count, rounds = options.scaled(options.count or COUNT), options.rounds or ROUNDS
    with running_site() as site:
        population = Population(site, max(count // LEDGERS_PER_TOPIC, 1))
        population.create_holders()
        with Cluster(site.settings) as opened:
            say("warming up")
            folder = Path(site.settings.sweep.journal)
            journal = FileJournal(folder)
            for warming in (journal, NoJournal()):
                _swept(site, opened, warming, population.create_ledgers(count // 4))
            ours, peer = list[float](), list[float]()
            for number in range(rounds):
                # Taking turns at being first: whatever grows in the server is shared.
                turns = (journal, None) if number % 2 else (None, journal)
                for turn in turns:
                    rate = count / _swept(site, opened, turn or NoJournal(), population.create_ledgers(count))
                    (ours if turn else peer).append(rate)
                say(f"round {number + 1} of {rounds}: without {peer[-1]:,.0f}, with journal {ours[-1]:,.0f} ledgers/s")
            journal.close()
            _require_journaled(folder, count // 4 + rounds * count)
        publish(f"The journal's share in sweeps of {count:,} ledgers", _results(ours, peer, folder, count, rounds))


def _results(ours: Sequence[float], peer: Sequence[float], folder: Path, count: int, rounds: int) -> list[Result]:
    size = sum(path.stat().st_size for path in folder.iterdir()) / (count // 4 + rounds * count)
    return [
        compared("journal", "ledgers/s", ours, peer, count, "ratio >= 0.9"),
        Result("journal record", "bytes", size, None, count),
    ]


def _swept(site: Site, opened: Cluster, journal: Journal, marks: Sequence[PendingDeletion]) -> float:
    limits = SweepLimits(site.settings.sweep.ledgers_per_step)
    sweep = plain_sweep(
        opened.bookkeeper.catalog, opened.references.live, journal, policy_of(site.settings.deletion), limits
    )
    now_ms = int(time.time() * 1000)
    received = [
        ReceivedMark("topic", f"1:{number}:0", None, b"", {}, now_ms, mark=mark) for number, mark in enumerate(marks)
    ]
    started = time.monotonic()
    outcomes = [row.outcome for rows in sweep.process(received, "benchmark/0") for row in rows]
    seconds = time.monotonic() - started
    if outcomes.count(Outcome.DELETED) != len(marks):
        raise RuntimeError("not every ledger was deleted")
    return seconds


def _require_journaled(folder: Path, count: int) -> None:
    found = sum(1 for _ in JournalReader(JournalFolder(folder)))
    if found != count:
        raise RuntimeError(f"the journal has {found} records of {count}")
