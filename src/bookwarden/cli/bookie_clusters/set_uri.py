"""`bookwarden bookie-clusters set-uri`: a registered bookie cluster's metadata moved to another address."""

from __future__ import annotations

import click

from bookwarden.cli.shell.invocation import Invocation, output_option, pass_invocation
from bookwarden.cli.shell.output import Document, Facts, Note
from bookwarden.cli.shell.questions import confirm, yes_option
from bookwarden.switching.documents import uri_data
from bookwarden.switching.registering import Wanted
from bookwarden.switching.uri_change import UriPlan
from bookwarden.wiring.switching import SwitchingContext, place_of_uri

_EPILOG = """\b
What is proven first, and what to do with bookwarden's own settings: docs/bookie-clusters.md, "Dead ends"."""


@click.command("set-uri", epilog=_EPILOG)
@click.argument("name")
@click.option("--metadata-service-uri", "uri", required=True, metavar="URI", help="As its bookies have it now.")
@click.option("--dry-run", is_flag=True, help="Look at both addresses, change nothing.")
@yes_option
@output_option
@pass_invocation
def set_uri(invocation: Invocation, name: str, uri: str, dry_run: bool, yes: bool) -> None:
    """Change the address of a bookie cluster's metadata.

    It has to be the same cluster: the same INSTANCEID and ledgers root, with its bookies. Refused while a live broker's
    jar does not follow such a change. May be repeated.
    """
    with SwitchingContext(invocation.settings) as context:
        wanted = Wanted(name, uri, place_of_uri(uri))
        plan = context.uri_change.plan(wanted)
        if not dry_run:
            before = plan.before.registry.cluster(name).metadata_service_uri
            confirm(f"Change the address of {name} from {before} to {uri}?", yes=yes)
            plan = context.uri_change.carry_out(wanted)
        invocation.write(_describe(plan, dry_run=dry_run))


def _describe(plan: UriPlan, *, dry_run: bool) -> Document:
    cluster = plan.cluster
    pairs = (
        ("would be at" if dry_run else "is at", cluster.metadata_service_uri),
        ("metadata", f"{cluster.ledgers_root} in {cluster.store_url or 'the own store of Pulsar'}"),
        ("instance", cluster.instance),
        ("bookies", ", ".join(sorted(plan.bookies))),
        ("epoch", str(plan.after.epoch)),
    )
    notes = [] if dry_run else [Note("`bookie-clusters status` shows whether all brokers follow, and reach it there.")]
    notes.append(Note("Where metadata_store.bookkeeper_url names this cluster, set it to this URI as well."))
    return Document(uri_data(plan, dry_run=dry_run), (Facts(pairs), *notes))
