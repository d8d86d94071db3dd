"""Ledgers of many topics, marked, for a sweep that is a process of its own: counted ledger by ledger at the end."""

from __future__ import annotations

import itertools
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from bookwarden.clusters.pulsar.messages.mark_sender import PendingDeletionSender
from bookwarden.deletion.phase_one.named_ledgers import waive_the_list
from bookwarden.errors import PulsarError, PulsarUnavailableError
from bookwarden.ledgers.kinds import LedgerComponent, ManagedLedgerHolder
from bookwarden.ledgers.pending_deletion import LedgerType, PendingDeletion
from bookwarden.metastore.interface import MetadataStore
from bookwarden.wire.avro import PendingDeletionCodec
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.pulsar import connection_of
from bookwarden_dev.devcluster import ServerProcess, ServerSpec
from servers.deletion_site import DeletionSite
from servers.in_this_process import RunningDriver
from servers.population import Population
from servers.waiting import eventually

TOPICS = 20
# Of so many ledgers one is referenced, and kept.
ONE_KEPT_OF = 11
# Each part has a client of its own, which costs a broker more than the marks do.
PER_SEND = 60
PAUSE_S = 0.6
# Of the ledgers of each test, also of one that is tried again: where no counter of ids gets to, lest one seem behind.
FIRST_IDS = itertools.count(6_000_000_000, 100_000)


@dataclass
class Load:
    """Ledgers of many topics, and a thread that marks them a few at a time for as long as the faults go on.

    ``store`` is the one that they are in; a test whose metadata moves puts another in its place.
    """

    site: DeletionSite
    store: MetadataStore
    ids: range
    paths: dict[int, str] = field(default_factory=dict)
    confirmed: set[int] = field(default_factory=set)
    ended: threading.Event = field(default_factory=threading.Event)
    hurry: threading.Event = field(default_factory=threading.Event)

    def populate(self) -> None:
        """Make the ledgers, and the topics that name those that are kept."""
        population = Population(self.store)
        holders = [ManagedLedgerHolder(f"{self.site.namespace}/persistent/topic-{n}") for n in range(TOPICS)]
        # Trims take the oldest, so what a topic keeps are its newest.
        self.kept = frozenset(self.ids[-len(self.ids[::ONE_KEPT_OF]) :])
        self.holders = {ledger: holders[ledger % TOPICS] for ledger in self.ids}
        self.paths = population.ledgers(self.holders)
        for holder in holders:
            # In their order: a broker takes one without entries before the last for empty, and deletes it.
            population.names(holder, [ledger for ledger in sorted(self.kept) if self.holders[ledger] == holder])

    def start(self) -> threading.Thread:
        """Begin to mark, a few ledgers at a time."""
        thread = threading.Thread(target=self._send, name="load", daemon=True)
        thread.start()
        return thread

    def mark(self, ledgers: Sequence[int]) -> None:
        """Mark some ledgers at once."""
        self.site.mark(*self._marks_of(ledgers))
        self.confirmed |= set(ledgers)
        if self.confirmed == set(self.ids):
            self.ended.set()

    def _send(self) -> None:
        # Those that are kept are sent again from the beginning: a storm may leave no bookie for a topic's first ledger.
        kept, others = iter(sorted(self.kept)), iter(sorted(set(self.ids) - self.kept))
        waiting = [next(others if place % ONE_KEPT_OF else kept) for place in range(len(self.ids))]
        while waiting:
            chunk, waiting = waiting[:PER_SEND], waiting[PER_SEND:]
            # What phase one could not send, it reports; whoever asked marks it again.
            waiting += self._send_some(chunk)
            self.hurry.wait(PAUSE_S)
        self.ended.set()

    def _marks_of(self, ledgers: Sequence[int]) -> list[PendingDeletion]:
        """Make the marks; they waive what the lists say, since a broker that loads the topics adds smaller ids."""
        return waive_the_list(
            PendingDeletion(
                self.holders[ledger].name, LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, ledger, marked_at=1
            )
            for ledger in ledgers
        )

    def _send_some(self, ledgers: Sequence[int]) -> list[int]:
        marks, settings = self._marks_of(ledgers), self.site.settings
        try:
            with PendingDeletionSender(
                connection_of(settings.pulsar), settings.deletion.topic, PendingDeletionCodec(), send_timeout_s=5
            ) as sender:
                results = sender.send_all(marks)
        except PulsarError:
            return list(ledgers)
        self.confirmed |= {ledger for ledger, failure in zip(ledgers, results, strict=True) if failure is None}
        return [ledger for ledger, failure in zip(ledgers, results, strict=True) if failure is not None]

    def present(self) -> set[int]:
        """Find the ledgers that are there: by listing their parents, which costs less than a read of each."""
        self.store.sync()
        parents = {path.rpartition("/")[0] for path in self.paths.values()}
        there = {f"{parent}/{name}" for parent in parents for name in self.store.children_of(parent)}
        return {ledger for ledger, path in self.paths.items() if path in there}

    def gone_untold(self) -> set[int]:
        """Find the ledgers that are gone though the outcome table does not tell of them yet: a batch is half done."""
        gone = set(self.ids) - self.present()
        return gone - {row["ledger_id"] for row in self.site.outcomes()}

    def in_flight(self) -> int | None:
        """Count what is in flight; None while the servers are still coming back from what the test did to them."""
        try:
            with Cluster(self.site.settings) as cluster:
                topics = cluster.deletion_topics
                return topics.in_flight().messages
        except PulsarUnavailableError:
            return None

    def settle(self, sweep: ServerProcess | RunningDriver) -> None:
        """Wait until everything is marked and swept, then account for each ledger."""
        self.hurry.set()
        assert self.ended.wait(120), "the load was not sent"

        def drained() -> bool:
            assert sweep.is_running(), sweep.log_since_start()[-3000:]
            return self.in_flight() == 0

        eventually(drained, 300)
        sweep.stop()
        self.validate()

    def validate(self) -> None:
        """Check that each ledger came to the right end, and that nothing is in flight."""
        assert self.confirmed == set(self.ids)
        assert self.present() == self.kept
        assert self.site.backlog_of_dlq() == 0
        assert self.site.backlog() == 0
        finished = {row["ledger_id"]: row["outcome"] for row in self.site.outcomes()}
        assert set(finished) == set(self.ids)
        assert {ledger for ledger, outcome in finished.items() if outcome == "still referenced"} == self.kept

    def told_more_than_once(self) -> set[int]:
        """Find the ledgers with several outcomes that are the end of a mark.

        A batch that is replayed may send a mark on twice (sent_on.py); of such a mark nothing is left to be done.
        """
        rows = [(row["ledger_id"], row["outcome"]) for row in self.site.outcomes()]
        sent_on = {ledger for ledger, outcome in rows if outcome in ("retry", "waiting")}
        ends = Counter(
            ledger
            for ledger, outcome in rows
            if outcome not in ("retry", "waiting")
            and not (ledger in sent_on and outcome in ("already gone", "still referenced"))
        )
        return {ledger for ledger, times in ends.items() if times > 1}


def sweep_process(site: DeletionSite, folder: Path) -> ServerProcess:
    """Make the sweep of a site as a process of its own, not started; its log lies in the folder."""
    file = folder / "bookwarden.yaml"
    file.write_text(yaml.safe_dump(site.settings.model_dump(mode="json", exclude_defaults=True)))
    command = [sys.executable, "-m", "bookwarden.cli", "--config", str(file), "-v", "sweep"]
    return ServerProcess(
        ServerSpec("sweep", lambda: command, folder / "sweep.log", lambda _started: True, folder, stop_seconds=90)
    )
