"""`bookwarden cluster-migration verify` and `finish`: a migration proven to be done, and removed from blue."""

from __future__ import annotations

import dataclasses
import time
from typing import Final

import click

from bookwarden.cli.cluster_migration.options import accept_option, named_or_begun, namespaces_argument
from bookwarden.cli.shell.invocation import Invocation, pass_invocation, show_option
from bookwarden.cli.shell.output import Column, Document, Note, Part, counted, table_of
from bookwarden.cli.shell.questions import confirm, yes_option
from bookwarden.cluster_migration.finishing import (
    FinishPlan,
    MigrationFinisher,
    MigrationVerification,
    TopicRemoval,
    TopicVerification,
    verify_migration,
)
from bookwarden.cluster_migration.readiness.findings import Override
from bookwarden.cluster_migration.scope import refuse_deletion_topics
from bookwarden.cluster_migration.watching import BrokerHealth
from bookwarden.errors import RefusedError
from bookwarden.exit_codes import LATE, NOT_DONE, SOME_FAILED
from bookwarden.metrics.findings import of_clients
from bookwarden.metrics.names import Program
from bookwarden.metrics.runs import published_run
from bookwarden.wiring.cluster_migration import ClusterMigration

_EPILOG = """\b
Exit codes: 0 all of it is planned, or removed; 22 some topics are not proven to be done, and are kept;
27 a removal failed: run it again; 5 the deletion topics would be in the scope, or clients were connected to blue;
28 a broker of blue is deadlocked."""

# Applications that restart once in a while show up within it.
_QUIET_S: Final = 3600.0


@click.command(epilog=_EPILOG)
@namespaces_argument
@click.option("--execute", is_flag=True, help="Mark and remove; without it, only show what would be.")
@accept_option
@show_option("Topics to list.")
@yes_option
@pass_invocation
def finish(
    invocation: Invocation,
    namespaces: list[str],
    execute: bool,
    accepted: frozenset[Override],
    show: int,
    yes: bool,
) -> None:
    """Mark for deletion what blue may lose.

    Plans with the topics that `verify` proves. With --execute each is looked at once more, its ledgers are marked, and
    blue is asked to remove it: partitioned topics with their partitions and node, and schemas. The sweep deletes the
    ledgers that blue's brokers have not deleted by then. From then on clients with blue's URL get errors for these
    topics: blue sends no client to green any more. It is refused while clients were connected to blue at a snapshot
    that `watch` recorded within the last hour. The flags stay; what else is left is listed.
    """
    with ClusterMigration(invocation.settings) as migration:
        names = named_or_begun(migration, namespaces)
        refuse_deletion_topics(migration.deletion_topics, names)
        BrokerHealth(migration.blue).require()
        cases = {one.value for one in accepted}
        verified = verify_migration(migration.blue, migration.green, migration.observer, migration.record, names, cases)
        finishing = MigrationFinisher(
            migration.blue, migration.green, migration.observer, migration.removal, migration.record, invocation.say
        )
        plan = finishing.plan(names, verified, cases)
        if execute and Override.LATE_CLIENTS.value not in cases:
            _refuse_connected(migration, names)
        results = _act(invocation, migration, finishing, names, plan, execute=execute, yes=yes)
    invocation.write(_describe(plan, results, show, executed=execute))
    failed = any(one.problem for one in results)
    click.get_current_context().exit(SOME_FAILED if failed else NOT_DONE if plan.kept else 0)


def _refuse_connected(migration: ClusterMigration, names: list[str]) -> None:
    """Raise RefusedError while clients were connected to blue within the last hour."""
    topics = migration.record.connected(names, int((time.time() - _QUIET_S) * 1000))
    if topics:
        raise RefusedError(
            f"`watch` saw clients connected to {counted(len(topics), 'topic')} of blue within the last hour, such as "
            f"{topics[0]}; without these topics they would get errors: give all applications green's URL, and run this "
            "an hour after the last one left, or add --accept late-clients"
        )


def _act(
    invocation: Invocation,
    migration: ClusterMigration,
    finishing: MigrationFinisher,
    names: list[str],
    plan: FinishPlan,
    *,
    execute: bool,
    yes: bool,
) -> list[TopicRemoval]:
    if not execute or not plan.removable:
        return finishing.marks_of(plan)
    entries = sum(one.entries for one in plan.removable)
    confirm(
        f"Remove {counted(len(plan.removable), 'topic')} with {counted(entries, 'entry', 'entries')} from blue? "
        "Clients with blue's URL get errors for these topics from then on, and are not sent to green; brokers delete "
        "most ledgers at once, which `undo` cannot restore.",
        yes=yes,
        look="leave out --execute",
    )
    with migration.alone(names):
        results = list(finishing.carry_out(plan))
        finishing.close(names, plan, results)
    return results


def _describe(plan: FinishPlan, results: list[TopicRemoval], show: int, *, executed: bool) -> Document:
    cells = {
        Column("topic", whole=False, topics=True): lambda one: one.topic,
        Column("entries", right=True): lambda one: f"{one.entries:,}",
        Column("bytes", right=True): lambda one: f"{one.size:,}",
        Column("marks", right=True): lambda one: f"{one.marks:,}",
        Column("result", whole=False): lambda one: _result(one, executed=executed),
    }
    parts: list[Part] = [table_of(results[:show], cells, empty="Nothing of these namespaces may go.")]
    parts += [Note(f"KEPT: {reason}") for reason in list(plan.kept.values())[:show]]
    if plan.leftovers:
        parts.append(
            Note(
                f"Left for the namespace's own end, since brokers need them: {', '.join(plan.leftovers[:show])}. "
                "Once no application has blue's URL any more, delete the namespace, then run `orphans scan`."
            )
        )
    if sum(one.entries for one in results):
        parts.append(
            Note(
                f"Read history: {counted(sum(one.entries for one in results), 'entry', 'entries')}, "
                f"{sum(one.size for one in results):,} bytes, that green has not. Brokers delete its ledgers with the "
                "topic, and `undo` cannot restore these."
            )
        )
    if not executed and plan.removable:
        parts.append(Note("Nothing was changed: --execute does it, and the sweep deletes the ledgers then."))
    data = {
        "executed": executed,
        "topics": [dataclasses.asdict(one) for one in results],
        "kept": dict(plan.kept),
        "leftovers": plan.leftovers,
    }
    return Document(data, tuple(parts))


def _result(one: TopicRemoval, *, executed: bool) -> str:
    if one.problem:
        return f"failed: {one.problem}"
    return "removed" if one.done else "would be removed" if not executed else "not removed"


_VERIFY_EPILOG = """\b
Exit codes: 0 done; 22 not done, the output says of which topic and why; 29 all that is wrong are subscriptions that
came too late to green, and may have lost messages."""


@click.command(epilog=_VERIFY_EPILOG)
@namespaces_argument
@accept_option
@show_option("Topics to list; those that are not done come first.")
@pass_invocation
def verify(invocation: Invocation, namespaces: list[str], accepted: frozenset[Override], show: int) -> None:
    """Prove that a migration is done.

    Done means that each topic of the scope is drained or gone on blue, that no cursor has an unread entry (where no
    broker has the topic loaded, the cursor's own ledger is read), and that every subscription that blue has, or had
    when it began, is on green. A doubt is not done; what `start`
    accepted by name is none. Changes nothing, and may be run at any time.
    """
    with published_run(invocation.settings.metrics, Program.CLIENTS_VERIFY) as run:
        with ClusterMigration(invocation.settings) as migration:
            names, record = named_or_begun(migration, namespaces), migration.record
            cases = {one.value for one in accepted} | record.accepted(names)
            found = verify_migration(migration.blue, migration.green, migration.observer, record, names, cases)
        run.show(of_clients(found))
        invocation.write(_describe_verified(found, show))
        click.get_current_context().exit(0 if found.ok else LATE if found.is_only_late else NOT_DONE)


def _describe_verified(found: MigrationVerification, show: int) -> Document:
    """Describe every topic, the faults first."""
    topics = sorted(found.topics, key=lambda one: (one.ok, one.topic))
    cells = {
        Column("topic", whole=False, topics=True): lambda one: one.topic,
        Column("on blue"): lambda one: one.state,
        Column("when marked", right=True): lambda one: _number(one.began_with),
        Column("entries on blue", right=True): lambda one: _number(one.on_blue),
        Column("unread", right=True): lambda one: _number(one.unread),
        Column("on green", right=True): lambda one: _number(one.on_green),
        Column("not done because", whole=False): lambda one: "; ".join(
            (*one.faults, *(f"late: {name}" for name in one.late))
        ),
    }
    parts: list[Part] = [table_of(topics[:show], cells)]
    if len(topics) > show:
        parts.append(Note(f"{len(topics) - show} more topics are not shown: --show lists more, -o json all."))
    parts += [Note(f"NOT DONE: {fault}") for fault in found.faults]
    bad = sum(not one.ok for one in topics)
    parts.append(
        Note(
            f"Done: {counted(len(topics), 'topic')}, nothing is left to read on blue. Next: give applications green's "
            "URL, then `cluster-migration finish`."
            if found.ok
            else f"NOT DONE: {bad} of {counted(len(topics), 'topic')}. What to do: docs/cluster-migration.md."
        )
    )
    data = {"done": found.ok, "faults": found.faults, "topics": [_data(one) for one in topics]}
    return Document(data, tuple(parts))


def _number(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def _data(one: TopicVerification) -> dict[str, object]:
    return {**dataclasses.asdict(one), "ok": one.ok}
