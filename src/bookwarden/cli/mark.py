"""Commands of phase one: mark ledgers, then have them removed from the metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import click

from bookwarden.cli.shell.invocation import (
    Invocation,
    parse_ledger_id,
    parse_topic,
    pass_invocation,
    while_migrating_option,
)
from bookwarden.cli.shell.output import Column, Document, Note, Part, Table, counted
from bookwarden.cli.shell.questions import confirm, yes_option
from bookwarden.clusters.pulsar.references.live import MetadataReferences
from bookwarden.deletion.phase_one.named_ledgers import absent_ledgers, marks_of_ids, refuse_holes, waive_the_list
from bookwarden.deletion.phase_one.operation import MarkPlan, OperationResult, require_shown
from bookwarden.errors import BookwardenError, MarkingInterrupted, NotFoundError, RefusedError
from bookwarden.ledgers.live_references import LiveReferences
from bookwarden.ledgers.pending_deletion import LedgerType, MarkedLedger, MarkReport, PendingDeletion
from bookwarden.preflight import require_marking
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.deletion import PhaseOne

_OFFLOADED = "offloaded copy"
_COLUMNS = (
    Column("ledger", right=True),
    Column("kind"),
    Column("state"),
    Column("holder", whole=False),
    Column("reason", whole=False),
)
MakePlans = Callable[[PhaseOne], list[MarkPlan]]


@dataclass(frozen=True, slots=True)
class MarkRow:
    """One ledger of an operation; ``reason`` says why its mark failed."""

    ledger_id: int
    holder: str
    kind: str
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class MarkReportView:
    """An operation on one topic or partition, as programs read it."""

    operation: str  #: The value of an Operation.
    mode: str  #: The value of a Mode.
    target: str  #: The topic or partition, or its subscription or schema.
    dry_run: bool  #: Whether only the plan is shown.
    done: bool  #: False while the metadata still refers to the ledgers.
    problem: str  #: Why it is not done; "" if it is, or in a dry run.
    removed: tuple[int, ...]  #: Ids of ledgers removed from the metadata, in store mode.
    ledgers: tuple[MarkRow, ...]  #: Those to mark in a dry run, else each with its mark's result.


_EPILOG = """\b
Examples:
  bookwarden mark trim persistent://public/default/orders --dry-run
  bookwarden mark topic persistent://public/default/orders
  bookwarden mark subscription persistent://public/default/orders billing
  bookwarden mark ledger 4711 4712 --yes"""


@click.group(epilog=_EPILOG)
def mark() -> None:
    """Phase one: mark ledgers, then have them removed.

    A pending deletion is sent for every ledger first. Only when each is confirmed is the broker asked to trim or
    delete; whatever it then fails to delete, the sweep deletes. Every command asks before it acts.
    """


_dry_run = click.option("--dry-run", is_flag=True, help="Only show which ledgers would be marked.")
_force = click.option("--force", is_flag=True, help="Disconnect clients that are still connected.")


@mark.command()
@click.argument("topic", type=parse_topic)
@click.option("--broker", "mode", flag_value="broker", default=True, help="Ask the topic's broker.  [default]")
@click.option("--store", "mode", flag_value="store", help="Update the metadata store; for topics no broker owns.")
@click.option("--force", is_flag=True, help="With --store: also what a subscription has not acknowledged.")
@_dry_run
@while_migrating_option
@yes_option
@pass_invocation
def trim(invocation: Invocation, topic: str, mode: str, force: bool, dry_run: bool, yes: bool) -> None:
    """Remove the consumed ledgers of TOPIC.

    The broker keeps those that its retention still holds; their marks then find them referenced, and they stay.
    """
    if force and mode == "broker":
        raise click.UsageError("--force goes with --store; a broker removes only what is consumed")

    def make(phase_one: PhaseOne) -> list[MarkPlan]:
        if mode == "store":
            return [phase_one.store_trim.plan(topic, force=force)]
        return phase_one.removal.plan_trim(topic)

    _run(invocation, make, f"Trim {topic}?", dry_run=dry_run, yes=yes)


@mark.command("topic")
@click.argument("topic", type=parse_topic)
@_force
@_dry_run
@while_migrating_option
@yes_option
@pass_invocation
def delete_topic(invocation: Invocation, topic: str, force: bool, dry_run: bool, yes: bool) -> None:
    """Delete TOPIC and all it holds.

    That is its partitions, their messages and subscriptions, and the schema.
    """

    def make(phase_one: PhaseOne) -> list[MarkPlan]:
        return [phase_one.removal.plan_topic(topic, force=force)]

    _run(invocation, make, f"Delete {topic} and all its messages?", dry_run=dry_run, yes=yes)


@mark.command("subscription")
@click.argument("topic", type=parse_topic)
@click.argument("subscription")
@_force
@_dry_run
@while_migrating_option
@yes_option
@pass_invocation
def delete_subscription(
    invocation: Invocation, topic: str, subscription: str, force: bool, dry_run: bool, yes: bool
) -> None:
    """Delete SUBSCRIPTION of TOPIC, with its cursor's ledgers."""

    def make(phase_one: PhaseOne) -> list[MarkPlan]:
        return [phase_one.removal.plan_subscription(topic, subscription, force=force)]

    _run(invocation, make, f"Delete subscription {subscription} of {topic}?", dry_run=dry_run, yes=yes)


@mark.command("schema")
@click.argument("topic", type=parse_topic)
@_dry_run
@while_migrating_option
@yes_option
@pass_invocation
def delete_schema(invocation: Invocation, topic: str, dry_run: bool, yes: bool) -> None:
    """Delete all versions of TOPIC's schema."""

    def make(phase_one: PhaseOne) -> list[MarkPlan]:
        return [phase_one.removal.plan_schema(topic)]

    _run(invocation, make, f"Delete the schema of {topic}?", dry_run=dry_run, yes=yes)


@mark.command("ledger")
@click.argument("ledger_ids", metavar="ID...", nargs=-1, required=True, type=parse_ledger_id)
@click.option(
    "--inside-list",
    is_flag=True,
    help="Also what its topic's list lost: acknowledged messages, gone for good (docs/orphans.md).",
)
@_dry_run
@yes_option
@pass_invocation
def mark_ledger(
    invocation: Invocation, ledger_ids: tuple[int, ...], inside_list: bool, dry_run: bool, yes: bool
) -> None:
    """Mark ledgers by their ids, and remove nothing.

    Whose they are is read from their custom metadata. The sweep keeps every one that its holder still names; one that
    was undone it keeps no longer. Those that are gone are reported (exit code 4), and the others marked.
    """
    confirmed = _Confirmed()
    with Cluster(invocation.settings) as cluster:
        phase_one = PhaseOne(cluster, on_report=confirmed.count)
        if not phase_one.marker.enabled:
            raise RefusedError("nothing is marked while deletion.topic_two_phase_deletion_enabled is false")
        marks = marks_of_ids(cluster.bookkeeper.catalog, ledger_ids)
        gone = sorted(set(ledger_ids) - {mark.ledger_id for mark in marks})
        if inside_list:
            marks = waive_the_list(marks)
        else:
            refuse_holes(marks, cluster.bookkeeper.catalog, cluster.references.live)
        if dry_run:
            note = f"Dry run: {counted(len(marks), 'ledger')} would be marked. Nothing was marked."
            invocation.write(_ledgers_document(_rows_of_named(marks, cluster.references.live) + _gone(gone), note))
            _end_with(gone)
            return
        require_marking(cluster)
        confirm(f"Mark {counted(len(marks), 'ledger')} for deletion?", yes=yes)
        # First, or a faster sweep might keep a ledger that it was just asked to delete.
        undone = cluster.bookkeeper.undone.withdraw_many([found.ledger_id for found in marks])
        with confirmed.told_at_interruption():
            report = phase_one.marker.mark(marks)
    rows = _rows((), report.ledgers) + _gone(gone)
    note = "The sweep deletes what nothing refers to."
    if undone:
        note += f" It kept {len(undone):,} of them until now, because an undo had put them back."
    invocation.write(_ledgers_document(rows, note))
    if report.failed:
        raise BookwardenError(f"{len(report.failed)} of {counted(len(marks), 'mark')} failed; run the command again")
    _end_with(gone)


def _rows_of_named(marks: Sequence[PendingDeletion], references: MetadataReferences) -> list[MarkRow]:
    """Make the rows of a dry run; the reason says which of them the sweep would keep as they are now."""
    found = references.read(list({mark.holder() for mark in marks}))

    def reason_of(mark: PendingDeletion) -> str:
        named = found[mark.holder()]
        is_named = isinstance(named, LiveReferences) and named.names(mark.ledger_id)
        return "its holder names it: the sweep would keep it" if is_named else ""

    return [_row(mark, "would mark", reason_of(mark)) for mark in marks]


def _gone(ledger_ids: Iterable[int]) -> list[MarkRow]:
    return [MarkRow(ledger_id, "", "", "gone", "BookKeeper has no metadata of it") for ledger_id in ledger_ids]


def _end_with(gone: Sequence[int]) -> None:
    if gone:
        raise NotFoundError(f"{absent_ledgers(gone)}; the others are as the output says")


class _Confirmed:
    """The number of one command's marks that the broker has confirmed."""

    def __init__(self) -> None:
        self._number = 0

    def count(self, report: MarkReport) -> None:
        self._number += len(report.ledgers) - len(report.failed)

    @contextmanager
    def told_at_interruption(self) -> Iterator[None]:
        try:
            yield
        except KeyboardInterrupt as error:
            number = self._number + (error.confirmed if isinstance(error, MarkingInterrupted) else 0)
            raise KeyboardInterrupt(
                f"interrupted: {counted(number, 'mark')} confirmed; nothing left the metadata without a confirmed "
                "mark, so run the command again"
            ) from error


def _run(invocation: Invocation, make: MakePlans, question: str, *, dry_run: bool, yes: bool) -> None:
    confirmed = _Confirmed()
    with Cluster(invocation.settings) as cluster:
        phase_one = PhaseOne(cluster, on_report=confirmed.count)
        if dry_run:
            invocation.write(_document([_view(plan) for plan in make(phase_one)]))
            return
        if phase_one.marker.enabled:
            require_marking(cluster)
        shown = None if yes else make(phase_one)
        if shown is not None:
            planned = sum(len(plan.marks) for plan in shown)
            confirm(f"{question} {counted(planned, 'ledger')} would be marked.", yes=False)
        # Without marks the broker was asked all the same, and there is nothing to report.
        with confirmed.told_at_interruption() if phase_one.marker.enabled else nullcontext():
            # The answer to a question may take long.
            plans = make(phase_one)
            if shown is not None:
                require_shown(shown, plans)
            results = [plan.carry_out() for plan in plans]
    invocation.write(_document([_view(result.plan, result) for result in results]))
    problems = [result.problem for result in results if result.problem]
    if problems:
        raise BookwardenError(f"{plans[0].operation.value} is not done: {'; '.join(problems)}")


def _document(views: Sequence[MarkReportView]) -> Document:
    rows = [row for view in views for row in view.ledgers]
    table = Table(_COLUMNS, _cells(rows), empty="No ledger is to go.")
    parts: list[Part] = [table, *(Note(_sentence(view)) for view in views)]
    return Document(tuple(views), tuple(parts))


def _ledgers_document(rows: Sequence[MarkRow], note: str) -> Document:
    return Document({"ledgers": tuple(rows)}, (Table(_COLUMNS, _cells(rows)), Note(note)))


def _view(plan: MarkPlan, result: OperationResult | None = None) -> MarkReportView:
    return MarkReportView(
        operation=plan.operation.value,
        mode=plan.mode.value,
        target=plan.target,
        dry_run=result is None,
        done=result is not None and result.done,
        problem=result.problem if result else "",
        removed=result.removed if result else (),
        ledgers=tuple(_rows((), result.report.ledgers) if result else _rows(plan.marks, ())),
    )


def _rows(planned: Iterable[PendingDeletion], marked: Iterable[MarkedLedger]) -> list[MarkRow]:
    rows = [_row(found, "would mark", "") for found in planned]
    rows += [_row(found.mark, "marked" if found.sent else "failed", found.failure or "") for found in marked]
    return rows


def _row(found: PendingDeletion, state: str, reason: str) -> MarkRow:
    holder = found.holder()
    kind = _OFFLOADED if found.ledger_type is LedgerType.OFFLOAD_LEDGER else holder.ledgers_label
    return MarkRow(found.ledger_id, str(holder), kind, state, reason)


def _cells(rows: Iterable[MarkRow]) -> tuple[tuple[Any, ...], ...]:
    return tuple((str(row.ledger_id), row.kind, row.state, row.holder, row.reason) for row in rows)


def _sentence(view: MarkReportView) -> str:
    if view.dry_run:
        return f"Dry run: {view.operation} {view.target} would mark {counted(len(view.ledgers), 'ledger')}."
    if view.problem:
        return f"Not done: {view.operation} {view.target}."
    return f"Done: {view.operation} {view.target} ({view.mode}); {counted(len(view.ledgers), 'ledger')} marked."
