"""The sweep's journal, and what it records of sent messages, in memory: as durable as what was written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO

from bookwarden.deletion.journal.entries import JournalEntry, JournalRecord
from bookwarden.deletion.journal.writing import header
from bookwarden.deletion.phase_two.sent_on import SentOn
from bookwarden.errors import StoreUnavailableError

from .faults import CALM, Clock, Faults


class MemoryJournal:
    """One file an append; ``written`` are the lives of nodes that are on record."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._files: list[bytes] = []
        self._sent: dict[str, list[SentOn]] = {}
        self.faults = Faults(0, CALM)
        self.written: set[tuple[int, int]] = set()
        self.ids: list[int] = []

    def append(self, records: Sequence[JournalRecord]) -> None:
        """Write the records as one file."""
        if not records:
            return
        self.faults.step()
        data = b"".join([header(records[0].run, self._clock.now), *(record.encode() for record in records)])
        if self.faults.fails():
            # What was half written is no record.
            self._files.append(data[: len(data) // 3])
            raise StoreUnavailableError("the journal cannot be written")
        self._files.append(data)
        for record in records:
            if isinstance(record, JournalEntry):
                self.written.add((record.ledger_id, record.version))
                self.ids.append(record.ledger_id)
        self.faults.step()

    def read(self, run: str) -> list[SentOn]:
        """Give what was sent on of a batch."""
        self.faults.step()
        return self._sent.get(run, [])

    def add(self, run: str, sent: Sequence[SentOn]) -> None:
        """Record what was sent on of a batch; only the last batch's is asked for again."""
        self.faults.step()
        if self.faults.fails():
            raise StoreUnavailableError("the records cannot be written")
        self._sent = {run: [*self._sent.get(run, ()), *sent]}

    def sent_on(self, run: str) -> set[tuple[str, str]]:
        """Name the messages of a batch that are on record, by their topics and ids."""
        return {(sent.topic, sent.message_id) for sent in self._sent.get(run, ())}

    def names(self) -> list[str]:
        """Name the files, oldest first."""
        return [str(number) for number in range(len(self._files))]

    @contextmanager
    def open(self, name: str) -> Iterator[BytesIO]:
        """Open a file."""
        yield BytesIO(self._files[int(name)])

    def close(self) -> None:
        """Do nothing: nothing is open between the calls."""
