"""Phase two for ledgers that were copied to another bookie cluster: what the former one still has goes.

A mark with Waiver.SUPERSEDED asks for one place of a ledger that its holder goes on naming. That place goes only if
brokers read the ledger from the active cluster, closed and with the same end, if it is still promoted, if the rollback
window is over, and if every bookie that should have an entry there gave it. In doubt it stays, and the mark is retried.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from bookwarden.bookie_clusters.promoted import PromotionSnapshot
from bookwarden.clusters.bookkeeper.bookies.proof import WholeLedgers
from bookwarden.deletion.phase_two.decide import (
    Action,
    Decision,
    DeletionPolicy,
    MarkContext,
    finish,
    retry,
    unknown,
    wait,
)
from bookwarden.deletion.phase_two.guards import DeletionCandidate, Guard
from bookwarden.deletion.ports import BookieClusters
from bookwarden.ledgers.custom_metadata import custom_metadata_mismatch, names_no_holder, why_not_superseded
from bookwarden.ledgers.kinds import Holder
from bookwarden.ledgers.live_references import References, UnknownReferences
from bookwarden.ledgers.metadata import (
    AbsentLedger,
    ActiveCluster,
    Condition,
    Conditions,
    LedgerReading,
    StoredLedger,
    UnreadableLedger,
    place_in,
)
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.ledgers.pending_deletion import LedgerType, PendingDeletion, Waiver

logger = logging.getLogger(__name__)


def judge_superseded(
    mark: PendingDeletion,
    reading: LedgerReading,
    references: References,
    active: ActiveCluster | None,
    context: MarkContext,
    policy: DeletionPolicy,
) -> Decision:
    """Decide about a mark with Waiver.SUPERSEDED by the ledger as all registered bookie clusters have it.

    ``references`` are those of the mark's holder. Retries are not limited here.
    """
    if mark.ledger_type is LedgerType.OFFLOAD_LEDGER or not mark.bookie_cluster:
        return finish(Outcome.MISMATCH, "only a ledger in a bookie cluster that its mark names can be superseded")
    if active is None or mark.bookie_cluster not in active.registered:
        return retry(f"it is of the bookie cluster {mark.bookie_cluster!r}, which is not registered")
    if isinstance(reading, UnreadableLedger):
        return retry(f"ledger metadata: {reading.reason}")
    former = place_in(reading, mark.bookie_cluster)
    if isinstance(reading, AbsentLedger) or former is None:
        return finish(Outcome.ALREADY_GONE, f"bookie cluster {mark.bookie_cluster} has no metadata of this ledger")
    another = _of_another(mark, former, references)
    if another is not None:
        return another
    if mark.bookie_cluster == active.name:
        return finish(Outcome.STILL_REFERENCED, f"bookie cluster {active.name} is active: brokers read it there")
    problem = why_not_superseded(former, place_in(reading, active.name), active.name)
    if problem is not None:
        return retry(problem)
    return _within_window(active, context, policy) or Decision(Action.PROVE_KEPT, Outcome.DELETED, "")


def _of_another(mark: PendingDeletion, former: StoredLedger, references: References) -> Decision | None:
    """Return why the ledger may be another holder's; None if it is the mark's.

    One that does not say whose it is, as ancient brokers made them, is its holder's as long as that names it.
    """
    difference = custom_metadata_mismatch(mark.holder(), former.metadata.custom)
    if difference is None:
        return None
    if names_no_holder(former.metadata.custom):
        if isinstance(references, UnknownReferences):
            return unknown(mark, references)
        if mark.ledger_id in references.ledger_ids:
            return None
    return finish(Outcome.MISMATCH, difference)


def _within_window(active: ActiveCluster, context: MarkContext, policy: DeletionPolicy) -> Decision | None:
    if Waiver.ROLLBACK_WINDOW in context.waives:
        return None
    left = active.window_left(policy.rollback_window, context.there_ms)
    if not left:
        # Over, or nothing was ever switched: then brokers have always read it there.
        return None
    reason = f"the switch to bookie cluster {active.name} can be rolled back for another {left / 3600:.1f} h"
    return wait(reason)


class SupersededGuard(Guard):
    """Guard of what a former cluster has, unless brokers are proven to read it, whole, from the active one.

    Without ``proof`` or ``newest_promotion`` nothing is proven.
    """

    actions = (Action.PROVE_KEPT,)

    def __init__(
        self,
        clusters: BookieClusters,
        proof: WholeLedgers | None,
        newest_promotion: Callable[[], PromotionSnapshot] | None,
    ) -> None:
        self._clusters = clusters
        self._proof = proof
        self._newest_promotion = newest_promotion

    def review(self, candidates: Sequence[DeletionCandidate]) -> list[Decision]:
        """Read the promotion for each, and each ledger's entries once."""
        active = self._clusters.active()
        problems: dict[int, str | None] = {}
        after = []
        for one in candidates:
            kept = _kept(one)
            void = self._why_not_promoted(kept, one.holder, active)
            if void is None and kept.ledger_id not in problems:
                problems[kept.ledger_id] = self._problem_of(kept)
            after.append(_settled(kept, problems[kept.ledger_id]) if void is None else retry(void))
        return after

    def require(
        self, candidates: Sequence[DeletionCandidate], policy: DeletionPolicy
    ) -> tuple[list[DeletionCandidate], list[Conditions]]:
        """Read registry and promotion again right before these deletes; give with each what its transaction demands.

        A delete that was proven by another state of the registry waits: brokers were switched meanwhile, and may read
        the ledger where it was to go.
        """
        active = self._clusters.active()
        now, promoted = self._clusters.snapshot(), None if self._newest_promotion is None else self._newest_promotion()
        after: list[DeletionCandidate] = []
        demanded: list[Conditions] = []
        for one in candidates:
            kept, decision = _kept(one), one.decision
            if active is None or promoted is None or now.active != active:
                decision = wait("the registry of bookie clusters was changed while it was proven")
            elif (void := promoted.why_not(kept, one.holder, active)) is not None:
                decision = wait(void)
            copy = (Condition(kept.path, kept.version),) if kept.bookie_cluster in now.in_ledgers_store else ()
            after.append(one.decided(decision, policy))
            demanded.append((*now.conditions, *(promoted.conditions if promoted is not None else ()), *copy))
        return after, demanded

    def _why_not_promoted(self, kept: StoredLedger, holder: Holder, active: ActiveCluster | None) -> str | None:
        """Return why brokers may read it elsewhere: they may have been switched twice since it was marked."""
        if self._newest_promotion is None or active is None:
            return "what is promoted is not known"
        return self._newest_promotion().why_not(kept, holder, active)

    def _problem_of(self, kept: StoredLedger) -> str | None:
        return "no bookies can be asked" if self._proof is None else self._proof.problem_of(kept)


def _kept(one: DeletionCandidate) -> StoredLedger:
    """Return the ledger as brokers read it: that is its first place."""
    assert isinstance(one.reading, StoredLedger)
    return one.reading.places[0]


def _settled(kept: StoredLedger, problem: str | None) -> Decision:
    if problem is None:
        return Decision(Action.DELETE, Outcome.DELETED, f"brokers read it from {kept.bookie_cluster}")
    reason = f"brokers read it from bookie cluster {kept.bookie_cluster}, where it is not proven: {problem}"
    logger.warning("ledger %d is kept: %s", kept.ledger_id, reason)
    return retry(reason)
