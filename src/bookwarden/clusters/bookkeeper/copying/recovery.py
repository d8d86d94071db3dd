"""Recovery of ledgers that their writer left open: fenced, read to their true end, made safe, and closed there.

As client.LedgerRecoveryOp, ReadLastConfirmedOp and PendingReadOp of BookKeeper 4.17 do it, with three differences.
Nothing is fenced before enough bookies have answered; an entry that a single replica has is kept even if enough others
do not have it; no bookie is replaced, since enough to acknowledge an entry must take it back and no more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from bookwarden.clusters.bookkeeper.bookies.digests import Digest, Entry, digest_of, master_key_of, verify_entry
from bookwarden.clusters.bookkeeper.bookies.protocol import (
    LAST_ENTRY,
    NO_ENTRY,
    NO_LEDGER,
    OK,
    REFUSED,
    AddEntry,
    AddKind,
    FencingRead,
    ReadEntry,
    Request,
    Response,
    status_name,
)
from bookwarden.clusters.bookkeeper.bookies.reader import open_ledger
from bookwarden.clusters.bookkeeper.bookies.replicas import Replicas, is_covered
from bookwarden.clusters.bookkeeper.bookies.requests import Answer, Bookies
from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.errors import (
    BookieAccessError,
    BookieError,
    BookieUnavailableError,
    DigestMismatchError,
    FormatError,
    LostRaceError,
    NotFoundError,
    OutcomeUnknownError,
)
from bookwarden.ledgers.metadata import AbsentLedger, LedgerState, StoredLedger
from bookwarden.metastore.interface import MetadataStore
from bookwarden.wire.ledger_metadata import change_ledger_metadata, decode_ledger_password

_LOG = logging.getLogger(__name__)

# Each is asked of all its bookies, and may have megabytes.
_ENTRIES_AT_ONCE: Final = 8


class LedgerRecovery:
    """Recovers ledgers of one bookie cluster; for one thread. The caller closes the bookies.

    Only for a caller who has proven that no broker lives, and that none is started meanwhile. A broker that writes the
    ledger is cut off from it at once and for good: its topic fails, and what it sends at that moment is lost to it.
    """

    def __init__(self, store: MetadataStore, ledgers_root: str, bookies: Bookies) -> None:
        self._store = store
        self._catalog = BookKeeperCatalog(store, ledgers_root)
        self._bookies = bookies

    def recover(self, ledger_id: int) -> StoredLedger:
        """Close the ledger at its true end, and return it as it is then; one that is closed stays as it is.

        May be killed at any instruction and repeated. Raises BookieUnavailableError, BookieAccessError or
        DigestMismatchError, which name the bookies, if its end is not known for sure: then it is not closed, and as
        long as too few bookies answer not even fenced. LostRaceError if another client changes its metadata meanwhile,
        NotFoundError if it has none, FormatError where that cannot be understood, or is not of version 3.
        """
        found = self._read(ledger_id)
        if found.metadata.state is LedgerState.OPEN:
            change_ledger_metadata(found.raw, LedgerState.IN_RECOVERY)
            # Raises if too few answer, and nothing was changed so far.
            _RunningRecovery(found, self._bookies).confirmed(fencing=False)
            found = self._put(found, LedgerState.IN_RECOVERY)
        if found.metadata.state is LedgerState.CLOSED:
            return found
        recovering = _RunningRecovery(found, self._bookies)
        last, length = recovering.end()
        closed = self._put(found, LedgerState.CLOSED, last, length)
        _LOG.info("ledger %d is recovered: its last entry is %d", ledger_id, closed.metadata.last_entry_id)
        return closed

    def _read(self, ledger_id: int) -> StoredLedger:
        (found,) = self._catalog.read_many([ledger_id])
        if isinstance(found, StoredLedger):
            return found
        if isinstance(found, AbsentLedger):
            raise NotFoundError(f"BookKeeper has no ledger {ledger_id}")
        raise FormatError(f"ledger {ledger_id} is not recovered, since its metadata cannot be read: {found.reason}")

    def _put(
        self, found: StoredLedger, state: LedgerState, last_entry_id: int | None = None, length: int = 0
    ) -> StoredLedger:
        """Write the state; return what is there then, also if another client came so far first."""
        try:
            raw = change_ledger_metadata(found.raw, state, last_entry_id, length)
            self._store.put(found.path, raw, found.version)
        except (LostRaceError, OutcomeUnknownError) as error:
            _LOG.info("ledger %d: %s", found.ledger_id, error)
        after = self._read(found.ledger_id)
        if after.metadata.state not in (state, LedgerState.CLOSED):
            raise LostRaceError(
                f"ledger {found.ledger_id} is not closed: its metadata was changed meanwhile, or could not be written; "
                "see that no broker lives, and recover it again"
            )
        return after


class _Read(NamedTuple):
    """An entry as one of its bookies has it."""

    entry: Entry
    packet: bytes


class _RunningRecovery:
    """One ledger as its metadata was read; for `end` that says that it is in recovery."""

    def __init__(self, ledger: StoredLedger, bookies: Bookies) -> None:
        password = decode_ledger_password(ledger.raw)
        self._ledger = ledger
        self._ledger_id = ledger.ledger_id
        self._metadata = ledger.metadata
        self._digest: Digest = digest_of(ledger.metadata.digest_type, password)
        self._master_key = master_key_of(password)
        self._replicas = Replicas(ledger.metadata)
        self._bookies = bookies

    def end(self) -> tuple[int, int]:
        """Return the last entry and the length, once everything up to there is on enough bookies."""
        last = self.confirmed(fencing=True)
        length: int | None = None
        while True:
            asked = range(last + 1, last + 1 + _ENTRIES_AT_ONCE)
            found = self._read(asked)
            self._write_back(found)
            if found:
                last, length = found[-1].entry.entry_id, found[-1].entry.length
            if len(found) < len(asked):
                break
        if length is None:
            length = self._length_through(last)
        return last, length

    def confirmed(self, *, fencing: bool) -> int:
        """Return the last entry that any of the last segment's bookies knows to be confirmed."""
        segment = self._metadata.segments[-1]
        known: dict[str, int] = {}
        errors: dict[str, BookieError] = {}

        def take(answer: Answer) -> None:
            if _has_none(answer.response):
                known[answer.bookie_id] = -1
            elif (found := self._checked(answer, None, errors)) is not None:
                known[answer.bookie_id] = found.entry.last_add_confirmed

        def is_enough() -> bool:
            answered = [bookie_id in known for bookie_id in segment.ensemble]
            return is_covered(answered, self._metadata.write_quorum, self._metadata.ack_quorum)

        request = self._fencing(LAST_ENTRY) if fencing else ReadEntry(self._ledger_id, LAST_ENTRY)
        if not self._ask([(bookie_id, request) for bookie_id in segment.ensemble], take, is_enough):
            raise self._not_closed("too few of its last bookies tell where it ends", errors)
        # All before the last segment was confirmed when it began.
        return max(segment.first_entry_id - 1, *known.values())

    def _read(self, entry_ids: range) -> list[_Read]:
        """Read these entries from all their bookies, fencing the ledger there; stop before the first that is absent."""
        found: dict[int, _Read] = {}
        absent = dict.fromkeys(entry_ids, 0)
        errors: dict[int, dict[str, BookieError]] = {entry_id: {} for entry_id in entry_ids}
        # Enough that the others are too few to have acknowledged it.
        enough = self._metadata.write_quorum - self._metadata.ack_quorum + 1

        def take(answer: Answer) -> None:
            assert isinstance(answer.request, FencingRead)
            entry_id = answer.request.entry_id
            if _has_none(answer.response):
                absent[entry_id] += 1
            elif (read := self._checked(answer, entry_id, errors[entry_id])) is not None:
                found[entry_id] = read

        def is_enough() -> bool:
            return all(entry_id in found or absent[entry_id] >= enough for entry_id in entry_ids)

        self._ask(
            [(bookie_id, self._fencing(entry)) for entry in entry_ids for bookie_id in self._replicas.of(entry)],
            take,
            is_enough,
        )
        entries: list[_Read] = []
        for entry_id in entry_ids:
            if entry_id in found:
                entries.append(found[entry_id])
            elif absent[entry_id] >= enough:
                break
            else:
                raise self._not_closed(f"it is not known whether there is an entry {entry_id}", errors[entry_id])
        return entries

    def _write_back(self, entries: list[_Read]) -> None:
        """Write entries, byte for byte, to all their bookies, also to those that gave them: from memory, perhaps."""
        taken = {read.entry.entry_id: 0 for read in entries}
        refused: dict[int, dict[str, BookieError]] = {entry_id: {} for entry_id in taken}
        least = self._metadata.ack_quorum

        def take(answer: Answer) -> None:
            assert isinstance(answer.request, AddEntry)
            if answer.response is not None and answer.response.status == OK:
                taken[answer.request.entry_id] += 1
            else:
                refused[answer.request.entry_id][answer.bookie_id] = _error_of(answer)

        wanted: list[tuple[str, Request]] = []
        for entry, packet in entries:
            request = AddEntry(self._ledger_id, entry.entry_id, self._master_key, packet, AddKind.URGENT_RECOVERY)
            wanted += [(bookie_id, request) for bookie_id in self._replicas.of(entry.entry_id)]
        self._ask(wanted, take, lambda: all(count >= least for count in taken.values()))
        for entry_id, count in taken.items():
            if count < least:
                why = f"{count} bookies took entry {entry_id} back, and {least} have to"
                raise self._not_closed(why, refused[entry_id])

    def _length_through(self, last: int) -> int:
        if last < 0:
            return 0
        (entry,) = open_ledger(self._ledger, self._bookies).read(last, last)
        return entry.length

    def _fencing(self, entry_id: int) -> FencingRead:
        return FencingRead(self._ledger_id, entry_id, self._master_key)

    def _ask(
        self, wanted: Sequence[tuple[str, Request]], take: Callable[[Answer], None], is_enough: Callable[[], bool]
    ) -> bool:
        """Ask, and take all answers; return whether they are enough.

        Bookies that did not answer a moment ago are asked last, and only if it takes them: where a machine is down,
        each question costs the time in which a connection is tried.
        """
        late = {bookie_id for bookie_id, _ in wanted if self._bookies.is_avoided(bookie_id)}
        for are_late in (False, True):
            with self._bookies.exchange():
                for bookie_id, request in wanted:
                    if (bookie_id in late) is are_late:
                        self._bookies.ask(bookie_id, request)
                while answers := self._bookies.answers():
                    for answer in answers:
                        take(answer)
            if is_enough():
                return True
        return False

    def _checked(self, answer: Answer, entry_id: int | None, errors: dict[str, BookieError]) -> _Read | None:
        """Return the entry if the bookie gave it whole; note why not."""
        response = answer.response
        if response is None or response.status != OK:
            errors[answer.bookie_id] = _error_of(answer)
            return None
        try:
            entry = verify_entry(self._digest, self._ledger_id, entry_id, response.entry)
        except DigestMismatchError as error:
            errors[answer.bookie_id] = DigestMismatchError(f"bookie {answer.bookie_id}: {error}")
            return None
        return _Read(entry, response.entry)

    def _not_closed(self, why: str, errors: dict[str, BookieError]) -> BookieError:
        kinds: tuple[type[BookieError], ...] = (BookieUnavailableError, BookieAccessError, DigestMismatchError)
        found = (kind for kind in kinds if any(isinstance(one, kind) for one in errors.values()))
        kind = next(found, BookieError)
        reasons = "; ".join(str(error) for _, error in sorted(errors.items()))
        advice = "; recover it again when they are up" if kind is BookieUnavailableError else ""
        return kind(f"ledger {self._ledger_id} is not closed: {why}: {reasons}{advice}")


def _has_none(response: Response | None) -> bool:
    return response is not None and response.status in (NO_ENTRY, NO_LEDGER)


def _error_of(answer: Answer) -> BookieError:
    if answer.response is None:
        return BookieUnavailableError(answer.failure)
    if answer.response.status == REFUSED:
        return BookieAccessError(
            f"bookie {answer.bookie_id} wants authentication, or has this ledger with another password (EUA)"
        )
    return BookieUnavailableError(f"bookie {answer.bookie_id} answered {status_name(answer.response.status)}")
