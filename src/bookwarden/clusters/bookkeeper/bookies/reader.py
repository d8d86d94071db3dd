"""Reads a ledger's entries from its bookies, as they are: reading neither fences a ledger nor recovers it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from bookwarden.clusters.bookkeeper.bookies.digests import Digest, Entry, digest_of, verify_entry, verify_last_confirmed
from bookwarden.clusters.bookkeeper.bookies.protocol import (
    NO_ENTRY,
    NO_LEDGER,
    OK,
    REFUSED,
    ReadEntry,
    ReadLastConfirmed,
    Response,
    status_name,
)
from bookwarden.clusters.bookkeeper.bookies.replicas import Replicas, is_covered
from bookwarden.clusters.bookkeeper.bookies.requests import Answer, Bookies
from bookwarden.errors import (
    BookieAccessError,
    BookieError,
    BookieUnavailableError,
    DigestMismatchError,
    EntryAbsentError,
)
from bookwarden.ledgers.metadata import LedgerMetadata, StoredLedger
from bookwarden.wire.ledger_metadata import decode_ledger_password

_LEAST_GUESSES = 16


def open_ledger(ledger: StoredLedger, bookies: Bookies) -> LedgerReader:
    """Make a reader of a ledger as its metadata was read, with the digest and password that the metadata names."""
    digest = digest_of(ledger.metadata.digest_type, decode_ledger_password(ledger.raw))
    return LedgerReader(ledger.ledger_id, ledger.metadata, digest, bookies)


class LedgerReader:
    """Reads one ledger; for one thread. The caller closes the bookies.

    The metadata of a ledger that is open, or that auto-recovery copies elsewhere, may change meanwhile: when an entry
    is absent or its bookies are unavailable, read the metadata again.
    """

    def __init__(self, ledger_id: int, metadata: LedgerMetadata, digest: Digest, bookies: Bookies) -> None:
        self._ledger_id = ledger_id
        self._metadata = metadata
        self._digest = digest
        self._bookies = bookies
        self._replicas = Replicas(metadata)

    def read(self, first: int = 0, last: int | None = None) -> Generator[Entry, None, None]:
        """Read the entries from ``first`` through ``last``, in order; by default to the last confirmed one.

        While the result is iterated over, the bookies serve nothing else. Each entry is asked of one bookie, and of
        its other replicas in turn as long as it is not got. Where none gives it, raises EntryAbsentError,
        DigestMismatchError, BookieAccessError or BookieUnavailableError after the entries before it. Entries behind
        the last confirmed one can be asked for; a recovery of the ledger may yet drop them.
        """
        if first < 0:
            raise ValueError(f"the first entry to read is {first}")
        end = self.last_confirmed() if last is None else last
        window = _Window(self._bookies.options.reads_in_flight, self._bookies.options.bytes_in_flight)
        with self._bookies.exchange():
            search = EntrySearch(self._ledger_id, self._replicas, self._digest, self._bookies)
            asked, low = first, 0
            for wanted in range(first, end + 1):
                if asked - wanted <= low and asked <= end:
                    # By halves, so that the bookies are at work while the caller is.
                    limit = window.entries
                    search.ask_all(range(asked, min(wanted + limit, end + 1)))
                    asked, low = max(asked, wanted + limit), limit // 2
                while wanted not in search.found:
                    if wanted in search.failed:
                        raise search.failed[wanted]
                    for answer in self._bookies.answers():
                        search.take(answer)
                entry = search.found.pop(wanted)
                window.count(len(entry.payload))
                yield entry

    def last_confirmed(self) -> int:
        """Return the id of the last entry that is known to be confirmed; -1 if there is none.

        Of a closed ledger the metadata says it. Of any other the bookies of the last segment are asked: what the
        most advanced one knows. Raises BookieUnavailableError, or BookieAccessError, if so few answer that the
        others alone may have acknowledged an entry.
        """
        metadata = self._metadata
        if metadata.last_entry_id is not None:
            return metadata.last_entry_id
        segment = metadata.segments[-1]
        known: dict[str, int] = {}
        problems = _Problems()
        with self._bookies.exchange():
            for bookie_id in segment.ensemble:
                self._bookies.ask(bookie_id, ReadLastConfirmed(self._ledger_id))
            while answers := self._bookies.answers():
                for answer in answers:
                    self._note_last_confirmed(answer, known, problems)
        answered = [bookie_id in known for bookie_id in segment.ensemble]
        if not is_covered(answered, metadata.write_quorum, metadata.ack_quorum):
            raise problems.as_error(f"the last confirmed entry of ledger {self._ledger_id} is not known")
        # A segment begins behind the entries that were confirmed when a bookie was replaced.
        return max(segment.first_entry_id - 1, *known.values())

    def _note_last_confirmed(self, answer: Answer, known: dict[str, int], problems: _Problems) -> None:
        response = answer.response
        if response is None or response.status not in (OK, NO_ENTRY, NO_LEDGER):
            problems.note_unanswered(answer.bookie_id, answer.failure, response)
            return
        try:
            known[answer.bookie_id] = self._confirmed_by(response)
        except DigestMismatchError as error:
            problems.damaged.append(f"{answer.bookie_id}: {error}")

    def _confirmed_by(self, response: Response) -> int:
        """Return the larger of the bookie's last confirmed entry and its explicit note; -1 if it has neither."""
        found = [-1]
        if response.status == OK and response.entry:
            found.append(verify_entry(self._digest, self._ledger_id, None, response.entry).last_add_confirmed)
        if response.status == OK and response.explicit_lac:
            found.append(verify_last_confirmed(self._digest, self._ledger_id, response.explicit_lac))
        return max(found)


@dataclass
class _Window:
    """The limit of entries under way: as many as their bytes allow, by the largest of the latest.

    It starts low, since their size is not known at first.
    """

    most_entries: int
    most_bytes: int
    _size: int = 0

    def __post_init__(self) -> None:
        self._size = self.most_bytes // _LEAST_GUESSES

    @property
    def entries(self) -> int:
        """The number of entries, at least 1."""
        return max(1, min(self.most_entries, self.most_bytes // (self._size + 1)))

    def count(self, size: int) -> None:
        """Learn the size of an entry."""
        self._size = max(size, self._size - (self._size >> 5))


@dataclass
class _Problems:
    """The reasons why bookies gave no entry, as sentences, by the error that follows from them."""

    tried: set[str] = field(default_factory=set)
    absent: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    unanswered: list[str] = field(default_factory=list)

    def note_unanswered(self, bookie_id: str, failure: str, response: Response | None) -> None:
        """Note a bookie that gave no answer, or one that says nothing of the entry."""
        if response is None:
            self.unanswered.append(failure)
        elif response.status == REFUSED:
            self.refused.append(f"bookie {bookie_id} wants authentication (EUA)")
        else:
            self.unanswered.append(f"bookie {bookie_id} answered {status_name(response.status)}")

    def as_error(self, what: str) -> BookieError:
        """Make the error: the entry is not absent as long as one bookie might still have it."""
        causes = "; ".join([*self.unanswered, *self.refused, *self.damaged, *self.absent])
        if self.unanswered:
            return BookieUnavailableError(f"{what}: {causes}; try again when they are up")
        if self.refused:
            return BookieAccessError(f"{what}: {causes}; only bookies without authentication can be read")
        if self.damaged:
            return DigestMismatchError(f"{what}: {causes}")
        return EntryAbsentError(f"{what}: {causes}")


class EntrySearch:
    """Asks for entries of one ledger and, where a bookie does not give one, its other replicas; within an exchange.

    An entry that was asked for is in ``found`` in the end, or in ``failed`` with the error that says why.
    """

    def __init__(self, ledger_id: int, replicas: Replicas, digest: Digest, bookies: Bookies) -> None:
        self._ledger_id = ledger_id
        self._replicas = replicas
        self._digest = digest
        self._bookies = bookies
        self._problems: dict[int, _Problems] = {}
        self.found: dict[int, Entry] = {}
        self.failed: dict[int, BookieError] = {}

    def ask_all(self, entry_ids: range) -> None:
        """Ask for each of these entries, and send all requests."""
        for entry_id in entry_ids:
            self.ask(entry_id)
        self._bookies.send()

    def ask(self, entry_id: int) -> None:
        """Ask the next bookie that may have the entry; if there is none left, note the entry as failed."""
        problems = self._problems.get(entry_id)
        bookies: Sequence[str] = self._replicas.of(entry_id)
        if problems is not None:
            bookies = [bookie_id for bookie_id in bookies if bookie_id not in problems.tried]
            if not bookies:
                what = f"entry {entry_id} of ledger {self._ledger_id} cannot be read"
                self.failed[entry_id] = problems.as_error(what)
                return
        self._bookies.ask(self._preferred(bookies), ReadEntry(self._ledger_id, entry_id))

    def take(self, answer: Answer) -> None:
        """Take a bookie's answer about one of these entries; ask another bookie if it does not have the entry."""
        assert isinstance(answer.request, ReadEntry)
        entry_id, response = answer.request.entry_id, answer.response
        if response is not None and response.status == OK:
            try:
                self.found[entry_id] = verify_entry(self._digest, self._ledger_id, entry_id, response.entry)
            except DigestMismatchError as error:
                self._problems_of(answer).damaged.append(f"bookie {answer.bookie_id}: {error}")
                self.ask(entry_id)
        else:
            self._note(answer, response)
            self.ask(entry_id)

    def _note(self, answer: Answer, response: Response | None) -> None:
        problems = self._problems_of(answer)
        if response is not None and response.status in (NO_ENTRY, NO_LEDGER):
            problems.absent.append(f"bookie {answer.bookie_id} has no such {_missing(response)}")
        else:
            problems.note_unanswered(answer.bookie_id, answer.failure, response)

    def _problems_of(self, answer: Answer) -> _Problems:
        assert isinstance(answer.request, ReadEntry)
        problems = self._problems.setdefault(answer.request.entry_id, _Problems())
        problems.tried.add(answer.bookie_id)
        return problems

    def _preferred(self, bookies: Sequence[str]) -> str:
        for bookie_id in bookies:
            if not self._bookies.is_avoided(bookie_id):
                return bookie_id
        return bookies[0]


def _missing(response: Response) -> str:
    return "ledger" if response.status == NO_LEDGER else "entry"
