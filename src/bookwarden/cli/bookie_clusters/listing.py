"""`bookwarden bookie-clusters list` and `get`: the registry as it is."""

from __future__ import annotations

import click

from bookwarden.cli.bookie_clusters.output import describe_cluster, describe_registry
from bookwarden.cli.shell.invocation import Invocation, output_option, pass_invocation
from bookwarden.wiring.switching import SwitchingContext


@click.command("list")
@output_option
@pass_invocation
def list_clusters(invocation: Invocation) -> None:
    """List the registered bookie clusters.

    Shows which of them is ACTIVE, and the newest order to switch. Changes nothing.
    """
    with SwitchingContext(invocation.settings) as context:
        found = context.registry.read()
        invocation.write(describe_registry(context, None if found is None else found.registry))


@click.command("get")
@click.argument("name")
@output_option
@pass_invocation
def get_cluster(invocation: Invocation, name: str) -> None:
    """Show one bookie cluster.

    Ends with 4 if none is registered by this name. Changes nothing.
    """
    with SwitchingContext(invocation.settings) as context:
        invocation.write(describe_cluster(context.registry.require_cluster(name), name))
