"""`bookwarden cluster-migration reopen`: topics that a migration marked accept messages again."""

from __future__ import annotations

import dataclasses

import click

from bookwarden.blue_green.reopening import Reopened
from bookwarden.blue_green.scope import namespace_of
from bookwarden.cli.shell.invocation import Invocation, output_option, pass_invocation
from bookwarden.cli.shell.output import Column, Document, Note, table_of
from bookwarden.errors import BookwardenError
from bookwarden.wiring.blue_green import BlueGreenContext

_EPILOG = """\b
Examples:
  bookwarden cluster-migration reopen persistent://shop/live/orders              shows what would be done
  bookwarden cluster-migration reopen persistent://shop/live/orders --execute
  bookwarden cluster-migration reopen persistent://shop/live/orders --undo

\b
Exit codes: 0 done, or planned; 4 no such topic; 5 its namespace is flagged, its user terminated it, or a broker keeps
it loaded; 1 some of several topics were left as they are."""


@click.command(epilog=_EPILOG)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option("--execute", is_flag=True, help="Reopen; without it, only check.")
@click.option("--undo", is_flag=True, help="Put back what was changed, while nothing else has changed it, at once.")
@click.option("--dry-run", is_flag=True, help="With --undo: only check.")
@output_option
@pass_invocation
def reopen(invocation: Invocation, topics: tuple[str, ...], execute: bool, undo: bool, dry_run: bool) -> None:
    """Have topics accept messages again, after an abort.

    Brokers cannot. The topic is unloaded, the mark is taken out of the node of its managed ledger by the version that
    was read, and it is unloaded again; what it had is kept in the record, and can be put back until it is used. Name
    each partition of a partitioned topic.
    """
    if execute and undo:
        raise click.UsageError("--undo changes something by itself: leave out --execute")
    if dry_run and not undo:
        raise click.UsageError("--dry-run is for --undo: without --execute nothing is changed")
    results: list[Reopened] = []
    failed: list[BookwardenError] = []
    acts = execute or (undo and not dry_run)
    changed = {namespace_of(topic) for topic in topics} if acts else set()
    with BlueGreenContext(invocation.settings) as context, context.alone(changed):
        reopening = context.reopening
        if undo:
            act = reopening.plan_back if dry_run else reopening.put_back
        else:
            act = reopening.reopen if execute else reopening.plan
        for topic in topics:
            try:
                results.append(act(topic))
            except BookwardenError as error:
                if len(topics) == 1:
                    raise
                failed.append(error)
                results.append(Reopened(topic, False, f"left as it is: {error}"))
    invocation.write(_describe(results, planned=not acts))
    click.get_current_context().exit(1 if failed else 0)


def _describe(results: list[Reopened], *, planned: bool) -> Document:
    cells = {
        Column("topic", whole=False): lambda one: one.topic,
        Column("result", whole=False): lambda one: one.said,
    }
    note = "Nothing was changed." if planned else "Restart producers that gave up on these topics."
    return Document([dataclasses.asdict(one) for one in results], (table_of(results, cells), Note(note)))
