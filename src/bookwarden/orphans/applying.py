"""The common part of applying a plan's ledgers and its offloaded copies.

The plan's guards are checked first, and again before each batch. Progress is saved once the marks of a batch are
answered, so a killed run continues there; the marks of the batch under way are then sent again, which does no harm.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, NamedTuple, Protocol, TypeVar

from bookwarden.deletion.node_check import NodeDoubt, Suspect
from bookwarden.deletion.phase_one.mark import Marker
from bookwarden.deletion.ports import LedgerCatalog
from bookwarden.errors import NotFoundError, PulsarError, RefusedError
from bookwarden.ledgers.pending_deletion import PendingDeletion, Request
from bookwarden.orphans.cluster import PlanCluster
from bookwarden.orphans.copy_plan import CopyCandidate
from bookwarden.orphans.guards import GuardLimits, Refusal, check, not_to_be_emptied
from bookwarden.orphans.plan import Candidate, PlanManifest
from bookwarden.orphans.progress import ApplyProgress

SHOWN = 1_000
_IN_FLIGHT = "a mark of it is in flight (bookwarden inflight)"
# After this number of batches in a row without one confirmed mark, the rest is left for the next run.
_FRUITLESS_BATCHES = 3


class NamedCandidate(NamedTuple):
    """A candidate that was not marked, and why."""

    ledger_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """The outcome of one run over a plan's candidates; the counts and ``left`` add up to ``candidates``."""

    plan_id: str  #: As in the manifest.
    executed: bool  #: False for a dry run, in which ``marked`` are those that would be.
    candidates: int  #: All of the plan: its ledgers, or its offloaded copies.
    earlier: int = 0  #: Settled by earlier runs.
    marked: int = 0  #: Candidates whose marks the broker confirmed.
    marked_bytes: int = 0  #: Logical bytes of the marked.
    failed: tuple[NamedCandidate, ...] = ()  #: Not confirmed: the next run tries them again.
    dropped: tuple[NamedCandidate, ...] = ()  #: No longer as the plan has them: the first SHOWN of these.
    dropped_total: int = 0  #: Number of all dropped.
    held_back: tuple[NamedCandidate, ...] = ()  #: Waiting for a later plan: the first SHOWN of these.
    held_back_by: Mapping[str, int] = field(default_factory=dict)  #: Number of those waiting, by reason.
    stopped: str = ""  #: Why the run ended before the last candidate; "" if it did not.
    not_compared: str = ""  #: Why marks in flight could not be read, so that some were sent twice; "" if they were.

    @property
    def held_back_total(self) -> int:
        """How many candidates have to wait."""
        return sum(self.held_back_by.values())

    @property
    def left(self) -> int:
        """How many candidates this run did not reach."""
        done = self.earlier + self.marked + len(self.failed) + self.dropped_total + self.held_back_total
        return self.candidates - done

    @property
    def done(self) -> bool:
        """Whether nothing is left for another run of the same plan."""
        return not self.failed and not self.left


@dataclass(frozen=True, slots=True)
class Examination:
    """A plan and the reasons not to apply it."""

    plan: PlanManifest
    refusals: tuple[Refusal, ...]

    def refused_or_plan(self) -> PlanManifest:
        """Return the plan; RefusedError with everything that keeps it from being applied, if anything does."""
        if self.refusals:
            texts = "; ".join(str(refusal) for refusal in self.refusals)
            raise RefusedError(f"plan {self.plan.plan_id} is not applied: {texts}")
        return self.plan


class PlanStore(Protocol):
    """The storage of plans, and how far each was applied.

    Every call raises NotFoundError where there is no such plan, and FormatError where it is altered or damaged.
    """

    def manifest(self, plan_id: str) -> PlanManifest:
        """Read a plan's manifest."""

    def verify(self, manifest: PlanManifest) -> None:
        """Read every file of the plan; FormatError for one that is missing or not what the manifest says."""

    def candidates(self, manifest: PlanManifest, size: int) -> Iterator[Sequence[Candidate]]:
        """Yield the candidates by growing ledger id, at most `size` at a time, from files that are verified again."""

    def progress(self, manifest: PlanManifest) -> ApplyProgress:
        """Return how far the plan was applied; FormatError where that is damaged or of another plan."""

    def record(self, manifest: PlanManifest, progress: ApplyProgress) -> None:
        """Save how far the plan is applied: durable when this returns, unchanged if it raises."""

    def copies(self, manifest: PlanManifest, size: int) -> Iterator[Sequence[CopyCandidate]]:
        """Yield the offloaded copies in their order, at most `size` at a time."""

    def copy_progress(self, manifest: PlanManifest) -> ApplyProgress:
        """Return how far the plan's copies were applied; as `progress`."""

    def record_copies(self, manifest: PlanManifest, progress: ApplyProgress) -> None:
        """Save how far they are applied; as `record`."""


class PlannedDeletion(Protocol):
    """A deletion that a plan asks for: of a ledger or of an offloaded copy."""

    @property
    def order(self) -> int:
        """Its place in the plan; grows from one to the next."""

    @property
    def ledger_id(self) -> int:
        """The ledger."""

    @property
    def length(self) -> int:
        """Its bytes."""


def _no_doubts(suspects: Sequence[Suspect]) -> Sequence[NodeDoubt | None]:
    return [None] * len(suspects)


PlannedT = TypeVar("PlannedT", bound=PlannedDeletion)


class PlanRun(Generic[PlannedT]):
    """Tally of one run, and of all runs with it; ``hold`` returns why one of the ``total`` candidates has to wait.

    ``emptied`` are the topics and namespaces whose candidates are among them.
    """

    def __init__(
        self,
        plan: PlanManifest,
        before: ApplyProgress,
        execute: bool,
        limits: GuardLimits,
        *,
        total: int,
        hold: Callable[[PlannedT], str | None],
        emptied: Collection[str] = (),
    ) -> None:
        self.plan = plan
        self._total = total
        self._hold = hold
        self.reason = f"orphan scan {plan.plan_id}"
        self.emptied_topics = frozenset(one.name for one in plan.emptied if one.scope == "topic")
        self.execute = execute
        self.failed: list[NamedCandidate] = []
        self.fruitless = 0
        by = limits.seen_apart_ms, tuple(sorted(emptied))
        if (before.seen_apart_ms, before.not_emptied) != by:
            # Candidates that were held back may be due now.
            before = ApplyProgress(plan.plan_id, seen_apart_ms=by[0], not_emptied=by[1])
        self._before = before
        self._open = set(before.failed)
        self._done_through = -1 if before.done_through is None else before.done_through
        self._earlier = self._marked = self._marked_bytes = self._dropped_total = 0
        self._dropped: list[NamedCandidate] = []
        self._held_back: list[NamedCandidate] = []
        self._held_back_by: Counter[str] = Counter()

    def due(self, candidates: Sequence[PlannedT]) -> list[PlannedT]:
        """Choose the candidates to mark in this run."""
        found = []
        for candidate in candidates:
            reason = self._hold(candidate)
            if reason is not None:
                self._wait(candidate, reason)
            elif candidate.order <= self._done_through and candidate.order not in self._open:
                self._earlier += 1
            else:
                found.append(candidate)
        return found

    def in_flight(self, candidate: PlannedT) -> None:
        """Record a candidate whose mark waits already, sent by an earlier plan or by whatever else marks."""
        self._open.discard(candidate.order)
        self._wait(candidate, _IN_FLIGHT)

    def _wait(self, candidate: PlannedT, reason: str) -> None:
        self._held_back_by[reason] += 1
        _name(self._held_back, candidate, reason)

    def drop(self, candidate: PlannedT, reason: str) -> None:
        """Record a candidate that is no longer as the plan has it."""
        self._open.discard(candidate.order)
        self._dropped_total += 1
        _name(self._dropped, candidate, reason)

    def mark(self, candidates: Sequence[PlannedT], failures: Sequence[str | None]) -> None:
        """Record the result of each mark: a failure, or None where it was confirmed."""
        confirmed = 0
        for candidate, failure in zip(candidates, failures, strict=True):
            if failure is None:
                self._open.discard(candidate.order)
                self._marked_bytes += candidate.length
                confirmed += 1
            else:
                self._open.add(candidate.order)
                self.failed.append(NamedCandidate(candidate.ledger_id, failure))
        self._marked += confirmed
        if confirmed:
            self.fruitless = 0
        elif candidates:
            self.fruitless += 1

    def progress(self, through: int, now_ms: int) -> ApplyProgress:
        """Return the progress of all runs, with the candidates up to this place in the plan."""
        self._done_through = max(self._done_through, through)
        return replace(
            self._before,
            done_through=self._done_through,
            failed=tuple(sorted(self._open)),
            marked=self._before.marked + self._marked,
            marked_bytes=self._before.marked_bytes + self._marked_bytes,
            dropped=self._before.dropped + self._dropped_total,
            updated_ms=now_ms,
        )

    def why_fruitless(self) -> str:
        """Explain why the rest is left after batches without one confirmed mark."""
        return (
            f"nothing was confirmed of {self.fruitless} batches in a row, the last time because: "
            f"{self.failed[-1].reason}; run it again when the broker takes marks"
        )

    def result(self, stopped: str = "", not_compared: str = "") -> ApplyResult:
        """Return the outcome of this run so far."""
        return ApplyResult(
            plan_id=self.plan.plan_id,
            executed=self.execute,
            candidates=self._total,
            earlier=self._earlier,
            marked=self._marked,
            marked_bytes=self._marked_bytes,
            failed=tuple(self.failed),
            dropped=tuple(self._dropped),
            dropped_total=self._dropped_total,
            held_back=tuple(self._held_back),
            held_back_by=dict(self._held_back_by),
            stopped=stopped,
            not_compared=not_compared,
        )


class Application(ABC, Generic[PlannedT]):
    """Applies plans, ``batch`` candidates at a time; ``on_batch`` is called with the result so far.

    ``doubts`` returns for each why a damaged node may have named it, as `NodeCheck.doubts_now` does. ``in_flight``
    reads what marks ask for that are not settled yet, as `PendingDeletion.request`; it may raise PulsarError or
    NotFoundError.
    """

    def __init__(
        self,
        store: PlanStore,
        marker: Marker,
        catalog: LedgerCatalog,
        cluster: PlanCluster,
        limits: GuardLimits,
        *,
        doubts: Callable[[Sequence[Suspect]], Sequence[NodeDoubt | None]] = _no_doubts,
        batch: int = 1_000,
        clock: Callable[[], float] = time.time,
        on_batch: Callable[[ApplyResult], None] = lambda _: None,
        in_flight: Callable[[], Collection[Request]] = tuple,
    ) -> None:
        self._store = store
        self._marker = marker
        self._catalog = catalog
        self._doubts = doubts
        self._cluster = cluster
        self._limits = limits
        self._batch = batch
        self._clock = clock
        self._on_batch = on_batch
        self._in_flight = in_flight
        self._requests: Collection[Request] = ()

    def run(self, plan_id: str, *, execute: bool = False, allow_emptied: Collection[str] = ()) -> ApplyResult:
        """Mark the plan's candidates; without `execute` only say which would be.

        Raises RefusedError when a guard forbids it, NotFoundError for a plan that is not there, FormatError for one
        that is altered or damaged, StoreError when the metadata store does not answer, and PulsarError when the
        deletion topic cannot be reached. Earlier batches are done by then, and another run continues after them.
        """
        if execute and not self._marker.enabled:
            raise RefusedError(
                "marks are turned off (deletion.topic_two_phase_deletion_enabled), so no plan can be applied: turn "
                "them on"
            )
        plan = self.examine(plan_id, allow_emptied).refused_or_plan()
        # Since the scan a cluster may have been added, or the settings changed.
        self._cluster.prove_roots()
        run = self._begin(plan, execute, not_to_be_emptied(plan, allow_emptied))
        not_compared = self._read_in_flight()
        for candidates in self._batches(plan):
            due = run.due(candidates)
            if due:
                # A long run must not outlive its plan.
                self._check(plan, allow_emptied).refused_or_plan()
                self._apply(run, due)
                if execute:
                    self._record(plan, run.progress(candidates[-1].order, self._now_ms()))
            self._on_batch(run.result())
            if run.fruitless >= _FRUITLESS_BATCHES:
                return run.result(run.why_fruitless(), not_compared)
        return run.result(not_compared=not_compared)

    def examine(self, plan_id: str, allow_emptied: Collection[str] = ()) -> Examination:
        """Check a plan, and every file of it; errors are those of `run`, save for the refusals."""
        plan = self._store.manifest(plan_id)
        self._store.verify(plan)
        return self._check(plan, allow_emptied)

    def _check(self, plan: PlanManifest, allow_emptied: Collection[str]) -> Examination:
        refusals = check(plan, self._cluster.identity(), self._limits, self._now_ms(), allow_emptied)
        return Examination(plan, (*refusals, *self._further_refusals(plan)))

    def _mark_undoubted(
        self, run: PlanRun[PlannedT], candidates: Sequence[PlannedT], suspects: Sequence[Suspect]
    ) -> None:
        """Mark the candidates that no damaged node may have named, and drop the others."""
        undoubted = []
        for candidate, doubt in zip(candidates, self._doubts(suspects), strict=True):
            if doubt is None:
                undoubted.append(candidate)
            else:
                run.drop(candidate, str(doubt))
        self._mark(run, undoubted)

    def _mark(self, run: PlanRun[PlannedT], candidates: Sequence[PlannedT]) -> None:
        """Send the marks of candidates that have none in flight, or note in a dry run that they would be."""
        marks = {candidate: self._mark_of(run, candidate) for candidate in candidates}
        for candidate in [one for one, mark in marks.items() if mark.request in self._requests]:
            run.in_flight(candidate)
            del marks[candidate]
        if not run.execute:
            run.mark([*marks], [None] * len(marks))
        elif marks:
            report = self._marker.mark([*marks.values()])
            run.mark([*marks], [marked.failure for marked in report.ledgers])

    def _read_in_flight(self) -> str:
        """Read what is in flight; return why that failed, which costs no more than a second mark."""
        try:
            self._requests = self._in_flight()
        except (PulsarError, NotFoundError) as error:
            self._requests = ()
            return str(error)
        return ""

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    def _further_refusals(self, plan: PlanManifest) -> Collection[Refusal]:
        return ()

    @abstractmethod
    def _apply(self, run: PlanRun[PlannedT], due: Sequence[PlannedT]) -> None: ...

    @abstractmethod
    def _begin(self, plan: PlanManifest, execute: bool, emptied: Collection[str]) -> PlanRun[PlannedT]: ...

    @abstractmethod
    def _batches(self, plan: PlanManifest) -> Iterator[Sequence[PlannedT]]: ...

    @abstractmethod
    def _mark_of(self, run: PlanRun[PlannedT], candidate: PlannedT) -> PendingDeletion: ...

    @abstractmethod
    def _record(self, plan: PlanManifest, progress: ApplyProgress) -> None: ...


def _name(named: list[NamedCandidate], candidate: PlannedDeletion, reason: str) -> None:
    if len(named) < SHOWN:
        named.append(NamedCandidate(candidate.ledger_id, reason))
