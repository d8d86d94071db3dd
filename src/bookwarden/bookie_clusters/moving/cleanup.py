"""Cleanup of former bookie clusters: what they have of ledgers that brokers read from the active one is marked.

Brokers certainly do so once the ledger is promoted (moving.promoted).
A mark is a pending deletion of one place. Phase two looks at everything again, and proves the copy that is kept, before
it deletes anything (deletion.phase_two.superseded).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from bookwarden.bookie_clusters.moving.former import (
    FormerClusters,
    KeptLedger,
    SupersededLedger,
    UnfinishedCopy,
    in_parts,
)
from bookwarden.bookie_clusters.operation import Switch
from bookwarden.bookie_clusters.order import Phase
from bookwarden.bookie_clusters.promoted import Promotion, read_promotion, why_not_promoted
from bookwarden.bookie_clusters.registering import Confirm, unasked
from bookwarden.errors import RefusedError
from bookwarden.ledgers.kinds import Holder
from bookwarden.ledgers.metadata import ActiveCluster
from bookwarden.ledgers.pending_deletion import MarkReport, PendingDeletion, Waiver, mark_of_holder
from bookwarden.metastore.interface import MetadataStore


class CleanupTarget(NamedTuple):
    """A place of a ledger that may go."""

    cluster: str
    ledger_id: int
    holder: Holder
    size: int  #: In bytes, of one copy of each entry.
    is_unfinished: bool = False  #: It is an unfinished copy of a ledger that is in no cluster.

    def mark(self, active: str, waives: frozenset[Waiver]) -> PendingDeletion:
        """Make its pending deletion."""
        if self.is_unfinished:
            reason = "an unfinished copy of a ledger that no bookie cluster has"
            return replace(mark_of_holder(self.ledger_id, self.holder, reason), bookie_cluster=self.cluster)
        reason = f"brokers read it from bookie cluster {active}"
        return replace(mark_of_holder(self.ledger_id, self.holder, reason), bookie_cluster=self.cluster, waives=waives)


@dataclass(frozen=True, slots=True)
class Targets:
    """Counts of what may go, by cluster and kind, and of what stays, by cluster and reason."""

    active: str  #: Name of the active cluster.
    window_left_s: float  #: Seconds in which the newest switch can still be rolled back; 0 once that is over.
    ledgers: Counter[tuple[str, str]]  #: What may go.
    sizes: Counter[tuple[str, str]]  #: Likewise, in bytes, of one copy of each entry.
    kept: Counter[tuple[str, str]]  #: What stays.
    to_copy: Counter[str]  #: How many of these are closed, and would be copied by a build; by cluster.
    to_copy_sizes: Counter[str]  #: Likewise, in bytes.

    @property
    def total(self) -> int:
        """How many may go."""
        return self.ledgers.total()


class SentMarks(NamedTuple):
    """The marks that were sent, and why others were not."""

    sent: int
    failed: tuple[tuple[int, str], ...]  #: Each ledger with the reason.


class CleanupResult(NamedTuple):
    """The result of an order to clean up."""

    targets: Targets
    total: int  #: How many were to be marked; of a dry run: would be.
    done: SentMarks | None  #: None where nothing may go, and after a dry run.
    dry_run: bool


@dataclass(frozen=True)
class Cleanup:
    """Finds and marks what former clusters still have."""

    former: FormerClusters  #: Finds what former clusters have.
    store: MetadataStore  #: Pulsar's own.
    switch: Switch  #: Says where the newest switch stands.
    send: Callable[[Sequence[PendingDeletion]], MarkReport]  #: Sends marks to the deletion topic, as phase one.
    enabled: bool  #: Whether anything may be marked.
    window_s: float  #: Seconds in which a switch may be rolled back.
    clock: Callable[[], float]  #: Returns seconds since the epoch, as the store does.

    def targets(self, source: str | None = None) -> Targets:
        """List everything that former clusters have, or this one alone; change nothing.

        Raises RefusedError where no former cluster is registered, or the named one is none.
        """
        active, left = self._active(source)
        found = Targets(active.name, left, Counter(), Counter(), Counter(), Counter(), Counter())
        for one in self._found(active, source):
            if isinstance(one, CleanupTarget):
                key = one.cluster, one.holder.ledgers_label
                found.ledgers[key] += 1
                found.sizes[key] += one.size
            else:
                found.kept[one.cluster, one.reason] += 1
                if one.to_copy is not None:
                    found.to_copy[one.cluster] += 1
                    found.to_copy_sizes[one.cluster] += one.to_copy
        return found

    def require(self, source: str | None = None, *, force: bool = False) -> ActiveCluster:
        """Return the active cluster; RefusedError, as `mark`, where nothing may be marked now."""
        active, left = self._active(source)
        if not self.enabled:
            raise _refused("deletion.topic_two_phase_deletion_enabled is false")
        phase = self.switch.state().phase
        # As long as nothing was switched no broker reads elsewhere.
        if phase is not Phase.DONE and (phase is not Phase.REGISTERED or active.since_ms is not None):
            raise _refused(
                f"the newest switch is in the phase {phase.value}, so that brokers may act by another registry: carry "
                "it on with `bookie-clusters switch --resume` first"
            )
        if left and not force:
            raise _refused(
                f"the switch to {active.name} can be rolled back for another {left / 3600:.1f} h "
                "(deletion.rollback_window_hours)"
            )
        return active

    def clean_up(
        self,
        source: str | None = None,
        *,
        at_most: int = 0,
        force: bool = False,
        dry_run: bool = False,
        confirm: Confirm[int] = unasked,
    ) -> CleanupResult:
        """Mark what may go, or look only: what commands and REST do.

        ``confirm`` is entered with how many will be marked, and may raise RefusedError. Nothing but `targets` is done
        where nothing may go. Else as `targets`, `require` and `mark`.
        """
        found = self.targets(source)
        total = min(found.total, at_most or found.total)
        if dry_run or not total:
            return CleanupResult(found, total, None, dry_run)
        self.require(source, force=force)
        with confirm(total) as progress:
            done = self.mark(source, at_most=at_most, force=force, progress=progress)
        return CleanupResult(found, total, done, dry_run)

    def mark(
        self,
        source: str | None = None,
        *,
        at_most: int = 0,
        force: bool = False,
        progress: Callable[[int], object] = lambda _: None,
    ) -> SentMarks:
        """Mark what may go; ``progress`` is called with the number of marks that were sent.

        ``at_most`` is the maximum number of ledgers, 0 for all.

        Raises RefusedError as `targets` does, while a switch is under way, and, unless ``force`` is given, within the
        rollback window. May be interrupted and repeated: a ledger that is marked twice goes once.
        """
        active = self.require(source, force=force)
        waives = frozenset({Waiver.SUPERSEDED, Waiver.ROLLBACK_WINDOW} if force else {Waiver.SUPERSEDED})
        wanted = (one for one in self._found(active, source) if isinstance(one, CleanupTarget))
        sent, failed = 0, list[tuple[int, str]]()
        for part in in_parts(itertools.islice(wanted, at_most or None)):
            report = self.send([one.mark(active.name, waives) for one in part])
            failed += [(one.mark.ledger_id, one.failure or "") for one in report.failed]
            sent += len(part) - len(report.failed)
            progress(sent)
        return SentMarks(sent, tuple(failed))

    def _active(self, source: str | None) -> tuple[ActiveCluster, float]:
        """Return the active cluster, and for how many seconds the switch to it can be rolled back."""
        active = self.former.active(source)
        return active, active.window_left(self.window_s, self.clock() * 1000) or 0.0

    def _found(self, active: ActiveCluster, source: str | None) -> Iterator[CleanupTarget | KeptLedger]:
        """Yield what may go, and for all else its cluster with the reason that it stays."""
        promotion = read_promotion(self.store)
        for one in self.former.found(active, source):
            if isinstance(one, UnfinishedCopy):
                yield CleanupTarget(
                    one.copy.bookie_cluster, one.copy.ledger_id, one.holder, one.copy.metadata.length, True
                )
            else:
                yield one if isinstance(one, KeptLedger) else _judged(one, promotion, active)


def _judged(found: SupersededLedger, promotion: Promotion | None, active: ActiveCluster) -> CleanupTarget | KeptLedger:
    former, holder = found.former, found.holder
    reason = why_not_promoted(found.kept, holder, promotion, active)
    if reason is not None:
        return KeptLedger(former.bookie_cluster, reason)
    return CleanupTarget(former.bookie_cluster, former.ledger_id, holder, former.metadata.length)


def _refused(reason: str) -> RefusedError:
    return RefusedError(f"nothing is cleaned up: {reason}")
