"""Phase two for ledgers: journal the metadata of those that all guards let go, and delete it by the version read.

Some checks are repeated right before the delete, since the proofs may have taken long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from typing import Final

from bookwarden.deletion.journal.entries import Journal, JournalEntry
from bookwarden.deletion.phase_two.decide import Action, DeletionPolicy, finish, in_its_place, retry, wait
from bookwarden.deletion.phase_two.guards import DeletionCandidate, Guard, reviewed
from bookwarden.deletion.phase_two.superseded import SupersededGuard
from bookwarden.deletion.ports import BookieClusters, LedgerCatalog
from bookwarden.ledgers.live_references import LiveReferences
from bookwarden.ledgers.metadata import Conditions, DeleteResult, StoredLedger
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.ledgers.pending_deletion import Waiver

_AFTER_DELETE: Final = {
    DeleteResult.DELETED: finish(Outcome.DELETED, ""),
    DeleteResult.ABSENT: finish(Outcome.ALREADY_GONE, "gone between check and delete"),
    DeleteResult.LOST_RACE: retry("the metadata changed between check and delete"),
    DeleteResult.UNKNOWN: retry("the connection broke under the delete"),
}
_SUPERSEDED_CHANGED: Final = wait(
    "the registry of bookie clusters, the promotion or the ledger's metadata changed between check and delete"
)
# Number of deletes of superseded places before which registry and promotion are read again.
_SUPERSEDED_AT_ONCE: Final = 50
_NOT_DONE: Final = (DeleteResult.LOST_RACE, DeleteResult.UNKNOWN)
# Of a ledger with several places: what is left to do comes before what is done.
_WORST_FIRST: Final = (DeleteResult.UNKNOWN, DeleteResult.LOST_RACE, DeleteResult.DELETED, DeleteResult.ABSENT)
_Place = tuple[int, str]  # A ledger id, and the name of a bookie cluster.


class LedgerDeleter:
    """Deletion of the ledgers that all guards let go; the guards ``again`` are asked once more after the journal."""

    def __init__(
        self,
        catalog: LedgerCatalog,
        journal: Journal,
        policy: DeletionPolicy,
        clock: Callable[[], float],
        *,
        clusters: BookieClusters,
        superseded: SupersededGuard,
        again: Sequence[Guard],
    ) -> None:
        self._catalog = catalog
        self._journal = journal
        self._policy = policy
        self._clock = clock
        self._clusters = clusters
        self._superseded = superseded
        self._again = again

    def carry_out(
        self, candidates: Sequence[DeletionCandidate], run: str
    ) -> tuple[list[DeletionCandidate], frozenset[int]]:
        """Journal and delete these ledgers; return all candidates, in order, with what became of them.

        The second result are the ledgers that could not be deleted, or perhaps were not. Raises StoreUnavailableError
        when the journal cannot be written: nothing was deleted then.
        """
        superseded = [at for at, one in enumerate(candidates) if _is_superseded(one)]
        others = sorted(frozenset(range(len(candidates))).difference(superseded))
        some = [candidates[at] for at in others]
        settled, not_done = self._delete(some, [_as_read(one) for one in some], run)
        after = dict(zip(others, settled, strict=True))
        for start in range(0, len(superseded), _SUPERSEDED_AT_ONCE):
            part = superseded[start : start + _SUPERSEDED_AT_ONCE]
            some, demanded = self._superseded.require([candidates[at] for at in part], self._policy)
            settled, left = self._delete(some, demanded, run)
            after |= dict(zip(part, settled, strict=True))
            not_done |= left
        return [after[at] for at in range(len(candidates))], not_done

    def _delete(
        self, candidates: Sequence[DeletionCandidate], demanded: Sequence[Conditions], run: str
    ) -> tuple[list[DeletionCandidate], frozenset[int]]:
        doomed: dict[_Place, StoredLedger] = {}
        entries: list[JournalEntry] = []
        conditions: list[Conditions] = []
        instances = self._clusters.instances() if any(map(_goes, candidates)) else {}
        for one, demands in zip(candidates, demanded, strict=True):
            for ledger in _doomed(one):
                place = (ledger.ledger_id, ledger.bookie_cluster)
                if place not in doomed:
                    doomed[place] = ledger
                    instance = instances.get(ledger.bookie_cluster, "")
                    entries.append(_entry(ledger, one, run, int(self._clock() * 1000), instance))
                    conditions.append(demands)
        if not doomed:
            return list(candidates), frozenset()
        self._journal.append(entries)
        # An undo may have begun, or ids may return, since copies took their time. An undo that begins from here on has
        # the delete fail by its version.
        candidates = reviewed(candidates, self._again, self._policy)
        left = {one.mark.ledger_id for one in candidates if _goes(one)}
        kept = [ledger_id in left for ledger_id, _ in doomed]
        doomed = {place: ledger for place, ledger in doomed.items() if place[0] in left}
        deleted = self._catalog.delete_many(list(doomed.values()), list(compress(conditions, kept)))
        results = dict(zip(doomed, deleted, strict=True))
        not_done = frozenset(ledger_id for (ledger_id, _), result in results.items() if result in _NOT_DONE)
        return [self._after_delete(one, results) if _goes(one) else one for one in candidates], not_done

    def _after_delete(self, one: DeletionCandidate, results: dict[_Place, DeleteResult]) -> DeletionCandidate:
        places = [(ledger.ledger_id, ledger.bookie_cluster) for ledger in _doomed(one)]
        result = worst(results[place] for place in places)
        for place in places:
            if results[place] is DeleteResult.DELETED:
                # A second mark of the same ledger in this step finds it gone.
                results[place] = DeleteResult.ABSENT
        if result is DeleteResult.LOST_RACE and _is_superseded(one):
            return one.decided(_SUPERSEDED_CHANGED, self._policy)
        return one.decided(_AFTER_DELETE[result], self._policy)


def worst(results: Iterable[DeleteResult]) -> DeleteResult:
    """Return the result for a ledger of which each place has one."""
    found = frozenset(results)
    return next(result for result in _WORST_FIRST if result in found)


def _goes(one: DeletionCandidate) -> bool:
    return one.decision.action is Action.DELETE


def _is_superseded(one: DeletionCandidate) -> bool:
    return _goes(one) and Waiver.SUPERSEDED in one.waives


def _doomed(one: DeletionCandidate) -> tuple[StoredLedger, ...]:
    """List what is to be deleted: the ledger in each of its places, or in the one that the mark names."""
    reading = in_its_place(one.mark, one.reading) if _goes(one) else None
    return reading.places if isinstance(reading, StoredLedger) else ()


def _as_read(one: DeletionCandidate) -> Conditions:
    """Return the nodes that must be as they were read when the ledger is deleted."""
    return one.references.conditions if _goes(one) and isinstance(one.references, LiveReferences) else ()


def _entry(ledger: StoredLedger, one: DeletionCandidate, run: str, now_ms: int, instance: str) -> JournalEntry:
    return JournalEntry(
        ledger_id=ledger.ledger_id,
        holder=str(one.holder),
        path=ledger.path,
        version=ledger.version,
        created_ms=ledger.created_ms,
        raw=ledger.raw,
        run=run,
        journaled_at=now_ms,
        bookie_cluster=ledger.bookie_cluster,
        instance=instance,
    )
