"""The last entry of a ledger, also of one that is being written: a cursor's has the cursor's position."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from bookwarden.clusters.bookkeeper.bookies.digests import Entry
from bookwarden.clusters.bookkeeper.bookies.reader import LedgerReader, open_ledger
from bookwarden.clusters.bookkeeper.bookies.requests import Bookies
from bookwarden.clusters.bookkeeper.catalog import ReadsLedgers
from bookwarden.errors import EntryAbsentError, FormatError, NotFoundError
from bookwarden.ledgers.kinds.compacted import COMPACTED_TO
from bookwarden.ledgers.managed_ledger import CursorPosition, Position, SchemaEntryIndex
from bookwarden.ledgers.metadata import AbsentLedger, LedgerState, StoredLedger, UnreadableLedger
from bookwarden.wire.cursor import decode_message_id, decode_position_info
from bookwarden.wire.schema_locator import decode_schema_entry


class DecodedEntries(ABC):
    """Decodes last entries."""

    @abstractmethod
    def last_entry(self, ledger_id: int) -> bytes | None:
        """Return the last entry of a ledger; errors and None as of `LastEntries`."""

    def newest(self, ledger_id: int, count: int) -> list[bytes]:
        """Return ``count`` last entries of a ledger, or what can be had, the newest first; errors as `last_entry`."""
        last = self.last_entry(ledger_id)
        return [] if last is None else [last][:count]

    def position(self, ledger_id: int) -> CursorPosition | None:
        """Return the last position in a cursor's ledger; None if it has none. FormatError also for a broken entry."""
        entry = self.last_entry(ledger_id)
        return None if entry is None else decode_position_info(entry)

    @staticmethod
    def compacted_to(custom: Mapping[str, bytes]) -> Position | None:
        """Return the position that a compacted ledger reaches to; None if it does not say. FormatError if broken."""
        raw = custom.get(COMPACTED_TO)
        return None if raw is None else decode_message_id(raw)

    def schema_entry(self, ledger_id: int) -> SchemaEntryIndex | None:
        """Return the versions in a schema's ledger; None if it has no entry. FormatError also for a broken entry."""
        entry = self.last_entry(ledger_id)
        return None if entry is None else decode_schema_entry(entry)


class LastEntries(DecodedEntries):
    """Reads last entries over connections that the caller closes, and that nothing else uses. Thread-safe."""

    def __init__(self, catalog: ReadsLedgers, bookies: Callable[[], Bookies]) -> None:
        self._catalog = catalog
        self._bookies = bookies
        self._lock = threading.Lock()

    def may_be_written(self, ledger_id: int) -> bool:
        """Return whether the ledger may be written, by its metadata: it is not closed, or unreadable."""
        (reading,) = self._catalog.read_many([ledger_id])
        if isinstance(reading, StoredLedger):
            return reading.metadata.state is not LedgerState.CLOSED
        return isinstance(reading, UnreadableLedger)

    def last_entry(self, ledger_id: int) -> bytes | None:
        """Return the last entry of a ledger; None if it has none.

        Of an open ledger it is the last one that any bookie has: its writer notes with each entry only that the one
        before is confirmed. Raises NotFoundError if there is no such ledger, FormatError if its metadata cannot be
        read, BookieError if the bookies do not say.
        """
        last = self.last_written(self._stored(ledger_id))
        return None if last is None else last.payload

    def last_written(self, ledger: StoredLedger) -> Entry | None:
        """Return the last entry with its number and the length of the ledger; None and errors as of `last_entry`."""
        with self._lock:
            reader = open_ledger(ledger, self._bookies())
            confirmed = reader.last_confirmed()
            if ledger.metadata.last_entry_id is not None:
                return _read(reader, confirmed) if confirmed >= 0 else None
            return _last_written(reader, confirmed)

    def newest(self, ledger_id: int, count: int) -> list[bytes]:
        """Return ``count`` last entries of a ledger, or as many as there are; errors as `last_entry`."""
        reading = self._stored(ledger_id)
        with self._lock:
            reader = open_ledger(reading, self._bookies())
            confirmed, found = reader.last_confirmed(), list[Entry]()
            if reading.metadata.last_entry_id is None:
                found += _behind(reader, confirmed)
            for entry_id in range(confirmed, max(-1, confirmed - count), -1):
                found.insert(0, _read(reader, entry_id))
        return [entry.payload for entry in found[::-1][:count]]

    def first_entry(self, ledger_id: int) -> bytes:
        """Return the first entry of a ledger, open or not; EntryAbsentError if it has none, others as `last_entry`."""
        reading = self._stored(ledger_id)
        with self._lock:
            return _read(open_ledger(reading, self._bookies()), 0).payload

    def _stored(self, ledger_id: int) -> StoredLedger:
        (reading,) = self._catalog.read_many([ledger_id])
        if isinstance(reading, AbsentLedger):
            raise NotFoundError(f"BookKeeper has no ledger {ledger_id}")
        if isinstance(reading, UnreadableLedger):
            raise FormatError(f"the metadata of ledger {ledger_id} cannot be read: {reading.reason}")
        return reading


def _last_written(reader: LedgerReader, confirmed: int) -> Entry | None:
    last = _read(reader, confirmed) if confirmed >= 0 else None
    return [last, *_behind(reader, confirmed)][-1]


def _behind(reader: LedgerReader, confirmed: int) -> list[Entry]:
    """Return the entries that are written and not known to be confirmed."""
    found: list[Entry] = []
    while True:
        try:
            found.append(_read(reader, confirmed + 1 + len(found)))
        except EntryAbsentError:
            return found


def _read(reader: LedgerReader, entry_id: int) -> Entry:
    (entry,) = reader.read(entry_id, entry_id)
    return entry
