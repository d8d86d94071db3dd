"""Writes entries to bookies, many in flight: each to all bookies of its write set, and to no others.

Neither an ensemble nor metadata is changed here: a bookie that does not take an entry ends the writing of that ledger.
An entry is the same, byte for byte, as if BookKeeper's own client had written it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Protocol

from bookwarden.clusters.bookkeeper.bookies.digests import Entry, digest_of, master_key_of, pack_entry
from bookwarden.clusters.bookkeeper.bookies.protocol import (
    FENCED,
    OK,
    READ_ONLY,
    REFUSED,
    AddEntry,
    AddKind,
    status_name,
)
from bookwarden.clusters.bookkeeper.bookies.replicas import Replicas
from bookwarden.clusters.bookkeeper.bookies.requests import Answer, Bookies
from bookwarden.errors import BookieAccessError, BookieError, BookieUnavailableError
from bookwarden.ledgers.metadata import LedgerMetadata

_ENTRIES_IN_FLIGHT: Final = 500
_SENT_AT_ONCE: Final = 16
_REASONS: Final[Mapping[int, str]] = {
    FENCED: "the ledger is fenced: a recovery of it has begun",
    READ_ONLY: "it is read-only: its disks may be full",
    REFUSED: "it wants authentication, or has this ledger with another password",
}


class SendsEntries(Protocol):
    """The way of entries to bookies, and of the answers back to `LedgerWriter.take`."""

    def send(self, bookies: tuple[str, ...], request: AddEntry) -> None:
        """Send an entry to each of these bookies."""

    def take_answers(self) -> None:
        """Wait for answers, and give them to the writers of their ledgers."""

    def forget(self, ledger_id: int) -> None:
        """Drop a ledger of which nothing is on its way."""


class EntryWriting:
    """Entries of any number of ledgers on their way; for one thread, in a with statement.

    Meanwhile the bookies serve nothing else. What has not arrived at its end is forgotten: `LedgerWriter.finish` waits.
    """

    def __init__(self, bookies: Bookies) -> None:
        self._bookies = bookies
        self._exchange = contextlib.ExitStack()
        self._writers: dict[int, LedgerWriter] = {}
        self._entries = 0
        self._bytes = 0
        self._unsent = 0

    def ledger(
        self, ledger_id: int, metadata: LedgerMetadata, password: bytes, *, recovery: bool = False
    ) -> LedgerWriter:
        """Begin to write a ledger from its first entry on, as its metadata says; FormatError for an unknown digest.

        With ``recovery`` bookies take it although it is fenced: an auditor may have fenced an unfinished copy, which is
        begun again. A fence means that another client owns the ledger's end, so this is only for our copies.
        """
        if ledger_id in self._writers:
            raise ValueError(f"ledger {ledger_id} is written already")
        kind = AddKind.RECOVERY if recovery else AddKind.WRITER
        self._writers[ledger_id] = LedgerWriter(self, ledger_id, metadata, password, kind)
        return self._writers[ledger_id]

    def send(self, bookies: tuple[str, ...], request: AddEntry) -> None:
        """Send an entry to each of these bookies, after others have arrived if too much is on its way."""
        size = len(request.packet)
        limit = self._bookies.options.bytes_in_flight
        while self._entries and (self._entries >= _ENTRIES_IN_FLIGHT or self._bytes + size > limit):
            self.take_answers()
        self._entries += 1
        self._bytes += size
        for bookie_id in bookies:
            self._bookies.ask(bookie_id, request)
        self._unsent += 1
        if self._unsent >= _SENT_AT_ONCE:
            self._unsent = 0
            self._bookies.send()

    def take_answers(self) -> None:
        """Wait for answers, and give them to the writers of their ledgers."""
        self._unsent = 0
        answers = self._bookies.answers()
        if not answers:
            raise RuntimeError("no bookie owes an answer: nothing is on its way")
        for answer in answers:
            assert isinstance(answer.request, AddEntry)
            if self._writers[answer.request.ledger_id].take(answer, answer.request):
                self._entries -= 1
                self._bytes -= len(answer.request.packet)

    def forget(self, ledger_id: int) -> None:
        """Drop a ledger of which nothing is on its way."""
        self._writers.pop(ledger_id, None)

    def __enter__(self) -> EntryWriting:
        self._exchange.enter_context(self._bookies.exchange())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exchange.close()


class LedgerWriter:
    """Writes one ledger's entries, in order.

    ``refusals`` says, by bookie id, which did not take an entry, and why; ``denied`` has those that asked for
    credentials.
    """

    def __init__(
        self, writing: SendsEntries, ledger_id: int, metadata: LedgerMetadata, password: bytes, kind: AddKind
    ) -> None:
        self._writing = writing
        self._ledger_id = ledger_id
        self._replicas = Replicas(metadata)
        self._digest = digest_of(metadata.digest_type, password)
        self._master_key = master_key_of(password)
        self._kind = kind
        self._next = 0
        self._missing: dict[int, int] = {}
        self._first_failed: int | None = None
        self._is_unanswered = False
        self.length = 0
        self.refusals: dict[str, str] = {}
        self.denied: set[str] = set()

    @property
    def last_entry_id(self) -> int:
        """The entry that was given last; -1 before the first."""
        return self._next - 1

    @property
    def last_confirmed(self) -> int:
        """The last entry that has arrived, with all before it, at all of its bookies; -1 if there is none."""
        first = next(iter(self._missing), self._next)
        return (first if self._first_failed is None else min(first, self._first_failed)) - 1

    @property
    def under_way(self) -> int:
        """How many entries wait for an answer."""
        return len(self._missing)

    def add(self, payload: bytes) -> None:
        """Write the next entry; it has arrived when `finish` returns. Raises as `finish` does."""
        if self.refusals:
            self.finish()
        entry_id = self._next
        bookies = self._replicas.of(entry_id)
        entry = Entry(self._ledger_id, entry_id, self.last_confirmed, self.length + len(payload), payload)
        self._next += 1
        self.length = entry.length
        # In the order of the ids, which is what `last_confirmed` rests on.
        self._missing[entry_id] = len(bookies)
        packet = pack_entry(self._digest, entry)
        self._writing.send(bookies, AddEntry(self._ledger_id, entry_id, self._master_key, packet, self._kind))

    def finish(self) -> None:
        """Wait until all bookies of each entry have it.

        Raises BookieUnavailableError, BookieAccessError or BookieError, which name the bookies that did not take one.
        """
        while self._missing:
            self._writing.take_answers()
        self._writing.forget(self._ledger_id)
        if self.refusals:
            raise self.refusal()

    def refusal(self) -> BookieError:
        """Make the error of ``refusals``, which are not empty."""
        reasons = "; ".join(why for _, why in sorted(self.refusals.items()))
        kind = BookieAccessError if self.denied else BookieUnavailableError if self._is_unanswered else BookieError
        return kind(f"ledger {self._ledger_id} cannot be written: {reasons}")

    def take(self, answer: Answer, request: AddEntry) -> bool:
        """Take a bookie's answer; return whether it is the last one about its entry."""
        status = None if answer.response is None else answer.response.status
        if status != OK:
            self._note(answer, request.entry_id, status)
        self._missing[request.entry_id] -= 1
        is_last = not self._missing[request.entry_id]
        if is_last:
            del self._missing[request.entry_id]
        return is_last

    def _note(self, answer: Answer, entry_id: int, status: int | None) -> None:
        self._first_failed = entry_id if self._first_failed is None else min(entry_id, self._first_failed)
        if status is None:
            self._is_unanswered = True
            why = answer.failure
        else:
            why = f"bookie {answer.bookie_id} answered {status_name(status)} to entry {entry_id}"
            why += f" ({_REASONS[status]})" if status in _REASONS else ""
        if status == REFUSED:
            self.denied.add(answer.bookie_id)
        self.refusals.setdefault(answer.bookie_id, why)
