"""What the journal has as deleted since bookies compacted, on each of them."""

from __future__ import annotations

from bookwarden.deletion.journal.entries import JournalEntry, UndoStep
from bookwarden.deletion.journal.reading import Deletion
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState, Segment
from bookwarden.pipelines.disk.collecting import deleted_bytes
from bookwarden.wire.ledger_metadata import encode_ledger_metadata

SEGMENTS = (Segment(0, ("a:1", "b:1")), Segment(6, ("a:1", "c:1")))


def deletion(at_ms: int, undone: UndoStep | None = None, *, last_entry_id: int | None = 9) -> Deletion:
    """Make one of a ledger of ten entries and 600 bytes, which with their overhead are 1,000 on each of two bookies."""
    state = LedgerState.OPEN if last_entry_id is None else LedgerState.CLOSED
    length = 0 if last_entry_id is None else 600
    metadata = LedgerMetadata(3, state, 2, 2, 2, SEGMENTS, length=length, last_entry_id=last_entry_id)
    return Deletion(JournalEntry(1, "", "/l", 0, 0, encode_ledger_metadata(metadata), "q/1", at_ms), undone)


def test_what_was_deleted_since_counts_on_each_bookie_by_its_own_time() -> None:
    since = {"a:1": 100, "b:1": 200, "d:1": 0}
    assert deleted_bytes([deletion(99)], since) == {}
    assert deleted_bytes([deletion(100)], since) == {"a:1": 1_000}
    assert deleted_bytes([deletion(200), deletion(201)], since) == {"a:1": 2_000, "b:1": 1_200}


def test_what_was_put_back_and_what_has_no_length_does_not_count() -> None:
    since = {"a:1": 0}
    assert deleted_bytes([deletion(1, UndoStep.RESTORED)], since) == {}
    assert deleted_bytes([deletion(1, UndoStep.LOST)], since) == {"a:1": 1_000}
    assert deleted_bytes([deletion(1, last_entry_id=None)], since)["a:1"] == 0
