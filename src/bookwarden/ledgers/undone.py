"""Record of a ledger whose deletion was undone."""

from __future__ import annotations

from dataclasses import dataclass

from bookwarden.ledgers.metadata import LedgerReading, StoredLedger


@dataclass(frozen=True, slots=True)
class UndoneLedger:
    """A ledger that an undo put back at ``at_ms``; it was created at ``ctime_ms``, None if not known."""

    ledger_id: int
    undo: str
    at_ms: int
    ctime_ms: int | None

    def is_of(self, reading: LedgerReading) -> bool:
        """Return whether this is the ledger that was read; after a migration another may have got its id."""
        if not isinstance(reading, StoredLedger):
            return False
        times = [place.metadata.ctime_ms for place in reading.places]
        return self.ctime_ms is None or None in times or self.ctime_ms in times
