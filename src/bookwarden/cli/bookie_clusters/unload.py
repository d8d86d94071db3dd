"""`bookwarden bookie-clusters unload`: topics that still write to another bookie cluster than the active one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from bookwarden.cli.bookie_clusters.ledgers import inventory_data, inventory_parts
from bookwarden.cli.shell.invocation import Invocation, output_option, pass_invocation
from bookwarden.cli.shell.output import Document, Note, counted
from bookwarden.cli.shell.questions import confirm, yes_option
from bookwarden.errors import BookwardenError, NotFoundError
from bookwarden.switching.inventory import Inventory, Unloaded, roll
from bookwarden.wiring.switch import SwitchContext

_EPILOG = """\b
When ledgers stay open elsewhere: docs/bookie-clusters.md, "Switch"."""


def per_second_option(*, hidden: bool = False) -> Callable[[Any], Any]:
    """Add --per-second, which spreads the load of clients that reconnect."""
    kind = click.FloatRange(min=0, min_open=True)
    text = "Maximum number of topics that are unloaded in a second."
    return click.option(
        "--per-second", type=kind, default=5.0, show_default=True, metavar="N", help=text, hidden=hidden
    )


@click.command("unload", epilog=_EPILOG)
@per_second_option()
@click.option("--dry-run", is_flag=True, help="Only list the topics.")
@yes_option
@output_option
@pass_invocation
def unload(invocation: Invocation, per_second: float, dry_run: bool, yes: bool) -> None:
    """Unload topics that still write elsewhere.

    That is, to another bookie cluster than the active one. A ledger that was open at a switch is written until it is
    full or old enough; unloading its topic closes it. Clients reconnect, and the next ledger is in the active cluster.
    Reads the metadata of all ledgers first. May be stopped at any time and run again. Ends with 1 where a topic was not
    unloaded.
    """
    with SwitchContext(invocation.settings) as context:
        registry = context.overview().state.registry
        if registry is None:
            raise NotFoundError(f"no bookie cluster is registered in {context.pulsar_url}: there is one place to write")
        found = context.inventory(registry, by_holder=False)
        data = {"dryRun": dry_run, **inventory_data(found)}
        if dry_run or invocation.output != "json":
            invocation.write(Document(data, tuple(inventory_parts(found, registry))))
        if dry_run:
            return
        unloaded = unload_elsewhere(invocation, context, found, per_second, yes=yes, look="--dry-run")
    failed = [one for one in unloaded if one.trouble and not one.is_absent]
    number = counted(sum(not one.trouble for one in unloaded), "topic")
    if invocation.output == "json":
        invocation.write(Document({**data, "unloaded": unloaded_data(unloaded)}, ()))
    else:
        invocation.write(Document({}, (Note(f"{number} unloaded."),)))
    if failed:
        one = failed[0]
        raise BookwardenError(f"{counted(len(failed), 'topic')} not unloaded, such as {one.topic}: {one.trouble}")


def unload_elsewhere(
    invocation: Invocation, context: SwitchContext, found: Inventory, per_second: float, *, yes: bool, look: str
) -> Sequence[Unloaded]:
    """Ask, unload the topics, and report each; ``look`` is how to see them only."""
    if found.topics:
        confirm(f"Unload {counted(len(found.topics), 'topic')}? Clients reconnect.", yes=yes, look=look)
    return roll(
        found.topics,
        context.topics.unload,
        per_second,
        lambda one: invocation.say(f"{one.topic}: {one.trouble or 'unloaded'}"),
    )


def unloaded_data(unloaded: Sequence[Unloaded]) -> list[dict[str, Any]]:
    """Return the results for programs."""
    return [{"topic": one.topic, "trouble": one.trouble or None} for one in unloaded]
