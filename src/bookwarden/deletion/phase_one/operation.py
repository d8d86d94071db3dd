"""An operation of phase one: its plan and result, and the request to a broker once all marks are confirmed."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from bookwarden.deletion.phase_one.mark import Marker
from bookwarden.errors import NotFoundError, PulsarError, RefusedError, StoreUnavailableError
from bookwarden.ledgers.managed_ledger import SHADOW_SOURCE_PROPERTY, ManagedLedgerInfo
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.pending_deletion import MarkReport, PendingDeletion
from bookwarden.metastore.following.store import Migrations


class Operation(enum.Enum):
    """The kind of an operation."""

    TRIM = "trim"
    DELETE_TOPIC = "delete topic"
    DELETE_SUBSCRIPTION = "delete subscription"
    DELETE_SCHEMA = "delete schema"


class Mode(enum.Enum):
    """The party that removes the ledgers from the metadata: the broker when asked, or bookwarden in the store."""

    BROKER = "broker"
    STORE = "store"


@dataclass(frozen=True, slots=True)
class MarkPlan:
    """An operation's marks, from what was read; making a plan changes nothing.

    ``act`` sends exactly these marks, and then has the target removed.
    """

    operation: Operation
    mode: Mode
    target: str
    marks: tuple[PendingDeletion, ...]
    act: Callable[[MarkPlan], OperationResult] = field(repr=False, compare=False)

    def carry_out(self) -> OperationResult:
        """Mark, then have the target removed; raises PulsarError only if nothing was sent and nothing was done."""
        return self.act(self)


@dataclass(frozen=True, slots=True)
class OperationResult:
    """The result of a plan; while `done` is False the metadata still refers to the ledgers.

    ``problem`` says why it is not done. ``removed`` are the ledgers that were removed from the metadata in store mode;
    in broker mode the broker decides, and the sweep finds out.
    """

    plan: MarkPlan
    report: MarkReport = field(default_factory=MarkReport)
    done: bool = False
    problem: str = ""
    removed: tuple[int, ...] = ()


def require_shown(shown: Iterable[MarkPlan], now: Iterable[MarkPlan]) -> None:
    """Raise RefusedError if more would be marked now than was shown; less is allowed, as after the broker trimmed."""
    agreed: dict[int, list[PendingDeletion]] = {}
    for plan in shown:
        for mark in plan.marks:
            agreed.setdefault(mark.ledger_id, []).append(mark)
    for plan in now:
        more = [mark for mark in plan.marks if mark not in agreed.get(mark.ledger_id, ())]
        if more:
            raise RefusedError(
                f"{plan.target} changed since it was shown: {len(more)} more would be marked, the first ledger "
                f"{more[0].ledger_id}; nothing was done, run the command again"
            )


def ask_broker(
    marker: Marker, plan: MarkPlan, ask: Callable[[], None], *, migrations: Migrations | None
) -> OperationResult:
    """Mark all that may leave, then ask the broker to remove it, unless a mark failed.

    While the metadata is being moved, when the broker could not remove it, this waits.
    Raises PulsarError when the deletion topic cannot be reached: then nothing was sent and nothing was done.
    """
    report = marker.mark(plan.marks)
    if report.failed:
        first = report.failed[0]
        problem = f"{len(report.failed)} of {len(plan.marks)} marks failed, so the broker was not asked; "
        problem += f"the first, ledger {first.mark.ledger_id}: {first.failure}"
        return OperationResult(plan, report, problem=problem)
    try:
        if migrations is not None:
            migrations.await_writes()
    except StoreUnavailableError as error:
        return OperationResult(plan, report, problem=f"marked, but the broker was not asked: {error}")
    try:
        ask()
    except (PulsarError, NotFoundError) as error:
        # The marks are out; as long as the ledgers are referenced, the sweep leaves them alone.
        return OperationResult(plan, report, problem=str(error))
    return OperationResult(plan, report, done=True)


def refuse_shadow(topic: TopicName, info: ManagedLedgerInfo) -> None:
    """Raise RefusedError for a shadow topic: the ledgers it lists are its source's."""
    source = info.properties.get(SHADOW_SOURCE_PROPERTY)
    if source is not None:
        raise RefusedError(f"{topic} is a shadow of {source}, whose ledgers it lists: act on the source")
