"""Phase two for one share of a batch: verify, decide, journal, delete, send on, and account for each mark.

Every step may run twice: a replayed mark finds its ledger gone, and a retry sent twice is swept twice.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, compress
from typing import Final, NamedTuple, Protocol, TypeVar

from bookwarden.deletion.journal.entries import Journal, JournalEntry
from bookwarden.deletion.node_check import NodeCheck
from bookwarden.deletion.phase_two.copy_deletion import CopyDeletions, NoStores
from bookwarden.deletion.phase_two.decide import (
    Action,
    Circumstances,
    Decision,
    DeletionPolicy,
    await_dead_letters,
    decide,
    limit_retries,
    wait,
)
from bookwarden.deletion.phase_two.directives import judge_directive
from bookwarden.deletion.phase_two.held_marks import HeldMarks
from bookwarden.deletion.phase_two.isolation import Isolation, describe_error
from bookwarden.deletion.phase_two.last_checks import LastChecks
from bookwarden.deletion.phase_two.left_behind import LeftBehind
from bookwarden.deletion.phase_two.places import in_its_place, worst
from bookwarden.deletion.phase_two.returning_ids import DoubtsIds, NoIdReturns, await_new_ids
from bookwarden.deletion.phase_two.sent_on import NoSentRecords, Sendings, SentRecords
from bookwarden.deletion.phase_two.superseded import Superseded, judge_superseded
from bookwarden.deletion.phase_two.undone import NothingUndone, ReadsUndone, keep_undone
from bookwarden.deletion.ports import (
    BookieClusters,
    CopyProof,
    LastEntryReader,
    LedgerCatalog,
    MetadataMigrations,
    NoBookieClusters,
    NoMigrations,
    OffloadedCopies,
    Promotions,
    ReferenceReader,
)
from bookwarden.errors import MalformedMarkError, UnconfirmedError
from bookwarden.ledgers.kinds import Holder
from bookwarden.ledgers.live_references import LiveReferences, References
from bookwarden.ledgers.metadata import Conditions, DeleteResult, LedgerReading, StoredLedger
from bookwarden.ledgers.outcomes import Outcome, OutcomeRow
from bookwarden.ledgers.pending_deletion import PendingDeletion, Waiver
from bookwarden.ledgers.received import ReceivedMark
from bookwarden.unavailable_stores import retry_while_unavailable

logger = logging.getLogger(__name__)
_T = TypeVar("_T")

_AFTER_DELETE = {
    DeleteResult.DELETED: Decision(Action.FINISH, Outcome.DELETED, ""),
    DeleteResult.ABSENT: Decision(Action.FINISH, Outcome.ALREADY_GONE, "gone between check and delete"),
    DeleteResult.LOST_RACE: Decision(Action.RETRY, Outcome.RETRY, "the metadata changed between check and delete"),
    DeleteResult.UNKNOWN: Decision(Action.RETRY, Outcome.RETRY, "the connection broke under the delete"),
}


_SUPERSEDED_CHANGED: Final = wait(
    "the registry of bookie clusters, the promotion or the ledger's metadata changed between check and delete"
)
# Number of deletes of superseded places before which registry and promotion are read again.
_SUPERSEDED_AT_ONCE: Final = 50
_NOT_DONE = (DeleteResult.LOST_RACE, DeleteResult.UNKNOWN)
_NO_NAMES: Final = frozenset[str]()
_Place = tuple[int, str]  # A ledger id, and the name of a bookie cluster.


class _Attempt(NamedTuple):
    """The result of one attempt at a step; ``not_done`` are ledgers that it could not delete."""

    decided: list[tuple[ReceivedMark, Decision]]
    readings: dict[int, LedgerReading]
    now_ms: int
    not_done: frozenset[int]


class Outbox(Protocol):
    """The way of marks that are not finished; nothing counts as sent before `flush` returns."""

    def retry(self, received: ReceivedMark, delay_s: float, reason: str) -> None:
        """Send to the retry topic, with one more attempt counted, not to be delivered before the delay."""

    def delay(self, received: ReceivedMark, delay_s: float, verified_ms: int, reason: str) -> None:
        """Send to the retry topic, with its count unchanged and the time at which it was first verified."""

    def wait(self, received: ReceivedMark, delay_s: float, reason: str) -> None:
        """Send to the retry topic, with its count unchanged; it must be verified from the start."""

    def give_up(self, received: ReceivedMark, outcome: Outcome, reason: str) -> None:
        """Send to the DLQ with the reason."""

    def flush(self) -> None:
        """Wait until each message is confirmed; raises PulsarError when one is not.

        An UnconfirmedError names each such message by its topic and id; the others are confirmed.
        """


@dataclass(frozen=True, slots=True)
class SweepLimits:
    """The marks of one step, and the seconds that a step waits for a store that does not answer."""

    ledgers_per_step: int = 1000
    max_unreachable: float = 120.0


class Sweep:
    """Verify and delete what marks ask for; one object per process."""

    def __init__(
        self,
        catalog: LedgerCatalog,
        references: ReferenceReader,
        journal: Journal,
        outbox: Outbox,
        policy: DeletionPolicy,
        limits: SweepLimits,
        *,
        copies: OffloadedCopies | None = None,
        entries: LastEntryReader | None = None,
        nodes: NodeCheck | None = None,
        migrations: MetadataMigrations | None = None,
        sent: SentRecords | None = None,
        undone: ReadsUndone | None = None,
        ids: DoubtsIds | None = None,
        held: HeldMarks | None = None,
        clusters: BookieClusters | None = None,
        proof: CopyProof | None = None,
        promotions: Promotions | None = None,
        verify_owner: bool = True,
        dry_run: bool = False,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.time,
        clock_of: Callable[[str | None], float] | None = None,
        why_letters_are_lost: Callable[[], str | None] = lambda: None,
        require_bookies: Callable[[], object] = lambda: None,
    ) -> None:
        self._catalog = catalog
        self._references = references
        self._journal = journal
        self._outbox = outbox
        self._policy = policy
        self._limits = limits
        stores = copies or NoStores()
        nodes = nodes or NodeCheck(catalog, entries, lambda: stores)
        self._last_checks = LastChecks(nodes, entries, policy)
        self._migrations = migrations or NoMigrations()
        self._sendings = Sendings(sent or NoSentRecords())
        self._isolation = Isolation()
        self._undone = undone or NothingUndone()
        self._ids = ids or NoIdReturns()
        self._held = held or HeldMarks()
        self._clusters = clusters or NoBookieClusters()
        self._dry_run = dry_run
        self._pause = pause
        self._clock = clock
        #: Tells the time of the store of a bookie cluster, by its name, or of the registry, for None.
        self._clock_of = clock_of or (lambda _: clock())
        self._why_letters_are_lost = why_letters_are_lost
        self._require_bookies = require_bookies
        self._epoch: int | None = None
        self._copies = CopyDeletions(stores, journal, policy, clock, verify_owner=verify_owner, dry_run=dry_run)
        self._left_behind = LeftBehind(stores, references, policy)
        self._superseded = Superseded(proof, promotions, policy)

    def process(self, received: Sequence[ReceivedMark], run: str) -> Iterator[list[OutcomeRow]]:
        """Carry the marks out as `carry_out` does; yield the outcomes as rows."""
        return self.carry_out(received, run, list)

    def carry_out(
        self,
        received: Sequence[ReceivedMark],
        run: str,
        tell: Callable[[Sequence[OutcomeRow]], _T],
        *,
        epoch: int | None = None,
    ) -> Iterator[_T]:
        """Carry the marks out, step by step, each holder's together; yield what `tell` makes of each step's outcomes.

        `tell` is called before a step's retry and DLQ messages are sent; its result is yielded once they are confirmed.
        ``run``, as ``<query>/<batch>``, is the same for each try of a batch, so that a later try sends nothing again.
        ``epoch`` is that of the registry of bookie clusters which this try of the batch goes by, None for any.
        Raises RegistryChangedError, before anything more is deleted, once the registry has another.
        Raises StoreUnavailableError or PulsarError when the stores or the broker stay away: then the batch is not
        done, and is replayed. A mark that fails for another reason is cut out (see isolation.py). Where a shared doubt
        holds marks back (see held_marks.py) it waits for its end once all others are carried out, or raises
        SharedDoubtError.
        """
        self._sendings.begin(run)
        self._held.begin()
        self._clusters.look_again()
        self._epoch = epoch
        for step in self._steps_of(received):
            yield from self._isolated(step, run, tell)
        while self._held.wait(self._pause):
            self._clusters.look_again()
            for messages in self._held.by_doubt():
                for part in _slices(messages, self._limits.ledgers_per_step):
                    held = self._held.marks
                    for step in self._steps_of(part):
                        yield from self._isolated(step, run, tell)
                    # The same doubt holds the others too, which need not be read to know that.
                    if self._held.marks == held:
                        break

    def _steps_of(self, received: Sequence[ReceivedMark]) -> Iterator[list[tuple[Holder | None, ReceivedMark]]]:
        groups: dict[Holder | None, list[ReceivedMark]] = {}
        for message in received:
            groups.setdefault(_holder(message), []).append(message)
        return _steps(groups, self._limits.ledgers_per_step)

    def _isolated(
        self,
        step: Sequence[tuple[Holder | None, ReceivedMark]],
        run: str,
        tell: Callable[[Sequence[OutcomeRow]], _T],
    ) -> Iterator[_T]:
        made = self._isolation.carry_out(
            step,
            lambda part: self._step(part, run, tell),
            lambda one, error: [self._cut_out(one[1], error, tell)],
        )
        return chain.from_iterable(made)

    def _step(
        self,
        step: Sequence[tuple[Holder | None, ReceivedMark]],
        run: str,
        tell: Callable[[Sequence[OutcomeRow]], _T],
    ) -> list[_T]:
        told: list[_T] = []
        left = list(step)
        while left:
            stops = self._migrations.stops
            # Waiting restarts the step, so that a delete never rests on what was read before an outage.
            attempt = retry_while_unavailable(
                partial(self._attempt, left, run), self._limits.max_unreachable, self._pause
            )
            again = attempt.not_done if self._migrations.stops != stops else frozenset()
            decided = [(message, decision) for message, decision in attempt.decided if not _is_of(message, again)]
            settled = self._held.hold_back(self._sendings.without_sent(decided))
            told.append(self._settle(settled, attempt.readings, attempt.now_ms, tell))
            # The metadata was moved in the middle of the step: not a ledger's fault, so it costs no retry.
            left = [(holder, message) for holder, message in left if _is_of(message, again)]
            if left:
                logger.info("deleting %d ledgers once more, since the metadata was being moved", len(again))
        return told

    def _settle(
        self,
        decided: Sequence[tuple[ReceivedMark, Decision]],
        readings: Mapping[int, LedgerReading],
        now_ms: int,
        tell: Callable[[Sequence[OutcomeRow]], _T],
    ) -> _T:
        decided = self._without_lost_letters(decided)
        told = tell([_row(message, decision, readings, now_ms) for message, decision in decided])
        self._send_on(decided, now_ms)
        return told

    def _without_lost_letters(
        self, decided: Sequence[tuple[ReceivedMark, Decision]]
    ) -> Sequence[tuple[ReceivedMark, Decision]]:
        if self._dry_run or not any(decision.action is Action.GIVE_UP for _, decision in decided):
            return decided
        why = self._why_letters_are_lost()
        return decided if why is None else [(message, await_dead_letters(made, why)) for message, made in decided]

    def _cut_out(self, message: ReceivedMark, error: Exception, tell: Callable[[Sequence[OutcomeRow]], _T]) -> _T:
        reason = f"the sweep fails at this message alone: {describe_error(error)}"
        logger.error("message %s of %s: %s", message.message_id, message.topic, reason, exc_info=error)
        decision = Decision(Action.GIVE_UP, Outcome.POISONOUS, reason)
        decided = self._sendings.without_sent([(message, decision)])
        return self._settle(decided, {}, int(self._clock() * 1000), tell)

    def _attempt(self, step: Sequence[tuple[Holder | None, ReceivedMark]], run: str) -> _Attempt:
        if not self._dry_run:
            self._migrations.await_writes()
        self._require_epoch()
        self._require_bookies()
        sound = [(holder, message) for holder, message in step if holder is not None]
        readings = self._read(sound)
        ledgers: defaultdict[Holder, list[int]] = defaultdict(list)
        for holder, message in sound:
            ledgers[holder].append(_mark(message).ledger_id)
        references = self._references.read(list(ledgers), ledgers)
        now_ms = int(self._clock() * 1000)
        decided = [(message, self._decide(holder, message, readings, references, now_ms)) for holder, message in step]
        decided = self._last_checks.carry_out(decided, readings, references)
        # Copies first: as long as BookKeeper has the ledger, its metadata proves who owns the copy.
        decided = self._copies.carry_out(decided, run)
        decided = self._left_behind.prove(decided, readings, references)
        decided = self._superseded.prove(decided, readings, self._clusters.active())
        decided = keep_undone(decided, readings, self._undone)
        decided = await_new_ids(decided, self._ids)
        decided, not_done = self._delete(decided, readings, references, run)
        return _Attempt(decided, readings, now_ms, not_done)

    def _require_epoch(self) -> None:
        if self._epoch is not None:
            self._clusters.require_epoch(self._epoch)

    def _read(self, sound: Sequence[tuple[Holder, ReceivedMark]]) -> dict[int, LedgerReading]:
        ledger_ids = list(dict.fromkeys(_mark(message).ledger_id for _, message in sound))
        return dict(zip(ledger_ids, self._catalog.read_many(ledger_ids), strict=True))

    def _decide(
        self,
        holder: Holder | None,
        message: ReceivedMark,
        readings: Mapping[int, LedgerReading],
        references: Mapping[Holder, References],
        now_ms: int,
    ) -> Decision:
        if message.failure is not None:
            raise message.failure
        if message.directive is not None:
            return judge_directive(message.directive, self._clusters.active(), self._clusters.owner())
        if holder is None:
            return Decision(Action.GIVE_UP, Outcome.MALFORMED, message.problem or "no pending deletion")
        mark = _mark(message)
        age = message.age(now_ms)
        names = self._clusters.names() if mark.bookie_cluster else _NO_NAMES
        reading = readings[mark.ledger_id]
        circumstances = Circumstances(
            *(message.attempts, age, now_ms, message.verified_at, message.waives, names),
            store_now_ms=self._store_now_ms(message, reading),
        )
        if Waiver.SUPERSEDED in message.waives:
            active = self._clusters.active()
            judged = judge_superseded(mark, reading, references[holder], active, circumstances, self._policy)
            decision = limit_retries(judged, message.attempts, self._policy)
        else:
            decision = decide(mark, in_its_place(mark, reading), references[holder], circumstances, self._policy)
        if decision.outcome is Outcome.MISMATCH:
            logger.warning("ledger %d of %s is kept: %s", mark.ledger_id, holder, decision.reason)
        return decision

    def _store_now_ms(self, message: ReceivedMark, reading: LedgerReading) -> int | None:
        """Return the earliest time of the stores whose times count; None where no bookie cluster is registered."""
        if Waiver.SUPERSEDED in message.waives:
            return int(self._clock_of(None) * 1000)
        places = reading.places if isinstance(reading, StoredLedger) else ()
        names = {place.bookie_cluster for place in places} - {""}
        return min((int(self._clock_of(name) * 1000) for name in names), default=None)

    def _delete(
        self,
        decided: Sequence[tuple[ReceivedMark, Decision]],
        readings: Mapping[int, LedgerReading],
        references: Mapping[Holder, References],
        run: str,
    ) -> tuple[list[tuple[ReceivedMark, Decision]], frozenset[int]]:
        if self._dry_run:
            would = Decision(Action.FINISH, Outcome.WOULD_DELETE, "dry run")
            return [(m, would if d.action is Action.DELETE else d) for m, d in decided], frozenset()
        self._require_epoch()
        superseded = [at for at, pair in enumerate(decided) if _is_superseded(*pair)]
        others = sorted(frozenset(range(len(decided))).difference(superseded))
        some = [decided[at] for at in others]
        settled, not_done = self._delete_part(some, [_as_read(*pair, references) for pair in some], readings, run)
        after = dict(zip(others, settled, strict=True))
        for part in _slices(superseded, _SUPERSEDED_AT_ONCE):
            some, demanded = self._superseded.require([decided[at] for at in part], readings, self._clusters)
            settled, left = self._delete_part(some, demanded, readings, run)
            after |= dict(zip(part, settled, strict=True))
            not_done |= left
        return [after[at] for at in range(len(decided))], not_done

    def _delete_part(
        self,
        decided: Sequence[tuple[ReceivedMark, Decision]],
        demanded: Sequence[Conditions],
        readings: Mapping[int, LedgerReading],
        run: str,
    ) -> tuple[list[tuple[ReceivedMark, Decision]], frozenset[int]]:
        doomed: dict[_Place, StoredLedger] = {}
        entries: list[JournalEntry] = []
        conditions: list[Conditions] = []
        instances = self._clusters.instances() if any(d.action is Action.DELETE for _, d in decided) else {}
        for (message, decision), demands in zip(decided, demanded, strict=True):
            for ledger in _doomed(message, decision, readings):
                place = (ledger.ledger_id, ledger.bookie_cluster)
                if place not in doomed:
                    doomed[place] = ledger
                    instance = instances.get(ledger.bookie_cluster, "")
                    entries.append(_journal_entry(ledger, message, run, int(self._clock() * 1000), instance))
                    conditions.append(demands)
        if not doomed:
            return list(decided), frozenset()
        self._journal.append(entries)
        # An undo may have begun meanwhile. One that begins from here on has the delete fail by its version.
        decided = keep_undone(decided, readings, self._undone)
        left = {_mark(message).ledger_id for message, decision in decided if decision.action is Action.DELETE}
        kept = [ledger_id in left for ledger_id, _ in doomed]
        doomed = {place: ledger for place, ledger in doomed.items() if place[0] in left}
        deleted = self._catalog.delete_many(list(doomed.values()), list(compress(conditions, kept)))
        results = dict(zip(doomed, deleted, strict=True))
        not_done = frozenset(ledger_id for (ledger_id, _), result in results.items() if result in _NOT_DONE)
        return [self._after_delete(message, decision, readings, results) for message, decision in decided], not_done

    def _after_delete(
        self,
        message: ReceivedMark,
        decision: Decision,
        readings: Mapping[int, LedgerReading],
        results: dict[_Place, DeleteResult],
    ) -> tuple[ReceivedMark, Decision]:
        if decision.action is not Action.DELETE:
            return message, decision
        places = [(ledger.ledger_id, ledger.bookie_cluster) for ledger in _doomed(message, decision, readings)]
        result = worst(results[place] for place in places)
        for place in places:
            if results[place] is DeleteResult.DELETED:
                # A second mark of the same ledger in this step finds it gone.
                results[place] = DeleteResult.ABSENT
        if result is DeleteResult.LOST_RACE and _is_superseded(message, decision):
            return message, _SUPERSEDED_CHANGED
        return message, limit_retries(_AFTER_DELETE[result], message.attempts, self._policy)

    def _send_on(self, decided: Sequence[tuple[ReceivedMark, Decision]], now_ms: int) -> None:
        if self._dry_run:
            return
        sent = False
        for message, decision in decided:
            if decision.action is Action.RETRY:
                self._outbox.retry(message, self._policy.retry_delay, decision.reason)
                sent = True
            elif decision.action is Action.DELAY:
                verified_ms = now_ms if message.verified_at is None else message.verified_at
                self._outbox.delay(message, decision.wait, verified_ms, decision.reason)
                sent = True
            elif decision.action is Action.WAIT:
                self._outbox.wait(message, self._policy.retry_delay, decision.reason)
                sent = True
            elif decision.action is Action.GIVE_UP:
                self._outbox.give_up(message, decision.outcome, decision.reason)
                sent = True
        if sent:
            try:
                self._outbox.flush()
            except UnconfirmedError as error:
                # The batch is tried again: without this it would send the others again too, each time.
                self._sendings.note([pair for pair in decided if _name(pair[0]) not in error.messages])
                raise
            self._sendings.note(decided)


def _name(message: ReceivedMark) -> tuple[str, str]:
    return message.topic, message.message_id


def _holder(message: ReceivedMark) -> Holder | None:
    if message.mark is None:
        return None
    try:
        return message.mark.holder()
    except MalformedMarkError:
        return None


def _doomed(
    message: ReceivedMark, decision: Decision, readings: Mapping[int, LedgerReading]
) -> tuple[StoredLedger, ...]:
    """List what is to be deleted: the ledger in each of its places, or in the one that the mark names."""
    if decision.action is not Action.DELETE or message.mark is None:
        return ()
    reading = in_its_place(message.mark, readings[message.mark.ledger_id])
    return reading.places if isinstance(reading, StoredLedger) else ()


def _is_superseded(message: ReceivedMark, decision: Decision) -> bool:
    return decision.action is Action.DELETE and Waiver.SUPERSEDED in message.waives


def _as_read(message: ReceivedMark, decision: Decision, references: Mapping[Holder, References]) -> Conditions:
    """Return the nodes that must be as they were read when the ledger is deleted."""
    found = references[_mark(message).holder()] if decision.action is Action.DELETE else None
    return found.conditions if isinstance(found, LiveReferences) else ()


def _is_of(message: ReceivedMark, ledger_ids: frozenset[int]) -> bool:
    return message.mark is not None and message.mark.ledger_id in ledger_ids


def _mark(message: ReceivedMark) -> PendingDeletion:
    if message.mark is None:
        raise MalformedMarkError(message.problem or "no pending deletion")
    return message.mark


def _steps(
    groups: Mapping[Holder | None, Sequence[ReceivedMark]], size: int
) -> Iterator[list[tuple[Holder | None, ReceivedMark]]]:
    """Cut the groups into steps of at most `size` marks; a holder is split only when it alone is larger."""
    step: list[tuple[Holder | None, ReceivedMark]] = []
    for holder, messages in groups.items():
        if step and len(step) + len(messages) > size:
            yield step
            step = []
        for part in _slices(messages, size):
            step.extend((holder, message) for message in part)
            if len(step) >= size:
                yield step
                step = []
    if step:
        yield step


def _slices(some: Sequence[_T], size: int) -> Iterable[Sequence[_T]]:
    return (some[start : start + size] for start in range(0, len(some), size))


def _journal_entry(ledger: StoredLedger, message: ReceivedMark, run: str, now_ms: int, instance: str) -> JournalEntry:
    return JournalEntry(
        ledger_id=ledger.ledger_id,
        holder=str(_mark(message).holder()),
        path=ledger.path,
        version=ledger.version,
        created_ms=ledger.created_ms,
        raw=ledger.raw,
        run=run,
        journaled_at=now_ms,
        bookie_cluster=ledger.bookie_cluster,
        instance=instance,
    )


def _named_cluster(message: ReceivedMark) -> str:
    if message.directive is not None:
        return message.directive.target
    return message.mark.bookie_cluster if message.mark else ""


def _clusters_of(stored: StoredLedger | None) -> str:
    return "" if stored is None else ",".join(place.bookie_cluster for place in stored.places)


def _row(message: ReceivedMark, decision: Decision, readings: Mapping[int, LedgerReading], now_ms: int) -> OutcomeRow:
    mark = message.mark
    reading = readings.get(mark.ledger_id) if mark else None
    stored = reading if isinstance(reading, StoredLedger) else None
    holder = _holder(message)
    return OutcomeRow(
        ledger_id=mark.ledger_id if mark else None,
        holder=str(holder) if holder else (message.key or ""),
        component=mark.component.value if mark else "",
        ledger_type=mark.ledger_type.value if mark else "",
        outcome=decision.outcome,
        reason=decision.reason,
        attempts=message.attempts,
        marked_at=(mark.marked_at or None) if mark else None,
        published_at=message.published_at,
        decided_at=now_ms,
        ledger_created_at=(stored.metadata.ctime_ms or stored.created_ms) if stored else None,
        ledger_bytes=stored.metadata.length if stored else None,
        topic=message.topic,
        message=message.message_id,
        bookie_cluster=_named_cluster(message) or _clusters_of(stored),
    )
