"""Apply the offloaded copies of a plan: pending deletions for them, which phase two verifies again.

The guards are the same as for ledgers, with shares counted per store. The copies are not read before: the sweep checks
whether their managed ledger names them, and reads from the copies themselves who owns them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from bookwarden.ledgers.pending_deletion import PendingDeletion
from bookwarden.orphans.applying import Application, PlanRun
from bookwarden.orphans.copy_plan import CopyCandidate
from bookwarden.orphans.guards import Refusal, check_copies, held_back_copy
from bookwarden.orphans.plan import PlanManifest
from bookwarden.orphans.ports import CopyPlanStore
from bookwarden.orphans.progress import ApplyProgress


class ApplyCopies(Application[CopyPlanStore, CopyCandidate]):
    """Applies the copies of plans."""

    def _further_refusals(self, plan: PlanManifest) -> Collection[Refusal]:
        return check_copies(plan, self._limits)

    def _begin(self, plan: PlanManifest, execute: bool) -> PlanRun[CopyCandidate]:
        return PlanRun(
            plan,
            self._store.copy_progress(plan),
            execute,
            self._limits,
            total=plan.copy_candidates,
            hold=lambda candidate: held_back_copy(candidate, plan, self._limits),
        )

    def _batches(self, plan: PlanManifest) -> Iterator[Sequence[CopyCandidate]]:
        return self._store.copies(plan, self._batch)

    def _mark_of(self, run: PlanRun[CopyCandidate], candidate: CopyCandidate) -> PendingDeletion:
        return candidate.mark(run.reason)

    def _record(self, plan: PlanManifest, progress: ApplyProgress) -> None:
        self._store.record_copies(plan, progress)
