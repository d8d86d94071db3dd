"""The entries of many ledgers on their way from one bookie cluster to another, each compared after it was written.

An entry is read from a bookie of the source, its digest checked; written to its whole write set on the target; then
read back from each of these bookies, and compared byte for byte with what was sent. Only then it counts.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from bookwarden.clusters.bookkeeper.bookies.digests import digest_of
from bookwarden.clusters.bookkeeper.bookies.protocol import OK, AddEntry, AddKind, ReadEntry, status_name
from bookwarden.clusters.bookkeeper.bookies.reader import EntrySearch
from bookwarden.clusters.bookkeeper.bookies.replicas import Replicas
from bookwarden.clusters.bookkeeper.bookies.requests import Answer, Bookies
from bookwarden.clusters.bookkeeper.bookies.writer import LedgerWriter
from bookwarden.clusters.bookkeeper.copying.limits import CopyLimits, CopyPacer
from bookwarden.errors import BookieError, BookieUnavailableError, DigestMismatchError, FormatError
from bookwarden.ledgers.metadata import LedgerMetadata, StoredLedger
from bookwarden.wire.ledger_metadata import decode_ledger_password

# Fewer leave a bookie idle between answers, more gain nothing.
_ENTRIES_IN_FLIGHT: Final = 1000


class LedgerCopyTask:
    """One ledger whose entries are copied: ``target`` is the open metadata of its copy, written already.

    Raises FormatError for metadata by which it cannot be read. ``is_retry``: entries of an earlier attempt may be
    there, and a recovery may have fenced it.
    """

    def __init__(self, source: StoredLedger, target: LedgerMetadata, *, is_retry: bool = False) -> None:
        assert source.metadata.last_entry_id is not None
        if source.metadata.segments[0].first_entry_id:
            raise FormatError("no bookie is named for its first entries")
        self.source = source
        self.target = target
        self.is_retry = is_retry
        self.password = decode_ledger_password(source.raw)
        #: Checks and makes the digests of both sides, which are the same.
        self.digest = digest_of(source.metadata.digest_type, self.password)
        #: The number of its entries.
        self.entries = source.metadata.last_entry_id + 1
        #: The bytes of an entry on average, at least 1.
        self.entry_bytes = max(1, source.metadata.length // max(1, self.entries))
        #: Why it could not be copied; None while nothing is wrong.
        self.error: BookieError | None = None
        #: Bookies of the target that did not do what they were asked for.
        self.suspects: set[str] = set()


class EntryCopier:
    """Copies the entries of ledgers, many in flight; for one thread. ``bookies`` are those of both clusters."""

    def __init__(self, bookies: Bookies, limits: CopyLimits) -> None:
        self._bookies = bookies
        self._pacing = CopyPacer(limits)
        self._most_bytes = bookies.options.bytes_in_flight
        self._under_way: dict[int, _RunningCopy] = {}
        self._waiting: deque[_RunningCopy] = deque()
        self._entries = 0
        self._bytes = 0

    def run(self, ledgers: Sequence[LedgerCopyTask]) -> None:
        """Copy these ledgers, each of which is there once; what went wrong is in their ``error``."""
        with self._bookies.exchange():
            try:
                self._waiting.extend(_RunningCopy(ledger, self, self._bookies) for ledger in ledgers if ledger.entries)
                self._under_way = {each.ledger.source.ledger_id: each for each in self._waiting}
                while self._under_way:
                    wait = self._ask()
                    if self._entries:
                        self.take_answers()
                    elif wait > 0:
                        time.sleep(wait)
            finally:
                self._under_way, self._entries, self._bytes = {}, 0, 0
                self._waiting.clear()

    def send(self, bookies: tuple[str, ...], request: AddEntry) -> None:
        """Send an entry to each of these bookies."""
        for bookie_id in bookies:
            self._bookies.ask(bookie_id, request)

    def take_answers(self) -> None:
        """Wait for answers, and give them to their ledgers."""
        answers = self._bookies.answers()
        if not answers:
            raise RuntimeError(f"no bookie owes an answer, and {len(self._under_way)} ledgers are not copied")
        for answer in answers:
            assert isinstance(answer.request, ReadEntry | AddEntry)
            each = self._under_way.get(answer.request.ledger_id)
            # What failed is forgotten at once, and its answers still come.
            if each is None:
                continue
            done = each.take(answer, answer.request)
            self._entries -= done
            self._bytes -= done * each.ledger.entry_bytes
            if each.is_over:
                self.forget(answer.request.ledger_id)

    def forget(self, ledger_id: int) -> None:
        """Drop a ledger, with what is on its way."""
        each = self._under_way.pop(ledger_id)
        self._entries -= each.in_flight
        self._bytes -= each.in_flight * each.ledger.entry_bytes

    def _ask(self) -> float:
        """Ask the source for the next entries, ledger by ledger, as far as there is room.

        Return the seconds until more may be asked for by the limits; 0 where they do not block.
        """
        while self._waiting:
            each = self._waiting[0]
            if each.is_over or not each.is_left:
                self._waiting.popleft()
                continue
            size = each.ledger.entry_bytes
            if self._entries and (self._entries >= _ENTRIES_IN_FLIGHT or self._bytes + size > self._most_bytes):
                return 0.0
            wait = each.ask(self._pacing)
            if wait > 0:
                return wait
            self._entries += 1
            self._bytes += size
        return 0.0


class _ReadBack(ReadEntry):
    """Asks the target for an entry; a bookie may be among those of the source too, since it can move between them."""

    __slots__ = ()


class _RunningCopy:
    """A ledger on its way: entries are asked for in order, come in any order, and are written in order."""

    def __init__(self, ledger: LedgerCopyTask, copying: EntryCopier, bookies: Bookies) -> None:
        self.ledger = ledger
        source = ledger.source
        self._bookies = bookies
        self._bookies_of_ledger = _bookies_of(ledger.target) | _bookies_of(source.metadata)
        self._sources, self._replicas = Replicas(source.metadata), Replicas(ledger.target)
        self._search = EntrySearch(source.ledger_id, self._sources, ledger.digest, bookies)
        kind = AddKind.RECOVERY if ledger.is_retry else AddKind.WRITER
        self._writer = LedgerWriter(copying, source.ledger_id, ledger.target, ledger.password, kind)
        self._asked = 0
        self._written = 0
        self._compared = 0
        #: By entry: what was sent, and how many bookies have yet to give it back.
        self._expected: dict[int, tuple[bytes, int]] = {}

    @property
    def is_left(self) -> bool:
        """Whether entries have not been asked for."""
        return self._asked < self.ledger.entries

    @property
    def is_over(self) -> bool:
        """Whether all entries are compared, or something went wrong."""
        return self.ledger.error is not None or self._compared == self.ledger.entries

    @property
    def in_flight(self) -> int:
        """How many entries are on their way."""
        return self._asked - self._compared

    def ask(self, pacing: CopyPacer) -> float:
        """Ask the source for the next entry; return the seconds until it may be asked for, 0 if it was."""
        reader, writers = self._sources.of(self._asked)[:1], self._replicas.of(self._asked)
        wait = pacing.wait_for_bytes((*reader, *writers))
        if not self._asked:
            wait = max(wait, pacing.wait_for_ledger(self._bookies_of_ledger))
        if wait > 0:
            return wait
        if not self._asked:
            pacing.count_ledger(self._bookies_of_ledger)
        size = self.ledger.entry_bytes
        pacing.count_bytes(reader, size)
        # Written once, and read once.
        pacing.count_bytes(writers, 2 * size)
        self._search.ask(self._asked)
        self._asked += 1
        return 0.0

    def take(self, answer: Answer, request: ReadEntry | AddEntry) -> int:
        """Take a bookie's answer; return how many entries are done by it."""
        if isinstance(request, AddEntry):
            self._take_written(answer, request)
            return 0
        if isinstance(request, _ReadBack):
            return self._compare(answer, request.entry_id)
        self._search.take(answer)
        if self._search.failed:
            self.ledger.error = self._search.failed[min(self._search.failed)]
        self._write()
        return 0

    def _write(self) -> None:
        """Write what has come, in the order of the entries."""
        found = self._search.found
        while self._written in found and self.ledger.error is None:
            self._writer.add(found.pop(self._written).payload)
            self._written += 1
        if self.ledger.error is None and self._written == self.ledger.entries:
            length, stated = self._writer.length, self.ledger.source.metadata.length
            if length != stated:
                name = f"ledger {self.ledger.source.ledger_id}"
                why = f"{name} has {length} bytes in its entries, and its metadata says {stated}"
                self.ledger.error = DigestMismatchError(why)

    def _take_written(self, answer: Answer, request: AddEntry) -> None:
        is_last = self._writer.take(answer, request)
        if self._writer.refusals:
            self.ledger.suspects |= self._writer.refusals.keys()
            self.ledger.error = self._writer.refusal()
        elif is_last:
            bookies = self._replicas.of(request.entry_id)
            self._expected[request.entry_id] = request.packet, len(bookies)
            for bookie_id in bookies:
                self._bookies.ask(bookie_id, _ReadBack(request.ledger_id, request.entry_id))

    def _compare(self, answer: Answer, entry_id: int) -> int:
        packet, missing = self._expected[entry_id]
        response = answer.response
        if response is None or response.status != OK or response.entry != packet:
            self._note_unlike(answer, entry_id)
            return 0
        if missing > 1:
            self._expected[entry_id] = packet, missing - 1
            return 0
        del self._expected[entry_id]
        self._compared += 1
        return 1

    def _note_unlike(self, answer: Answer, entry_id: int) -> None:
        name = f"ledger {self.ledger.source.ledger_id} is not copied: "
        took = f"bookie {answer.bookie_id} took entry {entry_id}, and "
        self.ledger.suspects.add(answer.bookie_id)
        if answer.response is None:
            self.ledger.error = BookieUnavailableError(name + answer.failure)
        elif answer.response.status != OK:
            self.ledger.error = BookieError(f"{name}{took}answered {status_name(answer.response.status)} to a read")
        else:
            self.ledger.error = DigestMismatchError(f"{name}{took}gave back another")


def _bookies_of(metadata: LedgerMetadata) -> frozenset[str]:
    return frozenset(bookie for segment in metadata.segments for bookie in segment.ensemble)
