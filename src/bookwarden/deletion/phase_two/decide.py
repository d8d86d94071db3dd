"""Decide about a pending deletion: a pure function of what was just read."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from uuid import UUID

from bookwarden.ledgers.custom_metadata import custom_metadata_mismatch, is_unfinished
from bookwarden.ledgers.kinds import LedgerComponent
from bookwarden.ledgers.left_behind import why_not_offloaded
from bookwarden.ledgers.list_gaps import ListStatus, has_entries, list_status_of
from bookwarden.ledgers.live_references import LiveReferences, References, UnknownReferences
from bookwarden.ledgers.metadata import (
    AbsentLedger,
    ActiveCluster,
    LedgerReading,
    StoredLedger,
    UnreadableLedger,
    place_in,
)
from bookwarden.ledgers.node_doubts import is_offloaded
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.ledgers.pending_deletion import LAST_MS, LedgerType, PendingDeletion, Waiver
from bookwarden.ledgers.shared_doubts import SharedDoubt
from bookwarden.ledgers.switch_event import SwitchEvent


class Action(enum.Enum):
    """The next step for a pending deletion."""

    DELETE = "delete"
    PROVE_EMPTY = "prove that it has no entry, and delete it"
    DELETE_COPY = "delete the offloaded copy"
    PROVE_COPY = "prove whose the offloaded copy is, and delete it"
    PROVE_LEFT = "prove that the offloaded copy is whole, and delete BookKeeper's ledger"
    PROVE_KEPT = "prove that the active bookie cluster has it whole, and delete what another has"
    FINISH = "finish"
    RETRY = "retry"
    DELAY = "delay"
    WAIT = "wait"
    GIVE_UP = "give up"


@dataclass(frozen=True, slots=True)
class Decision:
    """The next step of a mark, and why."""

    action: Action  #: The step itself.
    outcome: Outcome  #: To which the action leads if nothing intervenes.
    reason: str  #: For people.
    wait: float = 0.0  #: With Action.DELAY: seconds until it is verified again.
    doubt: SharedDoubt | None = None  #: With Action.WAIT, where the mark waits for what many others wait for too.
    at_last: Outcome = Outcome.GAVE_UP  #: With Action.RETRY: the outcome after the last one.


@dataclass(frozen=True, slots=True)
class DeletionPolicy:
    """The limits of phase two; times in seconds."""

    retry_delay: float = 600.0  #: Until a mark is retried.
    max_retries: int = 10  #: After these the mark is given up.
    still_referenced_grace: float = 600.0  #: How long a mark waits for the metadata update that follows it.
    unlisted_grace: float = 600.0  #: A younger ledger may have just been created and not be listed yet.
    delete_delay: float = 0.0  #: From the first verification of a ledger to its delete; 0 deletes at once.
    bookie_cluster: str = ""  #: Name of the BookKeeper that is swept; "" if it has none.
    rollback_window: float = 86_400.0  #: From a switch until what its target has too may go from other clusters.

    @property
    def longest_wait(self) -> float:
        """The longest that a delayed deletion waits at a time.

        A partition of the retry topic is read in order, so what waits there holds back the retries behind it.
        """
        return max(self.retry_delay, self.delete_delay / 8)


@dataclass(frozen=True, slots=True)
class MarkContext:
    """The past of a pending deletion, and what counts besides the values that were read."""

    attempts: int  #: Retries before this one.
    age: float  #: Since the mark was first read, in seconds.
    now_ms: int  #: In ms since the epoch.
    verified_ms: int | None = None  #: When it was first found fit to be deleted; None if it was not so before.
    waives: frozenset[Waiver] = frozenset()  #: Those of the mark's message.
    #: Names of the registered ones; empty where none is registered, or the mark names none.
    bookie_clusters: frozenset[str] = frozenset()
    #: Likewise now, by the clock of the store whose times are compared with it: the ledger's, or that of the registry.
    #: None where that is the clock of ``now_ms``.
    store_now_ms: int | None = None

    @property
    def there_ms(self) -> int:
        """Now, by the clock of the store that is asked: stores of several bookie clusters have several clocks."""
        return self.now_ms if self.store_now_ms is None else self.store_now_ms


def in_its_place(mark: PendingDeletion, reading: LedgerReading) -> LedgerReading:
    """Return the ledger as the bookie cluster has it that the mark names; as it was read if it names none.

    An offloaded copy is in no bookie cluster, and is judged by the ledger wherever that is.
    """
    return reading if mark.ledger_type is LedgerType.OFFLOAD_LEDGER else in_cluster(mark.bookie_cluster, reading)


def in_cluster(name: str, reading: LedgerReading) -> LedgerReading:
    """Return the ledger as the bookie cluster of this name has it; as it was read if the name is empty.

    Of a ledger that no cluster has whole an unfinished copy may be left, of a copier that was killed. No broker reads
    it, and it may have the only bytes: so it is judged as a ledger is. It goes once nothing names it, or the list names
    an offloaded copy in its place that is proven, after the time of grace, and is journaled first.
    """
    if isinstance(reading, AbsentLedger):
        left = [one for one in reading.unfinished if name in ("", one.bookie_cluster)]
        return left[0]._replace(elsewhere=tuple(left[1:])) if left else AbsentLedger(reading.ledger_id)
    if not isinstance(reading, StoredLedger) or not reading.bookie_cluster or not name:
        return reading
    return place_in(reading, name) or AbsentLedger(reading.ledger_id)


def decide(
    mark: PendingDeletion,
    reading: LedgerReading,
    references: References,
    context: MarkContext,
    policy: DeletionPolicy,
) -> Decision:
    """Decide about one pending deletion; doubt never leads to a delete."""
    decision = _judge(mark, reading, references, context, policy)
    return limit_retries(decision, context.attempts, policy)


def judge_directive(event: SwitchEvent, active: ActiveCluster | None, owner: str | None) -> Decision:
    """Decide about a switch directive: it is acknowledged, and its row says what the registry says of it.

    ``owner`` is the owner mark of the registry, None where no cluster is registered. A directive that is late, doubled
    or forged changes nothing, and one that is lost is not missed: batches go by the registry.
    """
    if active is None or owner is None:
        return finish(Outcome.DIRECTIVE, "no bookie cluster is registered, so it changes nothing")
    now = f"bookie cluster {active.name} is active since epoch {active.epoch}"
    if event.owner != owner:
        text = f"it is of the Pulsar cluster {event.owner!r}, and this one is {owner!r}; {now}"
    elif (event.target, event.epoch) == (active.name, active.epoch):
        text = f"{now}, by {event.origin}"
    else:
        text = f"it says that {event.target!r} is active since epoch {event.epoch}; {now}"
    return finish(Outcome.DIRECTIVE, text)


def limit_retries(decision: Decision, attempts: int, policy: DeletionPolicy) -> Decision:
    """Turn a retry beyond the maximum into giving up."""
    if decision.action is not Action.RETRY or attempts < policy.max_retries:
        return decision
    return Decision(Action.GIVE_UP, decision.at_last, f"after {attempts} retries: {decision.reason}")


def await_dead_letters(decision: Decision, why: str) -> Decision:
    """Keep a mark that is given up waiting, since its dead letter would not be kept for the reason ``why``."""
    if decision.action is not Action.GIVE_UP:
        return decision
    return wait(f"it is not given up, since its dead letter would not be kept ({why}): {decision.reason}")


def _judge(
    mark: PendingDeletion,
    reading: LedgerReading,
    references: References,
    context: MarkContext,
    policy: DeletionPolicy,
) -> Decision:
    if context.bookie_clusters and mark.bookie_cluster not in context.bookie_clusters:
        names = ", ".join(sorted(context.bookie_clusters))
        return retry(f"it is of the bookie cluster {mark.bookie_cluster!r}, and there are {names}")
    if not context.bookie_clusters and mark.bookie_cluster not in ("", policy.bookie_cluster):
        # Two BookKeepers give the same ids, and a topic may have had ledgers in both.
        ours = f"is {policy.bookie_cluster!r}" if policy.bookie_cluster else "has no name"
        return retry(
            f"it is of the bookie cluster {mark.bookie_cluster!r}, and the one that is swept here {ours} "
            "(deletion.bookie_cluster)"
        )
    if mark.ledger_type is LedgerType.OFFLOAD_LEDGER:
        return _judge_copy(mark, reading, references, context, policy)
    if isinstance(reading, AbsentLedger):
        return finish(Outcome.ALREADY_GONE, "BookKeeper has no metadata of this ledger")
    if isinstance(reading, UnreadableLedger):
        return retry(f"ledger metadata: {reading.reason}")
    difference = custom_metadata_mismatch(mark.holder(), reading.metadata.custom)
    if difference is not None:
        return finish(Outcome.MISMATCH, difference)
    if isinstance(references, UnknownReferences):
        return unknown(mark, references)
    if mark.ledger_id in references.left_behind and mark.ledger_id not in references.puzzling:
        return _judge_left_behind(mark, reading, references, context, policy)
    if references.names(mark.ledger_id):
        return _judge_referenced(mark, references, context, policy)
    return _judge_unreferenced(mark, reading, references, context, policy)


def unknown(mark: PendingDeletion, references: UnknownReferences) -> Decision:
    """Look again later; that costs a retry where the doubt is about the mark's own holder."""
    text = f"references of {mark.holder()}: {references.reason}"
    return wait(text, references.shared) if references.elsewhere else retry(text)


def _judge_referenced(
    mark: PendingDeletion, references: LiveReferences, context: MarkContext, policy: DeletionPolicy
) -> Decision:
    namer = str(mark.holder())
    if mark.ledger_id not in references.ledger_ids:
        namer = f"{references.naming_shadow(mark.ledger_id)}, which lists ledgers of {namer},"
    return _still_named(f"{namer} still names the ledger", context, policy)


def _judge_left_behind(
    mark: PendingDeletion,
    reading: StoredLedger,
    references: LiveReferences,
    context: MarkContext,
    policy: DeletionPolicy,
) -> Decision:
    problem = why_not_offloaded(references.left_behind[mark.ledger_id], reading.metadata)
    if problem is not None:
        return _still_named(f"{mark.holder()} still names the ledger ({problem})", context, policy)
    delayed = _delayed(context, policy, "its topic names an offloaded copy in its place")
    return delayed or Decision(Action.PROVE_LEFT, Outcome.DELETED, "")


def _still_named(what: str, context: MarkContext, policy: DeletionPolicy) -> Decision:
    text = f"{what} {context.age:.0f} s after its mark was first read"
    if context.age < policy.still_referenced_grace:
        return retry(text)
    return finish(Outcome.STILL_REFERENCED, text)


def _judge_unreferenced(
    mark: PendingDeletion,
    reading: StoredLedger,
    references: LiveReferences,
    context: MarkContext,
    policy: DeletionPolicy,
) -> Decision:
    status = _list_status(mark, reading, references, context)
    action = Action.PROVE_EMPTY if status is ListStatus.UNPROVEN else Action.DELETE
    return (
        _of_no_time(reading)
        or _too_young(reading, context, policy)
        or _perhaps_in_use(reading, references, context, policy)
        or _kept(mark, status, references, context.attempts)
        or _delayed(context, policy)
        or Decision(action, Outcome.DELETED, "")
    )


def _of_no_time(reading: StoredLedger) -> Decision | None:
    """Keep a ledger with a creation time that no clock shows: its metadata is damaged."""
    if (reading.metadata.ctime_ms or 0) <= LAST_MS:
        return None
    return retry(f"ledger metadata: its creation time {reading.metadata.ctime_ms} lies beyond the year 9999")


def _too_young(reading: StoredLedger, context: MarkContext, policy: DeletionPolicy) -> Decision | None:
    """Keep a ledger that was created a moment ago, and whose holder may be about to name it."""
    age = (context.there_ms - _created_ms(reading)) / 1000
    if age >= policy.unlisted_grace:
        return None
    return retry(f"created {age:.0f} s ago: it may not be listed yet (unlisted_grace_seconds)")


def _created_ms(reading: StoredLedger) -> int:
    # The creator's clock may be wrong; the store's own creation time is a second witness, and the younger one counts.
    return max(reading.metadata.ctime_ms or 0, reading.created_ms)


def _perhaps_in_use(
    reading: StoredLedger, references: LiveReferences, context: MarkContext, policy: DeletionPolicy
) -> Decision | None:
    """Keep a ledger of a kind that is used before, or without, being named, unless that is ruled out."""
    use = references.unnamed_use
    if use is None:
        return None
    before_ms = context.there_ms - policy.unlisted_grace * 1000
    unchanged = all(0 < place.modified_ms <= before_ms for place in reading.places)
    if use.rules_out(reading.ledger_id, _created_ms(reading), unchanged=unchanged):
        return None
    text = f"nothing names it, but it may be in use: {use.reason}"
    return retry(text) if use.lasting else wait(text)


def _list_status(
    mark: PendingDeletion, reading: StoredLedger, references: LiveReferences, context: MarkContext
) -> ListStatus:
    """Return how the ledger stands to its topic's list; LET_GO for other holders, and where the list is waived."""
    if mark.component is not LedgerComponent.MANAGED_LEDGER or Waiver.INSIDE_LIST in context.waives:
        return ListStatus.LET_GO
    # How far a copier came says nothing of the ledger.
    filled = is_unfinished(reading.metadata) or has_entries(reading.metadata)
    return list_status_of(reading.ledger_id, references.first_listed, filled)


def judge_proven(mark: PendingDeletion, references: LiveReferences, attempts: int) -> Decision:
    """Decide about a ledger that is not closed, and that the bookies say has entries."""
    kept = _kept(mark, list_status_of(mark.ledger_id, references.first_listed, True), references, attempts)
    return kept or Decision(Action.DELETE, Outcome.DELETED, "")


def _kept(mark: PendingDeletion, status: ListStatus, references: LiveReferences, attempts: int) -> Decision | None:
    """Keep an unnamed ledger that no trim can have removed from its topic's list."""
    if status is ListStatus.INSIDE:
        reason = (
            f"it has entries, and {mark.holder()} lists older ledgers (from {references.first_listed} on) without it: "
            "no trim does that, so a write of the topic's node lost it (docs/orphans.md, inside the list)"
        )
        # The node may be damaged, and repaired a moment later.
        if attempts == 0:
            return retry(reason, Outcome.INSIDE_LIST)
        return Decision(Action.GIVE_UP, Outcome.INSIDE_LIST, reason)
    if status is ListStatus.OF_NO_LIST:
        return retry(
            f"it has entries, and the node of {mark.holder()} is there without naming any ledger: it may have lost its "
            "list (docs/orphans.md, inside the list)"
        )
    return None


def _judge_copy(
    mark: PendingDeletion,
    reading: LedgerReading,
    references: References,
    context: MarkContext,
    policy: DeletionPolicy,
) -> Decision:
    """Decide about an offloaded copy, which is named by its UUID, since a ledger may be offloaded again.

    A copy is named while it is written, and still when BookKeeper's ledger is gone and it is the only one.
    """
    if mark.offload_context is None or mark.component is not LedgerComponent.MANAGED_LEDGER:
        return finish(Outcome.MISMATCH, "only ledgers of topics are offloaded, each to a place that is recorded")
    if isinstance(reading, UnreadableLedger):
        return retry(f"ledger metadata: {reading.reason}")
    if isinstance(reading, StoredLedger):
        difference = custom_metadata_mismatch(mark.holder(), reading.metadata.custom)
        if difference is not None:
            return finish(Outcome.MISMATCH, difference)
    if isinstance(references, UnknownReferences):
        return unknown(mark, references)
    # Without the ledger's own metadata only the copy itself can name its owner.
    action = Action.DELETE_COPY if isinstance(reading, StoredLedger) else Action.PROVE_COPY
    return (
        _named_copy(mark, mark.offload_context.uuid, references, context, policy)
        or _copy_of_lost_ledger(mark, references, context)
        or _of_puzzling_ledger(mark, references)
        or _perhaps_the_only_copy(mark, mark.offload_context.uuid, reading, references)
        or _delayed(context, policy)
        or Decision(action, Outcome.DELETED, "")
    )


def _named_copy(
    mark: PendingDeletion, uuid: UUID, references: LiveReferences, context: MarkContext, policy: DeletionPolicy
) -> Decision | None:
    """Keep a copy that the holder names, for any ledger, or may name in fields that are not known here."""
    if not all(listed.offload is None or listed.offload.understood for listed in references.with_copies):
        return retry(f"{mark.holder()} says more of its offloaded copies than is known here: it may name this one")
    if uuid in references.offloaded:
        return _still_named(f"{mark.holder()} still names the offloaded copy", context, policy)
    return None


def _copy_of_lost_ledger(mark: PendingDeletion, references: LiveReferences, context: MarkContext) -> Decision | None:
    """Keep a copy that may be the only one of a ledger that the list lost."""
    if references.names(mark.ledger_id) or Waiver.INSIDE_LIST in context.waives:
        return None
    status = list_status_of(mark.ledger_id, references.first_listed, True)
    return _kept(mark, status, references, context.attempts)


def _of_puzzling_ledger(mark: PendingDeletion, references: LiveReferences) -> Decision | None:
    """Keep a copy of a ledger whose fields in the list are not all known here."""
    if mark.ledger_id not in references.puzzling:
        return None
    return retry(f"{mark.holder()} says something of the ledger that is unknown to us, perhaps of this copy")


def _perhaps_the_only_copy(
    mark: PendingDeletion, uuid: UUID, reading: LedgerReading, references: LiveReferences
) -> Decision | None:
    """Keep a copy that may be all that is left of a ledger; its list may be an old one, put back.

    Where the list still names a ledger that BookKeeper no longer has, another, finished copy must be in use.
    """
    if not isinstance(reading, AbsentLedger) or not references.names(mark.ledger_id):
        return None
    finished = [one for one in references.with_copies if one.ledger_id == mark.ledger_id and is_offloaded(one)]
    if any(one.offload is not None and one.offload.uuid != uuid for one in finished):
        return None
    return retry(
        f"{mark.holder()} names the ledger, which BookKeeper no longer has, and no other finished copy of it: this one "
        "may be the only one"
    )


def _delayed(context: MarkContext, policy: DeletionPolicy, why: str = "nothing names it") -> Decision | None:
    left = policy.delete_delay - _verified_for(context)
    if left <= 0:
        return None
    reason = f"{why}; to be deleted in {left:.0f} s (delete_delay_seconds)"
    return Decision(Action.DELAY, Outcome.DELAYED, reason, wait=min(left, policy.longest_wait))


def _verified_for(context: MarkContext) -> float:
    if context.verified_ms is None:
        return 0.0
    # A time in the future, by a wrong clock, counts as now.
    return max(0.0, (context.now_ms - context.verified_ms) / 1000)


def finish(outcome: Outcome, reason: str) -> Decision:
    """End the mark."""
    return Decision(Action.FINISH, outcome, reason)


def retry(reason: str, at_last: Outcome = Outcome.GAVE_UP) -> Decision:
    """Look again after a retry delay, and count a retry; end with ``at_last`` after the last one."""
    return Decision(Action.RETRY, Outcome.RETRY, reason, at_last=at_last)


def wait(reason: str, doubt: SharedDoubt | None = None) -> Decision:
    """Look again after a retry delay without counting a retry: neither the mark nor its ledger is at fault."""
    return Decision(Action.WAIT, Outcome.WAITING, reason, doubt=doubt)
