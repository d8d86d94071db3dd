"""`bookwarden cluster-migration release`: producers that blue keeps fenced go to green."""

from __future__ import annotations

import click

from bookwarden.blue_green.releasing import Held
from bookwarden.cli.cluster_migration.exit_codes import UNDER_WAY
from bookwarden.cli.cluster_migration.scope import named_or_begun, namespaces_argument
from bookwarden.cli.shell.invocation import Invocation, output_option, pass_invocation
from bookwarden.cli.shell.output import Document, Note, Part, counted
from bookwarden.wiring.blue_green import BlueGreenContext

_EPILOG = """\b
Exit codes: 0 nobody is held, or all are planned or released; 25 some topics have to drain first."""


@click.command(epilog=_EPILOG)
@namespaces_argument
@click.option("--execute", is_flag=True, help="Unload the topics; without it, only list them.")
@output_option
@pass_invocation
def release(invocation: Invocation, namespaces: tuple[str, ...], execute: bool) -> None:
    """Release producers that blue keeps fenced.

    A broker, of Pulsar 4.2 above all, may hold a topic fenced after it was marked, so that its producers are on neither
    side. A topic that has nothing left to read is unloaded, which sends them to green; one that still has is named, and
    has to drain first: nobody could read it otherwise.
    """
    with BlueGreenContext(invocation.settings) as context:
        names = named_or_begun(context, namespaces)
        releasing = context.releasing
        held = releasing.plan(names, context.record.expected(names))
        if execute:
            for topic in held.free:
                invocation.say(f"{topic}: unloaded")
                releasing.release(topic)
    invocation.write(_describe(held, executed=execute))
    click.get_current_context().exit(UNDER_WAY if held.draining else 0)


def _describe(held: Held, *, executed: bool) -> Document:
    parts: list[Part] = [Note(f"{'released' if executed else 'would be released'}: {topic}") for topic in held.free]
    parts += [Note(f"has to drain first: {topic}") for topic in held.draining]
    number = counted(len(held.free) + len(held.draining), "topic")
    parts.append(Note(f"{number} of which green has not seen every producer that blue had."))
    data = {"executed": executed, "free": held.free, "draining": held.draining}
    return Document(data, tuple(parts))
