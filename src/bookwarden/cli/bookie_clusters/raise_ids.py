"""`bookwarden bookie-clusters raise-ids`: counters of ledger ids, where something has ids above them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from bookwarden.cli.migration.node_progress import node_progress
from bookwarden.cli.shell.invocation import Invocation, output_option, pass_invocation
from bookwarden.cli.shell.output import Document, Facts, Note
from bookwarden.cli.shell.questions import confirm, yes_option
from bookwarden.switching.documents import raised_data
from bookwarden.switching.raising_ids import RaisePlan, RaiseResult
from bookwarden.wiring.switching import SwitchingContext

_EPILOG = """\b
When this is needed: docs/howto/repair-bookie-clusters.md and
docs/howto/leave-bookie-clusters.md."""


@click.command("raise-ids", epilog=_EPILOG)
@click.option("--name", help="The bookie cluster that brokers are to use without the jar: its own counter.")
@click.option("--dry-run", is_flag=True, help="Look at all ids, change nothing.")
@yes_option
@output_option
@pass_invocation
def raise_ids(invocation: Invocation, name: str | None, dry_run: bool, yes: bool) -> None:
    """Raise a counter of ledger ids above every id.

    Without --name it is the one of all clusters, which brokers with the jar use; brokers may run. With --name it is
    the cluster's own, which brokers without the jar will use: refused while a broker lives. May be repeated.
    """
    with SwitchingContext(invocation.settings) as context:

        @contextmanager
        def confirm_raise(plan: RaisePlan) -> Iterator[Callable[[int], object]]:
            confirm(f"Raise the next ledger id of {_whose(plan)} from {plan.next_id} to {plan.free_id}?", yes=yes)
            what = f"raising the next ledger id below {plan.place.ledgers_root} by {plan.behind:,}"
            with node_progress(invocation, what, "passed", "ids") as progress:
                yield progress

        invocation.write(_describe(context.id_raising.raise_ids(name, dry_run=dry_run, confirm=confirm_raise)))


def _whose(plan: RaisePlan) -> str:
    return "all clusters" if plan.name is None else plan.name


def _describe(result: RaiseResult) -> Document:
    plan, raised, dry_run = result
    pairs = (
        ("bookie cluster", _whose(plan)),
        ("counted below", f"{plan.place.ledgers_root} in {plan.place.url}"),
        ("next ledger id", str(plan.next_id)),
        ("none is taken from", str(plan.free_id)),
    )
    if not raised:
        note = "It is above every id already."
    elif dry_run:
        note = f"It would be raised by {raised:,}, after a question."
    elif plan.name is None:
        note = "It is above every id now."
    else:
        note = "It is above every id now. Start brokers with the stock lines, and none with the jar any more."
    notes = [Note(note)]
    if plan.leaps:
        notes.append(Note("It leaps to the next multiple of 2**32, since counting there would take too long."))
    return Document(raised_data(result), (Facts(pairs), *notes))
