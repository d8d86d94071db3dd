"""Undo: put the metadata of deleted ledgers back while their bookies still hold the entries.

A bookie drops a deleted ledger at its next garbage collection, which may be any moment: so the metadata of all
ledgers is put back first, and only then are the bookies asked. The metadata of a ledger that turns out to be lost
is removed again. The process may be killed at any point: its steps are in the journal, and the next undo of the same
ledgers continues from there.

A ledger that another registered bookie cluster has is in no such hurry, and brokers might read what is put back in
place of a whole copy: it is put back only after every entry was got from each of its bookies, and never stays if that
changes.
"""

from __future__ import annotations

import logging
import time
import uuid
from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from bookwarden.clusters.bookkeeper.bookies.probe import ReplicaProbe, ReplicaStatus
from bookwarden.clusters.bookkeeper.bookies.proof import WholeLedgers
from bookwarden.clusters.bookkeeper.undone import UndoneLedger
from bookwarden.deletion.journal.entries import Journal, UndoRecord, UndoStep
from bookwarden.deletion.journal.reading import Deletion
from bookwarden.deletion.ports import LedgerCatalog, RecordsUndone
from bookwarden.deletion.undo.rows import (
    Survival,
    UndoCase,
    UndoOutcome,
    UndoRow,
    conclusion,
    entries_to_ask,
    preview,
    survey,
)
from bookwarden.errors import FormatError, StoreAccessError
from bookwarden.ledgers.metadata import (
    DeleteResult,
    LedgerMetadata,
    LedgerReading,
    LedgerState,
    Restoration,
    StoredLedger,
    UnreadableLedger,
)
from bookwarden.metastore.following.store import Migrations

logger = logging.getLogger(__name__)
_AT_ONCE: Final = 500
# Of metadata that changes each time.
_TRIES: Final = 5

_STEPS = {
    UndoOutcome.RESTORED: UndoStep.RESTORED,
    UndoOutcome.UNVERIFIED: UndoStep.UNVERIFIED,
    UndoOutcome.LOST: UndoStep.LOST,
}
_NO_SURVEYS: Final[Mapping[int, Survival]] = {}
_UNSETTLED = (UndoStep.BEGUN, UndoStep.UNVERIFIED, UndoStep.LOST)


#: Says which of these ledgers other registered bookie clusters have, or may have, each as it was read there.
ReadsElsewhere = Callable[[Sequence[int]], Mapping[int, StoredLedger | UnreadableLedger]]


def new_name() -> str:
    """Return a name for an undo that begins now."""
    return time.strftime("undo-%Y%m%dT%H%M%S-", time.gmtime()) + uuid.uuid4().hex[:8]


class Undo:
    """Restores deletions, batch by batch; ``name`` is that of this undo in the journal."""

    def __init__(
        self,
        catalog: LedgerCatalog,
        bookies: ReplicaProbe,
        migrations: Migrations,
        journal: Journal,
        decode: Callable[[bytes], LedgerMetadata],
        name: str,
        *,
        undone: RecordsUndone,
        discard_partial: bool = False,
        elsewhere: ReadsElsewhere = lambda _: {},
        proof: WholeLedgers | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Take the ports; ``decode`` reads a metadata node's value and raises FormatError.

        ``discard_partial`` also removes the metadata of a ledger that is lost only in part: its bookies drop the rest.
        ``proof`` is for ledgers that are ``elsewhere`` too; without one none of these is put back.
        """
        self._catalog = catalog
        self._bookies = bookies
        self._migrations = migrations
        self._journal = journal
        self._decode = decode
        self._name = name
        self._discard_partial = discard_partial
        self._elsewhere = elsewhere
        self._proof = proof
        self._undone = undone
        self._clock = clock

    def run(self, deletions: Iterable[Deletion]) -> Iterator[list[UndoRow]]:
        """Restore the deletions, which are iterated over several times; yield the results, some at a time.

        During a migration of the metadata it waits before it writes, and raises StoreMigratingError after as long as a
        write waits; StoreError when the store or the journal does not answer. Both may be tried again.
        """
        put_back = array("q")
        to_prove = False
        for batch in _batches(deletions):
            elsewhere = self._read_elsewhere(batch)
            to_prove = to_prove or bool(elsewhere)
            put_back.extend(self._put_back([each for each in batch if each.entry.ledger_id not in elsewhere]))
        # Ledgers that are in no other cluster are back before anything is proven, which takes long.
        for batch in _batches(deletions) if to_prove else ():
            elsewhere = self._read_elsewhere(batch)
            put_back.extend(self._put_back(self._proven([one for one in batch if one.entry.ledger_id in elsewhere])))
        put_back = array("q", sorted(put_back))
        for batch in _batches(deletions):
            yield self._conclude(batch, _among(put_back, batch))

    def preview(self, deletions: Iterable[Deletion]) -> Iterator[list[UndoRow]]:
        """Yield the result that an undo of each ledger would have now; write nothing."""
        for batch in _batches(deletions):
            cases = self._examine(batch)
            problems = self._problems(cases, self._read_elsewhere(batch), ())
            surveys = self._survey([case for case in cases if case.metadata is not None])
            yield [preview(case, surveys, problems) for case in cases]

    def _put_back(self, deletions: Sequence[Deletion]) -> set[int]:
        """Put back the metadata of ledgers that have none now and can be restored; return their ids.

        A sweep may be about to delete others: one that reads their records from now on keeps them, and one that has
        read them before deletes by the version that it read. So metadata that is there as it was is written once more.
        """
        self._migrations.await_writes()
        cases = [case for case in self._examine(deletions) if case.metadata is not None]
        self._note(cases)
        put_back: set[int] = set()
        for _ in range(_TRIES):
            # Looked at after the records were written: what is absent now was deleted before.
            cases = self._examine([case.deletion for case in cases])
            absent = [case.deletion for case in cases if case.is_absent]
            there = [(case, found) for case in cases if (found := case.never_deleted) is not None]
            self._record([(deletion, UndoStep.BEGUN) for deletion in absent])
            written = self._catalog.restore_many(
                [Restoration(d.entry.ledger_id, d.entry.path, d.entry.raw) for d in absent]
                + [Restoration(case.ledger_id, found.path, found.raw, found.version) for case, found in there]
            )
            put_back.update(deletion.entry.ledger_id for deletion in absent)
            # What was written or deleted meanwhile.
            done = written[len(absent) :]
            cases = [case for (case, _), is_written in zip(there, done, strict=True) if not is_written]
            if not cases:
                break
        return put_back

    def _conclude(self, deletions: Sequence[Deletion], put_back: Collection[int]) -> list[UndoRow]:
        """Ask the bookies about the ledgers, and return each one's result; ``put_back`` are those just put back.

        The metadata of a lost ledger is removed again, if an undo put it there and did not call it restored.
        """
        cases = self._examine(deletions)
        elsewhere = self._read_elsewhere(deletions)
        surveys = self._survey([case for case in cases if isinstance(case.reading, StoredLedger)])
        problems = self._problems(cases, elsewhere, put_back, surveys)
        doomed = [case for case in cases if case.ledger_id not in elsewhere and self._is_to_go(case, surveys, put_back)]
        doomed += [
            case
            for case in cases
            if case.ledger_id in problems and self._is_to_yield(case, elsewhere[case.ledger_id], put_back)
        ]
        if doomed:
            self._migrations.await_writes()
        gone = self._take_away(doomed)
        rows = [conclusion(case, surveys, gone, put_back, problems) for case in cases]
        self._record(_steps(cases, rows, put_back))
        return rows

    def _examine(self, deletions: Sequence[Deletion]) -> list[UndoCase]:
        readings = self._catalog.read_many([deletion.entry.ledger_id for deletion in deletions])
        return [self._case(deletion, reading) for deletion, reading in zip(deletions, readings, strict=True)]

    def _case(self, deletion: Deletion, reading: LedgerReading) -> UndoCase:
        entry = deletion.entry
        try:
            metadata = self._decode(entry.raw)
        except FormatError as error:
            return UndoCase(deletion, reading, None, f"what was deleted cannot be read: {error}")
        if metadata.state is not LedgerState.CLOSED:
            state = metadata.state.name.lower().replace("_", " ")
            text = f"it was {state} when it was deleted: a client that opens it would recover it to another end"
            return UndoCase(deletion, reading, None, text)
        if entry.path not in self._catalog.paths_of(entry.ledger_id):
            text = f"{entry.path} is no place for it in this cluster: is the journal another cluster's?"
            return UndoCase(deletion, reading, None, text)
        if isinstance(reading, UnreadableLedger):
            return UndoCase(deletion, reading, None, f"there is something in its place: {reading.reason}")
        if isinstance(reading, StoredLedger) and reading.raw != entry.raw:
            return UndoCase(deletion, reading, None, _other_metadata(reading.metadata, metadata))
        return UndoCase(deletion, reading, metadata)

    def _survey(self, cases: Sequence[UndoCase]) -> dict[int, Survival]:
        asked: list[tuple[int, LedgerMetadata, int]] = []
        answers: dict[int, list[tuple[int, Mapping[str, ReplicaStatus]]]] = {}
        for case in cases:
            if case.metadata is not None and case.never_deleted is None:
                answers[case.ledger_id] = []
                asked += [(case.ledger_id, case.metadata, entry_id) for entry_id in entries_to_ask(case.metadata)]
        for (ledger_id, _, entry_id), holdings in zip(asked, self._bookies.holdings(asked), strict=True):
            answers[ledger_id].append((entry_id, holdings))
        return {ledger_id: survey(found) for ledger_id, found in answers.items()}

    def _read_elsewhere(self, deletions: Sequence[Deletion]) -> Mapping[int, StoredLedger | UnreadableLedger]:
        return self._elsewhere([deletion.entry.ledger_id for deletion in deletions])

    def _proven(self, deletions: Sequence[Deletion]) -> list[Deletion]:
        """Return those that may be put back in front of what another cluster has, or are there."""
        cases = self._examine(deletions)
        return [case.deletion for case in cases if not case.is_absent or self._why_not_whole(case) is None]

    def _problems(
        self,
        cases: Sequence[UndoCase],
        elsewhere: Mapping[int, StoredLedger | UnreadableLedger],
        put_back: Collection[int],
        surveys: Mapping[int, Survival] = _NO_SURVEYS,
    ) -> dict[int, str]:
        """Return which of these ledgers other clusters have, and must not be read here, and why.

        What was just put back was proven a moment ago: that its bookies have not dropped it since, ``surveys`` tell.
        """
        problems: dict[int, str] = {}
        for case in cases:
            kept = elsewhere.get(case.ledger_id)
            if kept is None or case.obstacle is not None or case.never_deleted is not None:
                continue
            if case.ledger_id not in put_back:
                problem = self._why_not_whole(case)
            elif case.is_absent or surveys[case.ledger_id].is_whole:
                problem = None
            else:
                problem = str(surveys[case.ledger_id])
            if problem is not None:
                problems[case.ledger_id] = f"{_where(kept)}, and here it is not proven whole: {problem}"
        return problems

    def _why_not_whole(self, case: UndoCase) -> str | None:
        """Read every entry from each bookie of the ledger as it was deleted; return what is wrong, if anything."""
        entry, metadata = case.deletion.entry, case.metadata
        if metadata is None:
            return case.obstacle
        if self._proof is None:
            return "no bookies can be asked"
        return self._proof.problem_of(StoredLedger(entry.ledger_id, entry.path, 0, 0, entry.raw, metadata))

    def _is_to_yield(self, case: UndoCase, kept: StoredLedger | UnreadableLedger, put_back: Collection[int]) -> bool:
        """Return whether what an undo put back, and is not whole, is removed for what another cluster has."""
        if not isinstance(case.reading, StoredLedger) or not case.reading.is_as_created:
            return False
        if case.ledger_id in put_back or case.deletion.undone is UndoStep.BEGUN:
            return True
        # What an earlier undo reported may be all that is left by now.
        is_proven = isinstance(kept, StoredLedger) and self._proof is not None and self._proof.problem_of(kept) is None
        return case.deletion.undone is not None and is_proven

    def _is_to_go(self, case: UndoCase, surveys: Mapping[int, Survival], put_back: Collection[int]) -> bool:
        survival, reading = surveys.get(case.ledger_id), case.reading
        if survival is None or not survival.lost or not isinstance(reading, StoredLedger):
            return False
        if not reading.is_as_created:
            return False
        # A ledger that an undo called restored may be in use by now.
        by_undo = case.ledger_id in put_back or case.deletion.undone in _UNSETTLED
        # An entry that no bookie is known to hold may be on one that did not answer.
        left = survival.held or survival.unknown
        return by_undo and (self._discard_partial or not left)

    def _take_away(self, cases: Sequence[UndoCase]) -> dict[int, DeleteResult]:
        stored = [case.reading for case in cases if isinstance(case.reading, StoredLedger)]
        results = self._catalog.delete_many(stored)
        gone = (DeleteResult.DELETED, DeleteResult.ABSENT)
        self._withdraw([found.ledger_id for found, result in zip(stored, results, strict=True) if result in gone])
        return {reading.ledger_id: result for reading, result in zip(stored, results, strict=True)}

    def _note(self, cases: Sequence[UndoCase]) -> None:
        """Record for every sweep that these ledgers must stay, before there is anything to delete."""
        now_ms = int(self._clock() * 1000)
        records = [UndoneLedger(case.ledger_id, self._name, now_ms, case.ctime_ms) for case in cases]
        try:
            self._undone.note_many(records)
        except StoreAccessError as error:
            # Bookies do not wait: a ledger put back without a record can still be saved from a mark, by hand.
            logger.warning("the sweep will not know of this undo, so stop it until no mark is in flight: %s", error)

    def _withdraw(self, ledger_ids: Sequence[int]) -> None:
        try:
            self._undone.withdraw_many(ledger_ids)
        except StoreAccessError as error:
            logger.warning("records of ledgers that are lost stay: %s", error)

    def _record(self, steps: Sequence[tuple[Deletion, UndoStep]]) -> None:
        now_ms = int(self._clock() * 1000)
        records = [
            UndoRecord(d.entry.ledger_id, d.entry.run, self._name, step, now_ms, d.entry.bookie_cluster)
            for d, step in steps
        ]
        if records:
            self._journal.append(records)


def _among(ledger_ids: array[int], deletions: Iterable[Deletion]) -> set[int]:
    """Return the ledgers of these deletions that are among the sorted ids."""
    wanted = (deletion.entry.ledger_id for deletion in deletions)
    return {one for one in wanted if (at := bisect_left(ledger_ids, one)) < len(ledger_ids) and ledger_ids[at] == one}


def _batches(deletions: Iterable[Deletion]) -> Iterator[list[Deletion]]:
    source = iter(deletions)
    while batch := list(islice(source, _AT_ONCE)):
        yield batch


def _steps(
    cases: Sequence[UndoCase], rows: Sequence[UndoRow], put_back: Collection[int]
) -> list[tuple[Deletion, UndoStep]]:
    steps = []
    for case, row in zip(cases, rows, strict=True):
        step, before = _STEPS.get(row.outcome), case.deletion.undone
        if step is not None and (case.ledger_id in put_back or before not in (None, step)):
            steps.append((case.deletion, step))
    return steps


def _where(kept: StoredLedger | UnreadableLedger) -> str:
    if isinstance(kept, UnreadableLedger):
        return f"another bookie cluster may have it ({kept.reason})"
    return f"bookie cluster {kept.bookie_cluster} has it"


def _other_metadata(found: LedgerMetadata, deleted: LedgerMetadata) -> str:
    if found.ctime_ms != deleted.ctime_ms:
        return "another ledger has this id now: the two were not created at the same time"
    return "it has metadata, which is not what was deleted"
