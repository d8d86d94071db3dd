"""`bookwarden cluster-migration start`: clients of namespaces are sent to green, each topic proven to be marked."""

from __future__ import annotations

import dataclasses
from contextlib import closing
from typing import Final

import click

from bookwarden.cli.cluster_migration.options import accept_option, late_option, required_namespaces_argument
from bookwarden.cli.cluster_migration.prepare import describe_preflight
from bookwarden.cli.cluster_migration.watch import release_option, watch_to_the_end
from bookwarden.cli.shell.invocation import Invocation, pass_invocation
from bookwarden.cli.shell.output import Column, Document, Note, Table, counted
from bookwarden.cli.shell.questions import confirm, yes_option
from bookwarden.cluster_migration.green_resources import GreenResources, LatePolicy, late_warnings
from bookwarden.cluster_migration.readiness.checks import evaluate
from bookwarden.cluster_migration.readiness.findings import ACCEPTED, Override, blocking
from bookwarden.cluster_migration.scope import refuse_deletion_topics
from bookwarden.cluster_migration.starting import MigrationStarter, StartResult, without_moved
from bookwarden.cluster_migration.watching import BrokerHealth
from bookwarden.exit_codes import LATE, SOME_FAILED, WOULD_FAIL
from bookwarden.wiring.cluster_migration import ClusterMigration, redirect_urls

_EPILOG: Final = """\b
Exit codes: 0 each topic is marked, and with --watch drained; 23 a check blocks it, and nothing was begun;
27 a topic was not marked, and the flag is off again; 28 a broker of blue is deadlocked; 29 as 0, and subscriptions
came too late to green and may have lost messages: the output names them; those of `watch`."""


@click.command(epilog=_EPILOG)
@required_namespaces_argument
@accept_option
@late_option
@click.option("--watch", "watches", is_flag=True, help="Watch until everything is drained.")
@release_option
@click.option("--dry-run", is_flag=True, help="Only check whether it could begin.")
@yes_option
@pass_invocation
def start(
    invocation: Invocation,
    namespaces: list[str],
    accepted: frozenset[Override],
    late_policy: LatePolicy,
    watches: bool,
    releases: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Send the clients of namespaces to green.

    Checks again what would lose messages, loads every topic, sets green's URLs and the flag of one namespace after the
    other, reads both back, and proves from blue's metadata that each topic was marked. Where one was not, that
    namespace's flag is taken off again, and the others are not begun. Each namespace is checked once more right before
    its flag. Topics, partitions and subscriptions that blue has got since `prepare` are made on green, also while the
    proof runs.
    """
    names = namespaces
    with (
        ClusterMigration(invocation.settings) as migration,
        closing(
            GreenResources(migration.blue, migration.green, migration.record, late_policy, invocation.say)
        ) as resources,
    ):
        refuse_deletion_topics(migration.deletion_topics, names)
        urls, health = redirect_urls(migration.clients), BrokerHealth(migration.blue)
        starting = MigrationStarter(
            migration.blue, migration.observer, migration.record, urls, resources, invocation.say
        )
        starting.round_seconds()
        health.require()
        if not _is_ready(invocation, migration, names, accepted):
            click.get_current_context().exit(WOULD_FAIL)
        if dry_run:
            text = f"Nothing blocks: all clients of {', '.join(names)} would be sent to green."
            invocation.write(Document({"would_start": names}, (Note(text),)))
            return
        confirm(f"Send all clients of {', '.join(names)} to green?", yes=yes)
        health.require()
        starting.set_urls()

        def is_ready(name: str) -> bool:
            return _is_ready(invocation, migration, [name], accepted, is_repeated=True)

        results: list[StartResult] = []
        for name in names:
            with migration.alone([name]):
                results.append(starting.start(name, sorted(one.value for one in accepted), is_ready))
            if not results[-1].ok:
                break
        late = migration.record.late(names)
        code = (LATE if late else 0) if results[-1].ok else WOULD_FAIL if results[-1].refused else SOME_FAILED
        goes_on = (watches or releases) and results[-1].ok
        if not goes_on or invocation.output != "json":
            invocation.write(_describe(results, names, late))
        if goes_on:
            code = watch_to_the_end(invocation, migration, names, resources, releases=releases)
    click.get_current_context().exit(code)


def _is_ready(
    invocation: Invocation,
    migration: ClusterMigration,
    names: list[str],
    accepted: frozenset[Override],
    *,
    is_repeated: bool = False,
) -> bool:
    """Return whether nothing blocks; what does is written. A namespace that is flagged already was ready."""
    left = [name for name in names if not migration.blue.nodes.is_flagged(name)]
    if not left:
        return True
    seen = migration.preflight.observe(left, lambda name: invocation.say(f"reading {name}"))
    topics = (topic for ours, _ in seen.pairs() for topic in ours.topics.values())
    readers = {topic.name for topic in topics if any(not one.durable for one in topic.subscriptions)}
    findings = without_moved(evaluate(seen), migration.record.expected(left), readers)
    if blocking(findings, accepted):
        invocation.write(describe_preflight(seen, findings, accepted))
        return False
    for one in findings:
        if not is_repeated and one.is_accepted(accepted) and one.override is not None:
            invocation.say(f"ACCEPTED ({one.override.value}): {ACCEPTED[one.override]}: {one.seen}")
    return True


def _describe(results: list[StartResult], names: list[str], late: tuple[tuple[str, str, int], ...]) -> Document:
    rows = tuple(
        (one.namespace, f"{one.topics:,}", f"{one.marked:,}", ", ".join(one.left), _verdict(one)) for one in results
    )
    columns = (
        Column("namespace"),
        Column("topics", right=True),
        Column("marked", right=True),
        Column("not marked", whole=False),
        Column("result", whole=False),
    )
    left = len(names) - len(results)
    text = (
        "Each topic is marked. Do not restart brokers now, nor move bundles; follow with `cluster-migration watch`."
        if all(one.ok for one in results)
        else f"{results[-1].namespace} was not begun: what is above came since the question; "
        f"{counted(left, 'namespace')} more not begun."
        if results[-1].refused
        else f"The flag is off again; {counted(left, 'namespace')} more not begun. What was marked accepts no message "
        "until it is started again, or reopened."
    )
    data = {"namespaces": [{**dataclasses.asdict(one), "ok": one.ok} for one in results], "not_begun": left}
    data["late"] = late
    return Document(data, (Table(columns, rows), *map(Note, late_warnings(late)), Note(text)))


def _verdict(one: StartResult) -> str:
    if one.ok:
        return "started"
    if one.refused:
        return "refused: not ready any more"
    return f"taken back{': ' + one.trouble if one.trouble else ''}"
