"""Apply the offloaded copies of a plan: pending deletions for them, which phase two verifies again.

The guards are those of the ledgers', with the shares counted for each store. Nothing is read of the copies before: the
sweep asks whether their managed ledger names them, and the copies themselves whose they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from bookwarden.deletion.mark import Marker
from bookwarden.errors import RefusedError
from bookwarden.orphans.apply import FRUITLESS_BATCHES, ApplyResult, Examination, PlanRun
from bookwarden.orphans.copy_plan import CopyCandidate
from bookwarden.orphans.guards import GuardLimits, check, check_copies, held_back_copy
from bookwarden.orphans.plan import PlanManifest
from bookwarden.orphans.ports import ClusterProbe, CopyPlanStore


class ApplyCopies:
    """Applies the copies of plans; ``batch`` at a time. ``on_batch`` is told of the result so far."""

    def __init__(
        self,
        store: CopyPlanStore,
        marker: Marker,
        cluster: ClusterProbe,
        limits: GuardLimits,
        *,
        batch: int = 1_000,
        clock: Callable[[], float] = time.time,
        on_batch: Callable[[ApplyResult], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._marker = marker
        self._cluster = cluster
        self._limits = limits
        self._batch = batch
        self._clock = clock
        self._on_batch = on_batch

    def run(self, plan_id: str, *, execute: bool = False, allow_emptied: Collection[str] = ()) -> ApplyResult:
        """Mark the plan's copies; without `execute` only say which would be. Errors are those of `Apply.run`."""
        if execute and not self._marker.enabled:
            raise RefusedError(
                "marks are turned off (deletion.topic_two_phase_deletion_enabled), so no plan can be applied: turn "
                "them on"
            )
        plan = self._store.manifest(plan_id)
        self._store.verify(plan)
        self._check(plan, allow_emptied)
        run: PlanRun[CopyCandidate] = PlanRun(
            plan,
            self._store.copy_progress(plan),
            execute,
            self._limits,
            total=plan.copy_candidates,
            hold=lambda candidate: held_back_copy(candidate, plan, self._limits),
        )
        for candidates in self._store.copies(plan, self._batch):
            due = run.due(candidates)
            if due:
                self._check(plan, allow_emptied)
                if execute:
                    report = self._marker.mark([one.mark(f"orphan scan {plan.plan_id}") for one in due])
                    run.mark(due, [marked.failure for marked in report.ledgers])
                    now_ms = int(self._clock() * 1000)
                    self._store.record_copies(plan, run.progress(candidates[-1].order, now_ms))
                else:
                    run.mark(due, [None] * len(due))
            self._on_batch(run.result())
            if run.fruitless >= FRUITLESS_BATCHES:
                return run.result(run.why_fruitless())
        return run.result()

    def _check(self, plan: PlanManifest, allow_emptied: Collection[str]) -> None:
        now_ms = int(self._clock() * 1000)
        refusals = check(plan, self._cluster.identity(), self._limits, now_ms, allow_emptied)
        Examination(plan, (*refusals, *check_copies(plan, self._limits))).raise_refusals()
