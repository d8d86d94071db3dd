"""An operation of phase one: what it plans, marked and did; and how a broker is asked once all marks are confirmed."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bookwarden.deletion.phase_one.mark import Marker, MarkReport
from bookwarden.deletion.ports import MetadataMigrations
from bookwarden.errors import NotFoundError, PulsarError, RefusedError, StoreUnavailableError
from bookwarden.ledgers.managed_ledger import SHADOW_SOURCE_PROPERTY, ManagedLedgerInfo
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.pending_deletion import PendingDeletion


class Operation(enum.Enum):
    """What was asked for."""

    TRIM = "trim"
    DELETE_TOPIC = "delete topic"
    DELETE_SUBSCRIPTION = "delete subscription"
    DELETE_SCHEMA = "delete schema"


class Mode(enum.Enum):
    """Who takes the ledgers off the metadata: the broker when asked, or we in the store."""

    BROKER = "broker"
    STORE = "store"


@dataclass(frozen=True, slots=True)
class OperationResult:
    """What became of one operation; while `done` is False the metadata still refers to the ledgers.

    ``problem`` says why it is not done, and is empty for a dry run. ``removed`` are the ledgers that were taken
    off the metadata in store mode; in broker mode the broker decides, and the sweep finds out.
    """

    operation: Operation
    mode: Mode
    target: str
    planned: tuple[PendingDeletion, ...]
    report: MarkReport = field(default_factory=MarkReport)
    done: bool = False
    dry_run: bool = False
    problem: str = ""
    removed: tuple[int, ...] = ()


def ask_broker(
    marker: Marker,
    operation: Operation,
    target: str,
    planned: Sequence[PendingDeletion],
    ask: Callable[[], None],
    *,
    migrations: MetadataMigrations,
    dry_run: bool,
) -> OperationResult:
    """Mark all that may leave, then let the broker do it; a mark that fails keeps the broker from being asked.

    While the metadata is being moved the broker, which could not do it, is not asked; that is waited for.
    Raises PulsarError when the deletion topic cannot be reached: then nothing was sent and nothing was done.
    """
    plan = tuple(planned)
    if dry_run:
        return OperationResult(operation, Mode.BROKER, target, plan, dry_run=True)
    report = marker.mark(plan)
    if report.failed:
        first = report.failed[0]
        problem = f"{len(report.failed)} of {len(plan)} marks failed, so the broker was not asked; "
        problem += f"the first, ledger {first.mark.ledger_id}: {first.failure}"
        return OperationResult(operation, Mode.BROKER, target, plan, report, problem=problem)
    try:
        migrations.await_writes()
    except StoreUnavailableError as error:
        return OperationResult(
            operation, Mode.BROKER, target, plan, report, problem=f"marked, but the broker was not asked: {error}"
        )
    try:
        ask()
    except (PulsarError, NotFoundError) as error:
        # The marks are out; as long as the ledgers are referenced, the sweep leaves them alone.
        return OperationResult(operation, Mode.BROKER, target, plan, report, problem=str(error))
    return OperationResult(operation, Mode.BROKER, target, plan, report, done=True)


def refuse_shadow(topic: TopicName, info: ManagedLedgerInfo) -> None:
    """Raise RefusedError for a shadow topic: the ledgers it lists are its source's."""
    source = info.properties.get(SHADOW_SOURCE_PROPERTY)
    if source is not None:
        raise RefusedError(f"{topic} is a shadow of {source}, whose ledgers it lists: act on the source")
