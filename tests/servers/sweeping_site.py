"""The sweep as the wiring makes it, given marks by hand: without Spark, on real servers."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from bookwarden.config import Settings
from bookwarden.deletion.explaining import Explanation, explain_ledger, find_everywhere
from bookwarden.ledgers.kinds import Holder
from bookwarden.ledgers.metadata import LedgerReading, StoredLedger
from bookwarden.ledgers.outcomes import OutcomeRow
from bookwarden.ledgers.pending_deletion import PendingDeletion, mark_of_holder
from bookwarden.ledgers.received import FIRST_READ, ReceivedMark, waiving
from bookwarden.wiring.deletion import cluster_to_sweep, sweep_of, verifier_of


class SweepingSite:
    """Sweeps marks that were made long ago, and reads what became of their ledgers."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.opened = cluster_to_sweep(settings)
        self._sweep = sweep_of(self.opened)

    def sweep(self, *marks: PendingDeletion, run: str = "test/0") -> list[OutcomeRow]:
        """Sweep the marks in one batch, or try it again; a row for each."""
        received = [
            ReceivedMark(
                *(
                    self.settings.deletion.topic,
                    f"1:{entry}:0",
                    str(mark.holder()),
                    b"",
                    {FIRST_READ: "1", **waiving(mark.waives)},
                ),
                published_at=1,
                mark=mark,
            )
            for entry, mark in enumerate(marks)
        ]
        return [row for rows in self._sweep.process(received, run) for row in rows]

    def outcome(self, ledger_id: int, holder: Holder) -> OutcomeRow:
        """Sweep one mark of the holder's ledger."""
        (row,) = self.sweep(mark_of_holder(ledger_id, holder, "test"))
        return row

    def read(self, ledger_id: int) -> LedgerReading:
        (reading,) = self.opened.bookkeeper.catalog.read_many([ledger_id])
        return reading

    def stored(self, ledger_id: int) -> StoredLedger:
        reading = self.read(ledger_id)
        assert isinstance(reading, StoredLedger), reading
        return reading

    def exists(self, ledger_id: int) -> bool:
        return isinstance(self.read(ledger_id), StoredLedger)

    def put_back(self, ledger: StoredLedger) -> None:
        """Make the ledger's metadata again if it is gone: a ledger that a broker failed to delete."""
        if self.opened.store.get(ledger.path) is None:
            self.opened.store.create(ledger.path, ledger.raw, make_parents=True)

    def explain(self, ledger_id: int) -> Explanation:
        """Explain the ledger as the command does, everywhere."""
        found = explain_ledger(ledger_id, verifier_of(self.opened))
        return find_everywhere(found, self.opened.references.pieces)

    def new_ledgers(self, ledger_ids: Sequence[int]) -> list[StoredLedger]:
        """Return those of the ledgers that exist."""
        return [
            found for found in self.opened.bookkeeper.catalog.read_many(ledger_ids) if isinstance(found, StoredLedger)
        ]

    def close(self) -> None:
        self.opened.close()

    def __enter__(self) -> SweepingSite:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
