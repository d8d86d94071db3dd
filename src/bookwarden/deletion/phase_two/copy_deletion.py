"""Phase two for offloaded copies: the guard that proves who owns a copy, and the act that journals and deletes them.

A copy has no version to delete by. Its UUID is never used again, so a copy that its holder no longer names cannot
become named; what remains is to prove that the mark names the right holder. BookKeeper's metadata of the ledger and
the copy itself both name it, and must agree. The name of a segment of the former streaming offload has no ledger in it,
so only the segment itself names its holder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from bookwarden.clusters.offload.stores import OffloadStores
from bookwarden.deletion.journal.entries import CopyEntry, Journal
from bookwarden.deletion.phase_two.decide import Action, Decision, DeletionPolicy, finish, retry
from bookwarden.deletion.phase_two.guards import DeletionCandidate, Guard
from bookwarden.errors import MalformedMarkError
from bookwarden.ledgers.offloaded_copies import (
    LEGACY_SEGMENT,
    AbsentCopy,
    CopyDeletion,
    CopyFate,
    CopyReading,
    OffloadedCopy,
    UnreadableCopy,
    store_location,
)
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.ledgers.pending_deletion import PendingDeletion

_NOTHING_LEFT = "BookKeeper has nothing left of the ledger (offload.verify_owner)"


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


_ALREADY_GONE: Final = finish(Outcome.ALREADY_GONE, "the store has no object of this copy")
_GO: Final = Decision(Action.DELETE_COPY, Outcome.DELETED, "")
_GO_ABSENT: Final = replace(_ALREADY_GONE, action=Action.DELETE_COPY)


class CopyOwnerGuard(Guard):
    """Guard of copies that are not proven to be the holder's.

    With ``verify_owner`` False the mark is believed about the owner of a copy where BookKeeper has nothing left of the
    ledger, and no copies are read but segments of the former streaming offload.
    """

    actions = (Action.DELETE_COPY, Action.PROVE_COPY)

    def __init__(self, stores: Callable[[], OffloadStores], *, verify_owner: bool = True) -> None:
        self._stores = stores
        self._verify_owner = verify_owner

    def review(self, candidates: Sequence[DeletionCandidate]) -> list[Decision]:
        """Read the owner of each copy; what is proven is to be deleted."""
        copies = [copy_of(one.mark) for one in candidates]
        read = [copy for copy in dict.fromkeys(copies) if self._verify_owner or copy.segment]
        readings = dict(zip(read, self._stores().read_many(read), strict=True)) if read else {}
        return [
            _verdict(copy, readings.get(copy), proven=one.decision.action is Action.DELETE_COPY)
            for one, copy in zip(candidates, copies, strict=True)
        ]


class CopyDeleter:
    """Deletion of the copies that all guards let go."""

    def __init__(
        self, stores: OffloadStores, journal: Journal, policy: DeletionPolicy, clock: Callable[[], float]
    ) -> None:
        self._stores = stores
        self._journal = journal
        self._policy = policy
        self._clock = clock

    def carry_out(self, candidates: Sequence[DeletionCandidate], run: str) -> list[DeletionCandidate]:
        """Journal and delete these copies; return all candidates, in order, with what became of them.

        Raises StoreUnavailableError when the journal cannot be written: nothing was deleted then.
        """
        doomed = {at: copy_of(one.mark) for at, one in enumerate(candidates) if one.decision.action is _GO.action}
        after = list(candidates)
        if not doomed:
            return after
        copies, now_ms = list(dict.fromkeys(doomed.values())), int(self._clock() * 1000)
        self._journal.append([_entry(copy, run, now_ms) for copy in copies])
        results = dict(zip(copies, self._stores.delete_many(copies), strict=True))
        for at, copy in doomed.items():
            decision = _after(after[at].decision, results[copy])
            after[at] = after[at].decided(decision, self._policy)
            if decision.outcome is Outcome.DELETED:
                # A second mark of the same copy in this step finds it gone.
                results[copy] = CopyDeletion(CopyFate.ABSENT)
        return after


def _verdict(copy: OffloadedCopy, reading: CopyReading | None, *, proven: bool) -> Decision:
    """Return why the copy is kept, or that it may go; an absent one may too, since its index may be left.

    ``proven``: BookKeeper's metadata of the ledger names the holder.
    """
    if isinstance(reading, UnreadableCopy):
        return retry(f"whose the offloaded copy is cannot be read: {reading.reason}")
    if isinstance(reading, AbsentCopy):
        # The owner of an index that may be left of a segment is unknown.
        return _ALREADY_GONE if copy.segment else _GO_ABSENT
    if reading is None or reading.owner == copy.managed_ledger:
        return _GO
    owner = reading.owner
    if owner is None and proven and not copy.segment:
        return _GO
    if owner is None:
        owner = f"no owner, and {'its name has no ledger' if copy.segment else _NOTHING_LEFT}"
    text = f"pending deletion says {copy.managed_ledger}; the offloaded copy {copy.uuid} names {owner}"
    return finish(Outcome.MISMATCH, text)


def _after(decision: Decision, result: CopyDeletion) -> Decision:
    if result.fate is CopyFate.FAILED:
        return retry(f"the offloaded copy could not be deleted: {result.reason}")
    if result.fate is CopyFate.ABORTED:
        return finish(Outcome.DELETED, "an unfinished upload of it was aborted")
    if result.fate is CopyFate.ABSENT or decision.outcome is Outcome.ALREADY_GONE:
        return _ALREADY_GONE
    return finish(Outcome.DELETED, "")


def _entry(copy: OffloadedCopy, run: str, now_ms: int) -> CopyEntry:
    return CopyEntry(copy.ledger_id, copy.managed_ledger, str(copy.uuid), str(copy.location), run, now_ms)
