"""A sweep over any metadata store, whose marks are of long ago; what it would send is kept."""

from __future__ import annotations

import time
from collections.abc import Sequence

from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.bookkeeper.returning_ids import ReturningIds
from bookwarden.clusters.bookkeeper.undone import UndoneLedgers
from bookwarden.clusters.pulsar.references.live import MetadataReferences
from bookwarden.deletion.journal.entries import JournalEntry
from bookwarden.deletion.phase_two.decide import DeletionPolicy
from bookwarden.deletion.phase_two.sweeping import SweepLimits
from bookwarden.ledgers.kinds import Holder
from bookwarden.ledgers.metadata import AbsentLedger
from bookwarden.ledgers.outcomes import Outcome, OutcomeRow
from bookwarden.ledgers.pending_deletion import mark_of_holder
from bookwarden.ledgers.received import FIRST_READ, ReceivedMark
from bookwarden.metastore.interface import MetadataStore
from servers.population import Population
from servers.sweep_parts import sweep_with

# Ledgers that a test has just made count as old.
_AHEAD_S = 3600


class SweptStore:
    """Sweeps a store; it is its own journal and outbox."""

    def __init__(
        self,
        store: MetadataStore,
        *,
        shadow_refresh: float = 0.0,
        ids: ReturningIds | None = None,
        policy: DeletionPolicy | None = None,
        limits: SweepLimits | None = None,
    ) -> None:
        self.store = store
        self.population = Population(store)
        self.catalog = BookKeeperCatalog(store)
        self.references = MetadataReferences([store], shadow_refresh=shadow_refresh)
        self.journaled: list[int] = []
        self.sent: list[tuple[str, int, str]] = []
        self.policy = policy or DeletionPolicy()
        self._sweep = sweep_with(
            *(self.catalog, self.references, self, self, self.policy, limits or SweepLimits()),
            undone=UndoneLedgers(store),
            ids=ids,
            clock=self.clock,
        )

    @staticmethod
    def clock() -> float:
        """Give the time at which it sweeps."""
        return time.time() + _AHEAD_S

    def ledgers(self, holder: Holder, *ids: int) -> None:
        """Make closed ledgers of the holder, which does not name them."""
        for ledger_id in ids:
            self.population.ledger(ledger_id, holder)

    def sweep(self, holder: Holder, *ids: int) -> dict[int, OutcomeRow]:
        """Sweep marks of the holder's ledgers, made long ago; a row for each."""
        marks = [
            ReceivedMark(
                "topic", f"1:{found}:0", None, b"", {FIRST_READ: "1"}, 1, mark=mark_of_holder(found, holder, "")
            )
            for found in ids
        ]
        found = [row for rows in self._sweep.process(marks, "test/0") for row in rows]
        return {row.ledger_id: row for row in found if row.ledger_id is not None}

    def outcomes(self, holder: Holder, *ids: int) -> list[Outcome]:
        """Sweep marks, and give what became of each."""
        rows = self.sweep(holder, *ids)
        return [rows[ledger_id].outcome for ledger_id in ids]

    def left(self, *ids: int) -> set[int]:
        """Give those of the ledgers that are there."""
        return {found.ledger_id for found in self.catalog.read_many(ids) if not isinstance(found, AbsentLedger)}

    def write(self, path: str, value: bytes) -> None:
        """Make the node, or write over its value."""
        found = self.store.get(path)
        if found is None:
            self.store.create(path, value, make_parents=True)
        else:
            self.store.put(path, value, found.version)

    def append(self, entries: Sequence[JournalEntry]) -> None:
        self.journaled += [entry.ledger_id for entry in entries]

    def retry(self, received: ReceivedMark, delay_s: float, reason: str) -> None:
        self._send("retry", received, reason)

    def delay(self, received: ReceivedMark, delay_s: float, verified_ms: int, reason: str) -> None:
        self._send("delay", received, reason)

    def wait(self, received: ReceivedMark, delay_s: float, reason: str) -> None:
        self._send("wait", received, reason)

    def give_up(self, received: ReceivedMark, outcome: Outcome, reason: str) -> None:
        self._send("give up", received, reason)

    def flush(self) -> None:
        pass

    def _send(self, what: str, received: ReceivedMark, reason: str) -> None:
        assert received.mark is not None
        self.sent.append((what, received.mark.ledger_id, reason))
