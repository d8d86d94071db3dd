"""`bookwarden cluster-migration release`: topics that blue has read out send whoever asks to green."""

from __future__ import annotations

import click

from bookwarden.blue_green.broker_health import cure_of
from bookwarden.blue_green.releasing import Held, ReleaseResult
from bookwarden.cli.cluster_migration.exit_codes import DEADLOCKED, UNDER_WAY
from bookwarden.cli.cluster_migration.scope import named_or_begun, namespaces_argument
from bookwarden.cli.shell.invocation import Invocation, output_option, pass_invocation
from bookwarden.cli.shell.output import Document, Note, Part, counted
from bookwarden.wiring.blue_green import BlueGreenContext

_EPILOG = """\b
Exit codes: 0 all that is drained is planned or released; 25 some topics have to drain first;
28 a broker of blue is deadlocked, and has to be killed."""


@click.command(epilog=_EPILOG)
@namespaces_argument
@click.option("--execute", is_flag=True, help="Unload the topics; without it, only list them.")
@output_option
@pass_invocation
def release(invocation: Invocation, namespaces: tuple[str, ...], execute: bool) -> None:
    """Unload topics with nothing left to read: all go to green.

    A broker may hold a topic fenced after it was marked, so that its producers are on neither side. And as long as it
    has a drained topic loaded, a consumer that is created again with blue's URL, from the earliest message on, reads
    all of it again. A topic that still has something to read is named, and has to drain first: no client could read it
    otherwise.
    """
    with BlueGreenContext(invocation.settings) as context:
        names = named_or_begun(context, namespaces)
        releasing = context.releasing
        held = releasing.plan(names, context.record.expected(names))
        result = releasing.release_all((*held.free, *held.drained)) if execute else ReleaseResult()
        deadlocked = context.health.deadlocked() if result.timed_out else ()
    invocation.write(_describe(held, result, deadlocked, executed=execute))
    left = held.draining or result.refused or result.timed_out
    click.get_current_context().exit(DEADLOCKED if deadlocked else UNDER_WAY if left else 0)


def _describe(held: Held, result: ReleaseResult, deadlocked: tuple[str, ...], *, executed: bool) -> Document:
    said = "released" if executed else "would be released"
    refused, kept = result.refused, {*result.refused, result.timed_out, *result.not_tried}
    free, drained = ([topic for topic in topics if topic not in kept] for topics in (held.free, held.drained))
    parts: list[Part] = [Note(f"{said}, green has not seen all its clients: {topic}") for topic in free]
    parts += [Note(f"{said}: {topic}") for topic in drained]
    parts += [Note(f"not released: {reason}") for reason in refused.values()]
    if result.timed_out:
        behind = f"; {counted(len(result.not_tried), 'topic')} behind it not tried" if result.not_tried else ""
        parts.append(
            Note(f"not released: the broker of {result.timed_out} gave no answer in time{behind}: run it again")
        )
    parts += [Note(cure_of(deadlocked))] if deadlocked else []
    parts += [Note(f"has to drain first: {topic}") for topic in held.draining]
    number = counted(len(held.free) + len(held.draining), "topic")
    parts.append(Note(f"{number} of which green has not seen every client that blue had."))
    data = {"executed": executed, "free": free, "drained": drained, "draining": held.draining, "refused": refused}
    data |= {"timed_out": result.timed_out, "not_tried": result.not_tried, "deadlocked": deadlocked}
    return Document(data, tuple(parts))
