"""Application of a plan: pending deletions for its ledgers and copies, which phase two verifies again."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from bookwarden.deletion.node_check import Suspect
from bookwarden.errors import RefusedError
from bookwarden.ledgers.custom_metadata import describe_custom_metadata, identify_holder
from bookwarden.ledgers.kinds import Holder, ManagedLedgerHolder
from bookwarden.ledgers.metadata import AbsentLedger, LedgerReading, UnreadableLedger
from bookwarden.ledgers.pending_deletion import PendingDeletion, Waiver, mark_of_holder
from bookwarden.orphans.applying import Application, PlanRun
from bookwarden.orphans.copy_plan import CopyCandidate
from bookwarden.orphans.guards import Refusal, check_copies, held_back, held_back_copy
from bookwarden.orphans.owners import owner_of
from bookwarden.orphans.plan import Candidate, PlanManifest
from bookwarden.orphans.progress import ApplyProgress


class Apply(Application[Candidate]):
    """Applies the ledgers of plans, whose metadata is read once more and must be what the plan says."""

    def _begin(self, plan: PlanManifest, execute: bool, emptied: Collection[str]) -> PlanRun[Candidate]:
        return PlanRun(
            plan,
            self._store.progress(plan),
            execute,
            self._limits,
            total=plan.counts.candidates,
            hold=lambda candidate: held_back(candidate, plan, self._limits, emptied),
            emptied=emptied,
        )

    def _batches(self, plan: PlanManifest) -> Iterator[Sequence[Candidate]]:
        return self._store.candidates(plan, self._batch)

    def _apply(self, run: PlanRun[Candidate], due: Sequence[Candidate]) -> None:
        readings = self._catalog.read_many([candidate.ledger_id for candidate in due])
        sound: list[tuple[Candidate, LedgerReading]] = []
        for candidate, reading in zip(due, readings, strict=True):
            reason = difference(candidate, reading)
            if reason is None:
                sound.append((candidate, reading))
            else:
                run.drop(candidate, reason)
        # That a topic would be left without a ledger is a matter of the plan's guards.
        waives = frozenset({Waiver.EMPTIED})
        suspects = [Suspect(_holder_of(candidate), reading, waives=waives) for candidate, reading in sound]
        self._mark_undoubted(run, [candidate for candidate, _ in sound], suspects)

    def _mark_of(self, run: PlanRun[Candidate], candidate: Candidate) -> PendingDeletion:
        holder = _holder_of(candidate)
        mark = mark_of_holder(candidate.ledger_id, holder, run.reason)
        # Emptying the topic was allowed, or the candidate would have been held back; the sweep has the same guard.
        allowed = holder.topic in run.emptied_topics
        return replace(mark, waives=frozenset({Waiver.EMPTIED})) if allowed else mark

    def _record(self, plan: PlanManifest, progress: ApplyProgress) -> None:
        self._store.record(plan, progress)


class ApplyCopies(Application[CopyCandidate]):
    """Applies the copies of plans; the guards are the same as for ledgers, with shares counted per store.

    The copies are not read before, only the nodes of their managed ledgers are checked: the sweep finds out whether
    these name them, and reads from the copies themselves who owns them.
    """

    def _apply(self, run: PlanRun[CopyCandidate], due: Sequence[CopyCandidate]) -> None:
        readings = self._catalog.read_many([candidate.ledger_id for candidate in due])
        suspects = [
            Suspect(ManagedLedgerHolder(candidate.managed_ledger), reading, is_copy=True)
            for candidate, reading in zip(due, readings, strict=True)
        ]
        self._mark_undoubted(run, due, suspects)

    def _further_refusals(self, plan: PlanManifest) -> Collection[Refusal]:
        return check_copies(plan, self._limits)

    def _begin(self, plan: PlanManifest, execute: bool, emptied: Collection[str]) -> PlanRun[CopyCandidate]:
        return PlanRun(
            plan,
            self._store.copy_progress(plan),
            execute,
            self._limits,
            total=plan.copy_candidates,
            hold=lambda candidate: held_back_copy(candidate, plan, self._limits, emptied),
            emptied=emptied,
        )

    def _batches(self, plan: PlanManifest) -> Iterator[Sequence[CopyCandidate]]:
        return self._store.copies(plan, self._batch)

    def _mark_of(self, run: PlanRun[CopyCandidate], candidate: CopyCandidate) -> PendingDeletion:
        return candidate.mark(run.reason)

    def _record(self, plan: PlanManifest, progress: ApplyProgress) -> None:
        self._store.record_copies(plan, progress)


def _holder_of(candidate: Candidate) -> Holder:
    owner = owner_of(candidate.kind, candidate.holder)
    if owner is None:
        raise RefusedError(f"ledger {candidate.ledger_id} has no holder that a mark could name: it was not compared")
    return owner.holder


def difference(candidate: Candidate, reading: LedgerReading) -> str | None:
    """Describe how a ledger differs from what the plan says of it; None if it is the same."""
    if isinstance(reading, AbsentLedger):
        return "BookKeeper has no metadata of it any more"
    if isinstance(reading, UnreadableLedger):
        return f"its metadata cannot be read: {reading.reason}"
    # In several bookie clusters it is planned in one of its places.
    planned_place = (candidate.path, candidate.version, candidate.created_ms)
    same = (each for each in reading.places if (each.path, each.version, each.created_ms) == planned_place)
    reading = next(same, reading)
    for name, planned, found in (
        ("ledger", candidate.ledger_id, reading.ledger_id),
        ("path", candidate.path, reading.path),
        ("version", candidate.version, reading.version),
        ("creation time", candidate.created_ms, reading.created_ms),
        ("creator's time", candidate.ctime_ms, reading.metadata.ctime_ms),
    ):
        if planned != found:
            return f"its {name} is {found}, in the plan {planned}"
    owner = owner_of(candidate.kind, candidate.holder)
    if owner is None or identify_holder(reading.metadata.custom) != owner.holder:
        custom = describe_custom_metadata(reading.metadata.custom)
        return f"its custom metadata is {custom}, in the plan it is a {candidate.kind} of {candidate.holder}"
    return None
