"""`bookwarden bookie-clusters set-uri`: a registered bookie cluster's metadata moved to another address."""

from __future__ import annotations

import click

from bookwarden.cli.bookie_clusters.output import wait_option
from bookwarden.cli.bookie_clusters.switch import DONE_WITH_FAILURES
from bookwarden.cli.shell.invocation import Invocation, output_option, pass_invocation
from bookwarden.cli.shell.output import Document, Facts, Note
from bookwarden.cli.shell.questions import confirm, yes_option
from bookwarden.switching.documents import uri_data
from bookwarden.switching.registering import Wanted
from bookwarden.switching.uri_change import UriPlan, UriResult
from bookwarden.wiring.switching import SwitchingContext, place_of_uri

_EPILOG = """\b
What is proven first, and what to do with your settings: docs/howto/repair-bookie-clusters.md."""


@click.command("set-uri", epilog=_EPILOG)
@click.argument("name")
@click.option("--metadata-service-uri", "uri", required=True, metavar="URI", help="As its bookies have it now.")
@click.option("--dry-run", is_flag=True, help="Look at both addresses, change nothing.")
@wait_option
@yes_option
@output_option
@pass_invocation
def set_uri(invocation: Invocation, name: str, uri: str, dry_run: bool, wait_s: float, yes: bool) -> None:
    """Change the address of a bookie cluster's metadata.

    It has to be the same cluster: the same INSTANCEID and ledgers root, with its bookies. Refused while a live broker's
    jar does not follow such a change. Then all live brokers are waited for; ends with 27 if one does not reach the
    cluster there in time. May be repeated.
    """
    with SwitchingContext(invocation.settings) as context:
        wanted = Wanted(name, uri, place_of_uri(uri))

        def ask(plan: UriPlan) -> None:
            before = plan.before.registry.cluster(name).metadata_service_uri
            confirm(f"Change the address of {name} from {before} to {uri}?", yes=yes)

        result = context.uri_change.change(wanted, wait_s=wait_s, dry_run=dry_run, confirm=ask, say=invocation.say)
        invocation.write(_describe(result))
    click.get_current_context().exit(DONE_WITH_FAILURES if result.behind else 0)


def _describe(result: UriResult) -> Document:
    plan, behind, dry_run = result
    cluster, before = plan.cluster, plan.before.registry.cluster(plan.cluster.name)
    pairs = (
        ("would be at" if dry_run else "is at", cluster.metadata_service_uri),
        ("metadata", f"{cluster.ledgers_root} in {cluster.store_url or 'the own store of Pulsar'}"),
        ("instance", cluster.instance),
        ("bookies", ", ".join(sorted(plan.bookies))),
        ("epoch", str(plan.after.epoch)),
    )
    notes = []
    if behind:
        back = (
            f"`set-uri {cluster.name} --metadata-service-uri {before.metadata_service_uri}` changes it back"
            if before != cluster
            else "`set-uri` with the former URI changes it back"
        )
        notes.append(
            Note(
                f"The address is changed, and was not reached in time by {', '.join(behind)}. Let these brokers reach "
                f"it, with their credentials and certificates, and repeat the command; or, if the former one answers, "
                f"{back}."
            )
        )
    notes.append(Note("Where metadata_store.bookkeeper_url names this cluster, set it to this URI as well."))
    return Document(uri_data(result), (Facts(pairs), *notes))
