"""`bookwarden cluster-migration verify`: whether a migration is done, topic by topic."""

from __future__ import annotations

import dataclasses

import click

from bookwarden.blue_green.readiness.findings import Override
from bookwarden.blue_green.verifying import TopicVerified, Verified
from bookwarden.blue_green.verifying import verify as verified
from bookwarden.cli.cluster_migration.exit_codes import LATE, NOT_DONE
from bookwarden.cli.cluster_migration.scope import accept_option, named_or_begun, namespaces_argument
from bookwarden.cli.shell.invocation import Invocation, output_option, pass_invocation, show_option
from bookwarden.cli.shell.output import Column, Document, Note, Part, counted, table_of
from bookwarden.wiring.blue_green import BlueGreenContext

_EPILOG = """\b
Exit codes: 0 done; 22 not done, the output says of which topic and why; 29 all that is wrong are subscriptions that
came too late to green, and may have lost messages."""


@click.command(epilog=_EPILOG)
@namespaces_argument
@accept_option
@show_option("Topics to list; those that are not done come first.")
@output_option
@pass_invocation
def verify(invocation: Invocation, namespaces: tuple[str, ...], accepted: frozenset[Override], show: int) -> None:
    """Prove that a migration is done.

    Done means that each topic of the scope is drained or gone on blue, that no cursor has an unread entry (where no
    broker has the topic loaded, the cursor's own ledger is read), and that every subscription that blue has, or had
    when it began, is on green. A doubt is not done; what `start`
    accepted by name is none. Changes nothing, and may be run at any time.
    """
    with BlueGreenContext(invocation.settings) as context:
        names, record = named_or_begun(context, namespaces), context.record
        cases = {one.value for one in accepted} | record.accepted(names)
        found = verified(
            context.observer,
            context.green.nodes,
            context.green.admin,
            names,
            record.expected(names),
            cases,
            record.late(names),
            context.green_resources().late_in,
        )
    invocation.write(describe_verified(found, show))
    click.get_current_context().exit(0 if found.ok else LATE if found.is_only_late else NOT_DONE)


def describe_verified(found: Verified, show: int) -> Document:
    """Describe every topic, the faults first."""
    topics = sorted(found.topics, key=lambda one: (one.ok, one.topic))
    cells = {
        Column("topic", whole=False): lambda one: one.topic,
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


def _data(one: TopicVerified) -> dict[str, object]:
    return {**dataclasses.asdict(one), "ok": one.ok}
