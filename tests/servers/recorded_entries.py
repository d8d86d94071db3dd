"""Last entries of ledgers for tests without bookies, in the bytes that brokers write."""

from __future__ import annotations

from collections.abc import Mapping

from bookwarden.clusters.bookkeeper.bookies.last_entries import DecodedEntries
from bookwarden.wire.pb import managed_ledger_pb2, schema_locator_pb2


class RecordedEntries(DecodedEntries):
    """The last entry of each ledger; those without one are empty, and an error is raised."""

    def __init__(self, entries: Mapping[int, bytes | Exception]) -> None:
        self.entries = dict(entries)
        self.asked: list[int] = []

    def last_entry(self, ledger_id: int) -> bytes | None:
        """Return what is recorded."""
        self.asked.append(ledger_id)
        entry = self.entries.get(ledger_id)
        if isinstance(entry, Exception):
            raise entry
        return entry


def position_entry(ledger_id: int, entry_id: int) -> bytes:
    """Make an entry of a cursor's ledger."""
    return managed_ledger_pb2.PositionInfo(ledgerId=ledger_id, entryId=entry_id).SerializeToString()


def schema_entry(version: int, earlier: Mapping[int, int]) -> bytes:
    """Make the entry of a schema's ledger; ``earlier`` has the ledger of each version before it."""
    entry = schema_locator_pb2.SchemaEntry(schema_data=b"{}")
    for number in range(version) or (0,):
        one = entry.index.add(version=number, hash=b"")
        one.position.ledgerId, one.position.entryId = earlier.get(number, -1), 0 if earlier else -1
    return entry.SerializeToString()
