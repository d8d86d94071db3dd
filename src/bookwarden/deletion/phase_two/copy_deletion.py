"""Phase two for offloaded copies: prove who owns a copy, journal, delete many at once, account for each mark.

A copy has no version to delete by. Its UUID is never used again, so a copy that its holder no longer names cannot
become named; what remains is to prove that the mark names the right holder. BookKeeper's metadata of the ledger and
the copy itself both name it, and must agree. The name of a segment of the former streaming offload has no ledger in it,
so only the segment itself names its holder.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from bookwarden.deletion.journal.entries import CopyEntry, Journal
from bookwarden.deletion.phase_two.decide import Action, Decision, DeletionPolicy, limit_retries
from bookwarden.deletion.ports import OffloadedCopies
from bookwarden.errors import MalformedMarkError
from bookwarden.ledgers.offloaded_copies import (
    LEGACY_SEGMENT,
    AbsentCopy,
    CopyDeletion,
    CopyFate,
    CopyReading,
    OffloadedCopy,
    PresentCopy,
    UnreadableCopy,
    store_location,
)
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.ledgers.pending_deletion import PendingDeletion
from bookwarden.ledgers.received import ReceivedMark

logger = logging.getLogger(__name__)

_NOTHING_LEFT = "BookKeeper has nothing left of the ledger (offload.verify_owner)"
_NO_STORE = "no store of offloaded copies is set up"

_Decided = tuple[ReceivedMark, Decision]


def copy_of(mark: PendingDeletion) -> OffloadedCopy:
    """Return the copy that a mark asks for; MalformedMarkError if it names none."""
    context = mark.offload_context
    if context is None:
        raise MalformedMarkError(f"ledger {mark.ledger_id}: an offloaded copy needs offloadContext")
    return OffloadedCopy(
        mark.ledger_id,
        str(mark.holder()),
        context.uuid,
        store_location(context.driver_name, context.metadata),
        context.metadata.get(LEGACY_SEGMENT) == "true",
    )


class NoStores:
    """The stores of offloaded copies when none is set up: every copy is kept."""

    def read_many(self, copies: Sequence[OffloadedCopy]) -> list[CopyReading]:
        """Read none."""
        return [UnreadableCopy(_NO_STORE, has_store=False) for _ in copies]

    def examine_many(self, copies: Sequence[OffloadedCopy]) -> list[CopyReading]:
        """Examine none."""
        return self.read_many(copies)

    def delete_many(self, copies: Sequence[OffloadedCopy]) -> list[CopyDeletion]:
        """Delete none."""
        return [CopyDeletion(CopyFate.FAILED, _NO_STORE) for _ in copies]


class CopyDeletions:
    """Carries out the decisions about offloaded copies.

    With ``verify_owner`` False the mark is believed about the owner of a copy where BookKeeper has nothing left of the
    ledger, and no copies are read but segments of the former streaming offload.
    """

    def __init__(
        self,
        copies: OffloadedCopies,
        journal: Journal,
        policy: DeletionPolicy,
        clock: Callable[[], float],
        *,
        verify_owner: bool = True,
        dry_run: bool = False,
    ) -> None:
        self._copies = copies
        self._journal = journal
        self._policy = policy
        self._clock = clock
        self._verify_owner = verify_owner
        self._dry_run = dry_run

    def carry_out(self, decided: Sequence[_Decided], run: str) -> list[_Decided]:
        """Delete the copies that are to go and are proven to be the holder's; other decisions stay as they are.

        Raises StoreUnavailableError when the journal cannot be written: nothing was deleted then.
        """
        asked = [
            (message, decision, copy_of(message.mark))
            for message, decision in decided
            if decision.action in (Action.DELETE_COPY, Action.PROVE_COPY) and message.mark is not None
        ]
        if not asked:
            return list(decided)
        readings = self._read([copy for _, _, copy in asked])
        verdicts = {
            copy: _verdict(copy, readings.get(copy), proven=decision.action is Action.DELETE_COPY)
            for _, decision, copy in asked
        }
        verdicts.update(self._delete([copy for copy, verdict in verdicts.items() if verdict is None], readings, run))
        after: dict[int, Decision] = {}
        seen: set[OffloadedCopy] = set()
        for message, _, copy in asked:
            verdict = verdicts[copy] or _ALREADY_GONE
            # A second mark of the same copy in this step finds it gone.
            again = copy in seen and verdict.outcome is Outcome.DELETED
            seen.add(copy)
            after[id(message)] = limit_retries(_ALREADY_GONE if again else verdict, message.attempts, self._policy)
            if verdict.outcome is Outcome.MISMATCH:
                logger.warning("offloaded copy %s of ledger %d is kept: %s", copy.uuid, copy.ledger_id, verdict.reason)
        return [(message, after.get(id(message), decision)) for message, decision in decided]

    def _read(self, copies: Sequence[OffloadedCopy]) -> dict[OffloadedCopy, CopyReading]:
        distinct = [copy for copy in dict.fromkeys(copies) if self._verify_owner or copy.segment]
        return dict(zip(distinct, self._copies.read_many(distinct), strict=True)) if distinct else {}

    def _delete(
        self, copies: Sequence[OffloadedCopy], readings: dict[OffloadedCopy, CopyReading], run: str
    ) -> dict[OffloadedCopy, Decision]:
        if not copies:
            return {}
        if self._dry_run:
            would = Decision(Action.FINISH, Outcome.WOULD_DELETE, "dry run")
            return {copy: _ALREADY_GONE if isinstance(readings.get(copy), AbsentCopy) else would for copy in copies}
        now_ms = int(self._clock() * 1000)
        self._journal.append([_entry(copy, run, now_ms) for copy in copies])
        results = self._copies.delete_many(copies)
        return {copy: _after(readings.get(copy), result) for copy, result in zip(copies, results, strict=True)}


_ALREADY_GONE = Decision(Action.FINISH, Outcome.ALREADY_GONE, "the store has no object of this copy")


def _verdict(copy: OffloadedCopy, reading: CopyReading | None, *, proven: bool) -> Decision | None:
    """Return why the copy is kept; None where it may go, also an absent one: its index may be left.

    ``proven``: BookKeeper's metadata of the ledger names the holder.
    """
    if isinstance(reading, UnreadableCopy):
        return Decision(Action.RETRY, Outcome.RETRY, f"whose the offloaded copy is cannot be read: {reading.reason}")
    if copy.segment and isinstance(reading, AbsentCopy):
        # Nothing tells the owner of an index that may be left.
        return _ALREADY_GONE
    if isinstance(reading, PresentCopy) and reading.owner != copy.managed_ledger:
        owner = reading.owner
        if owner is None and proven and not copy.segment:
            return None
        if owner is None:
            why = "its name has no ledger" if copy.segment else _NOTHING_LEFT
            owner = f"nobody, and {why}"
        text = f"pending deletion says {copy.managed_ledger}; the offloaded copy {copy.uuid} names {owner}"
        return Decision(Action.FINISH, Outcome.MISMATCH, text)
    return None


def _after(reading: CopyReading | None, result: CopyDeletion) -> Decision:
    if result.fate is CopyFate.FAILED:
        return Decision(Action.RETRY, Outcome.RETRY, f"the offloaded copy could not be deleted: {result.reason}")
    if result.fate is CopyFate.ABORTED:
        return Decision(Action.FINISH, Outcome.DELETED, "an unfinished upload of it was aborted")
    if result.fate is CopyFate.ABSENT or isinstance(reading, AbsentCopy):
        return _ALREADY_GONE
    return Decision(Action.FINISH, Outcome.DELETED, "")


def _entry(copy: OffloadedCopy, run: str, now_ms: int) -> CopyEntry:
    return CopyEntry(copy.ledger_id, copy.managed_ledger, str(copy.uuid), str(copy.location), run, now_ms)
