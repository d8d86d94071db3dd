"""Proves that a closed ledger is whole: every entry is got from each bookie that should have it, and checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bookwarden.clusters.bookkeeper.bookies.digests import Digest, digest_of, verify_entry
from bookwarden.clusters.bookkeeper.bookies.protocol import OK, ReadEntry, status_name
from bookwarden.clusters.bookkeeper.bookies.replicas import Replicas
from bookwarden.clusters.bookkeeper.bookies.requests import Answer, Bookies
from bookwarden.errors import DigestMismatchError, FormatError
from bookwarden.ledgers.metadata import LedgerState, StoredLedger
from bookwarden.wire.ledger_metadata import decode_ledger_password

# A bookie answers with the whole entry, which may be megabytes.
_AT_ONCE: Final = 64
_NO_DIGEST: Final = "DUMMY"


class WholeLedgers:
    """Proves ledgers over connections that the caller closes; for one thread. ``bookies`` is asked when needed."""

    def __init__(self, bookies: Callable[[], Bookies]) -> None:
        self._bookies = bookies

    def problem_of(self, ledger: StoredLedger) -> str | None:
        """Read every entry of a closed ledger from each bookie that should have it; return what is wrong, if anything.

        A bookie that does not answer is a problem too; nothing is raised for it.
        """
        metadata = ledger.metadata
        if metadata.state is not LedgerState.CLOSED or metadata.last_entry_id is None:
            return "it is not closed"
        try:
            digest = digest_of(metadata.digest_type, decode_ledger_password(ledger.raw))
        except FormatError as error:
            return str(error)
        if digest.kind == _NO_DIGEST:
            return "its entries have no digest, so they cannot be checked"
        reading = _SequentialRead(ledger, digest)
        for first in range(0, metadata.last_entry_id + 1, _AT_ONCE):
            problem = reading.read(self._bookies(), range(first, min(first + _AT_ONCE, metadata.last_entry_id + 1)))
            if problem is not None:
                return problem
        if reading.length != metadata.length:
            return f"its entries have {reading.length} bytes, and its metadata says {metadata.length}"
        return None


class _SequentialRead:
    """One ledger, read in order."""

    def __init__(self, ledger: StoredLedger, digest: Digest) -> None:
        self._ledger_id = ledger.ledger_id
        self._replicas = Replicas(ledger.metadata)
        self._digest = digest
        #: Bytes of the entries so far.
        self.length = 0

    def read(self, bookies: Bookies, entry_ids: range) -> str | None:
        """Read these entries from all their bookies; return what is wrong, if anything."""
        sizes: dict[int, int] = {}
        with bookies.exchange():
            for entry_id in entry_ids:
                for bookie_id in self._replicas.of(entry_id):
                    bookies.ask(bookie_id, ReadEntry(self._ledger_id, entry_id))
            while answers := bookies.answers():
                for answer in answers:
                    problem = self._take(answer, sizes)
                    if problem is not None:
                        return problem
        for entry_id in entry_ids:
            self.length += sizes[entry_id]
        return None

    def _take(self, answer: Answer, sizes: dict[int, int]) -> str | None:
        request, response = answer.request, answer.response
        assert isinstance(request, ReadEntry)
        if response is None:
            return answer.failure
        if response.status != OK:
            return f"bookie {answer.bookie_id} answered {status_name(response.status)} to entry {request.entry_id}"
        try:
            entry = verify_entry(self._digest, self._ledger_id, request.entry_id, response.entry)
        except DigestMismatchError as error:
            return f"bookie {answer.bookie_id}: {error}"
        size = sizes.setdefault(request.entry_id, len(entry.payload))
        if size != len(entry.payload):
            return f"bookies have entry {request.entry_id} with {size} and {len(entry.payload)} bytes"
        return None
