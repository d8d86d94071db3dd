"""Phase two for one share of a batch: verify the marks, carry out what was decided, send on, and account for each.

Every step may run twice: a replayed mark finds its ledger gone, and a retry sent twice is swept twice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Final, NamedTuple, TypeVar

from bookwarden.deletion.phase_two.copy_deletion import CopyDeleter
from bookwarden.deletion.phase_two.decide import Action, Decision, finish, judge_directive
from bookwarden.deletion.phase_two.held_marks import HeldMarks
from bookwarden.deletion.phase_two.isolation import Isolation, describe_error
from bookwarden.deletion.phase_two.ledger_deletion import LedgerDeleter
from bookwarden.deletion.phase_two.sent_on import Sendings
from bookwarden.deletion.phase_two.verifying import Verifier, mark_of
from bookwarden.errors import MalformedMarkError
from bookwarden.ledgers.kinds import Holder
from bookwarden.ledgers.metadata import LedgerReading, StoredLedger
from bookwarden.ledgers.outcomes import Outcome, OutcomeRow
from bookwarden.ledgers.received import ReceivedMark
from bookwarden.metastore.deadline import retry_while_unavailable
from bookwarden.metastore.following.store import Migrations

logger = logging.getLogger(__name__)
_T = TypeVar("_T")
_Decided = tuple[ReceivedMark, Decision]
_Step = Sequence[tuple[Holder | None, ReceivedMark]]

_WARNED: Final = (Outcome.MISMATCH, Outcome.INSIDE_LIST, Outcome.DAMAGED_HOLDER)


class _Attempt(NamedTuple):
    """The result of one attempt at a step; ``not_done`` are ledgers that it could not delete."""

    decided: list[_Decided]
    readings: dict[int, LedgerReading]
    now_ms: int
    not_done: frozenset[int]


@dataclass(frozen=True, slots=True)
class SweepLimits:
    """The marks of one step, and the seconds that a step waits for a store that does not answer."""

    ledgers_per_step: int = 1000
    max_unreachable: float = 120.0


@dataclass(frozen=True, slots=True)
class Acts:
    """Acts of a sweep, which a dry run does not have."""

    copies: CopyDeleter
    ledgers: LedgerDeleter
    sendings: Sendings
    migrations: Migrations  #: Waited for before anything is read that is to be deleted.
    held: HeldMarks = field(default_factory=HeldMarks)


class Sweep:
    """Verify and delete what marks ask for; one object per process. Without ``acts`` it is a dry run.

    ``require_bookies`` raises where no bookie is registered: what is not in such a BookKeeper proves nothing.
    """

    def __init__(
        self,
        verifier: Verifier,
        acts: Acts | None,
        limits: SweepLimits,
        *,
        require_bookies: Callable[[], object] = lambda: None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._verifier = verifier
        self._acts = acts
        self._limits = limits
        self._require_bookies = require_bookies
        self._pause = pause
        self._clusters = verifier.clusters
        self._isolation = Isolation()
        self._epoch: int | None = None

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
        acts = self._acts
        if acts is not None:
            acts.sendings.begin(run)
            acts.held.begin()
        self._clusters.invalidate()
        self._epoch = epoch
        for step in self._steps_of(received):
            yield from self._isolated(step, run, tell)
        while acts is not None and acts.held.wait(self._pause):
            self._clusters.invalidate()
            for messages in acts.held.by_doubt():
                for part in _slices(messages, self._limits.ledgers_per_step):
                    held = acts.held.marks
                    for step in self._steps_of(part):
                        yield from self._isolated(step, run, tell)
                    # The same doubt holds the others too, which need not be read to know that.
                    if acts.held.marks == held:
                        break

    def _steps_of(self, received: Sequence[ReceivedMark]) -> Iterator[list[tuple[Holder | None, ReceivedMark]]]:
        groups: dict[Holder | None, list[ReceivedMark]] = {}
        for message in received:
            groups.setdefault(_holder(message), []).append(message)
        return _steps(groups, self._limits.ledgers_per_step)

    def _isolated(self, step: _Step, run: str, tell: Callable[[Sequence[OutcomeRow]], _T]) -> Iterator[_T]:
        made = self._isolation.carry_out(
            step,
            lambda part: self._step(part, run, tell),
            lambda one, error: [self._cut_out(one[1], error, tell)],
        )
        return chain.from_iterable(made)

    def _step(self, step: _Step, run: str, tell: Callable[[Sequence[OutcomeRow]], _T]) -> list[_T]:
        results: list[_T] = []
        acts, left = self._acts, list(step)
        while left:
            stops = 0 if acts is None else acts.migrations.stops
            # Waiting restarts the step, so that a delete never rests on what was read before an outage.
            attempt = retry_while_unavailable(
                partial(self._attempt, left, run), self._limits.max_unreachable, self._pause
            )
            moved = acts is not None and acts.migrations.stops != stops
            again = attempt.not_done if moved else frozenset()
            decided = [(message, decision) for message, decision in attempt.decided if not _is_of(message, again)]
            if acts is not None:
                decided = acts.held.hold_back(acts.sendings.without_sent(decided))
            results.append(self._settle(decided, attempt.readings, attempt.now_ms, tell))
            # The metadata was moved in the middle of the step: not a ledger's fault, so it costs no retry.
            left = [(holder, message) for holder, message in left if _is_of(message, again)]
            if left:
                logger.info("deleting %d ledgers once more, since the metadata was being moved", len(again))
        return results

    def _settle(
        self,
        decided: Sequence[_Decided],
        readings: Mapping[int, LedgerReading],
        now_ms: int,
        tell: Callable[[Sequence[OutcomeRow]], _T],
    ) -> _T:
        if self._acts is not None:
            decided = self._acts.sendings.without_lost_dead_letters(decided)
        results = tell([_row(message, decision, readings, now_ms) for message, decision in decided])
        if self._acts is not None:
            self._acts.sendings.send(decided, now_ms)
        return results

    def _cut_out(self, message: ReceivedMark, error: Exception, tell: Callable[[Sequence[OutcomeRow]], _T]) -> _T:
        reason = f"the sweep fails at this message alone: {describe_error(error)}"
        logger.error("message %s of %s: %s", message.message_id, message.topic, reason, exc_info=error)
        decided = [(message, Decision(Action.GIVE_UP, Outcome.POISONOUS, reason))]
        if self._acts is not None:
            decided = self._acts.sendings.without_sent(decided)
        return self._settle(decided, {}, self._verifier.now_ms(), tell)

    def _attempt(self, step: _Step, run: str) -> _Attempt:
        acts = self._acts
        if acts is not None:
            acts.migrations.await_writes()
        self._require_epoch()
        self._require_bookies()
        for failure in filter(None, (message.failure for _, message in step)):
            raise failure
        marks = [(holder, message) for holder, message in step if holder is not None]
        readings = self._verifier.read([mark_of(message).ledger_id for _, message in marks])
        others = [self._decide_other(message) for holder, message in step if holder is None]
        candidates, now_ms = self._verifier.verify(marks, readings)
        for one in candidates:
            if one.decision.outcome in _WARNED:
                logger.warning("ledger %d of %s is kept: %s", one.mark.ledger_id, one.holder, one.decision.reason)
        not_done = frozenset[int]()
        if acts is None:
            candidates = [one._replace(decision=_would_be(one.decision)) for one in candidates]
        else:
            # Copies first: as long as BookKeeper has the ledger, its metadata proves who owns the copy. One that stands
            # for a ledger to be deleted is not among them: the list that was read names it.
            candidates = acts.copies.carry_out(candidates, run)
            self._require_epoch()
            candidates, not_done = acts.ledgers.carry_out(candidates, run)
        of_marks, of_others = iter(candidates), iter(others)
        decided = [
            (message, next(of_others) if holder is None else next(of_marks).decision) for holder, message in step
        ]
        return _Attempt(decided, readings, now_ms, not_done)

    def _require_epoch(self) -> None:
        if self._epoch is not None:
            self._clusters.require_epoch(self._epoch)

    def _decide_other(self, message: ReceivedMark) -> Decision:
        """Decide about a message that is no mark of a holder."""
        if message.directive is not None:
            return judge_directive(message.directive, self._clusters.active(), self._clusters.owner())
        return Decision(Action.GIVE_UP, Outcome.MALFORMED, message.problem or "no pending deletion")


def _would_be(decision: Decision) -> Decision:
    """Return what a dry run says of a decision."""
    if decision.action not in (Action.DELETE, Action.DELETE_COPY):
        return decision
    if decision.outcome is Outcome.ALREADY_GONE:
        return finish(decision.outcome, decision.reason)
    return finish(Outcome.WOULD_DELETE, "dry run")


def _holder(message: ReceivedMark) -> Holder | None:
    if message.mark is None:
        return None
    try:
        return message.mark.holder()
    except MalformedMarkError:
        return None


def _is_of(message: ReceivedMark, ledger_ids: frozenset[int]) -> bool:
    return message.mark is not None and message.mark.ledger_id in ledger_ids


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
