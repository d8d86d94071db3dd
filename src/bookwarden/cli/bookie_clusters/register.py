"""`bookwarden bookie-clusters register`: a bookie cluster enters the registry."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import click

from bookwarden.bookie_clusters.documents import registration_data
from bookwarden.bookie_clusters.registering import ClusterSpec, RegistrationPlan, RegistrationResult
from bookwarden.bookie_clusters.registry import Status
from bookwarden.cli.bookie_clusters.output import confirmed, notes_of, wait_option
from bookwarden.cli.shell.invocation import Invocation, pass_invocation
from bookwarden.cli.shell.output import Document, Facts, counted
from bookwarden.cli.shell.questions import yes_option
from bookwarden.clusters.bookkeeper.service_uris import place_for_brokers
from bookwarden.wiring.bookie_clusters import registration_of
from bookwarden.wiring.cluster import Cluster

_EPILOG = """\b
Examples:
  bookwarden bookie-clusters register --bootstrap --name a --metadata-service-uri metadata-store:zk:zk1:2181
  bookwarden bookie-clusters register --name b --metadata-service-uri zk+hierarchical://zk2:2181/bookies-b

\b
What is refused, and what to do then: docs/bookie-clusters.md."""


@click.command(epilog=_EPILOG)
@click.option("--name", required=True, help="Letters, digits and ._-, at most 63.")
@click.option("--metadata-service-uri", "uri", required=True, metavar="URI", help="As its bookies have it.")
@click.option("--bootstrap", is_flag=True, help="It is the cluster that brokers use now: the first to be registered.")
@click.option("--shared", is_flag=True, help="Others write there too: only ledgers with our mark are ours.")
@click.option(
    "--owner",
    "owners",
    multiple=True,
    help="With --bootstrap: an owner mark of its ledgers, from an earlier registry. May be repeated; the first stays.",
)
@click.option(
    "--unmarked-below",
    type=click.IntRange(min=0),
    metavar="ID",
    help="Where an earlier registry was lost: ledgers there without an owner mark are ours below this id.",
)
@click.option(
    "--status",
    type=click.Choice([Status.ACTIVE.value, Status.STANDBY.value]),
    help="ACTIVE with --bootstrap, else STANDBY; anything else is refused.",
)
@click.option("--dry-run", is_flag=True, help="Look at everything, register nothing.")
@wait_option
@yes_option
@pass_invocation
def register(
    invocation: Invocation,
    name: str,
    uri: str,
    bootstrap: bool,
    shared: bool,
    owners: tuple[str, ...],
    unmarked_below: int | None,
    status: str | None,
    dry_run: bool,
    wait_s: float,
    yes: bool,
) -> None:
    """Register a bookie cluster.

    The first is the one that brokers use now (--bootstrap); it is ACTIVE. Every other is STANDBY, and its ledgers
    are read by brokers from then on. Where the next ledger id is not above every id of the cluster, it is raised
    after a question. All live brokers with the jar are waited for: if one does not reach the cluster in time, it is
    taken out again. May be repeated.
    """
    if status is not None and status != (Status.ACTIVE if bootstrap else Status.STANDBY).value:
        raise click.UsageError("the first cluster (--bootstrap) is ACTIVE, all others are STANDBY until a switch")
    with Cluster(invocation.settings) as cluster:
        wanted = ClusterSpec(name, uri, place_for_brokers(uri), bootstrap, shared, owners, unmarked_below)

        def ask(plan: RegistrationPlan) -> AbstractContextManager[Callable[[int], object]]:
            question = f"Raise the next ledger id from {plan.next_id} to {plan.free_id}, and register {name}?"
            what = f"raising the next ledger id below {plan.after.id_root} by {plan.behind:,}"
            return confirmed(invocation, question, what, "passed", "ids", yes=yes)

        registration = registration_of(cluster)
        result = registration.register(wanted, wait_s=wait_s, dry_run=dry_run, confirm=ask, say=invocation.say)
        invocation.write(_describe(cluster, result))


def _describe(cluster: Cluster, result: RegistrationResult) -> Document:
    plan, raised, dry_run = result
    registered, after = plan.cluster, plan.after
    data = registration_data(cluster.url, result)
    store = f"Pulsar's own store {cluster.url}" if registered.store_url is None else registered.store_url
    pairs = (
        ("would be registered" if dry_run else "registered", registered.name),
        ("status", after.status_of(registered.name).value),
        ("metadata", f"{registered.ledgers_root} in {store}"),
        ("instance", registered.instance),
        ("bookies", ", ".join(sorted(plan.bookies)) or "none"),
        ("epoch", str(after.epoch)),
        ("next ledger id", f"{plan.next_id} below {after.id_root}; it has none from {plan.free_id} on"),
    )
    notes = []
    if raised and dry_run:
        notes.append(f"The next ledger id would be raised by {raised:,}, after a question.")
    if plan.leaps:
        notes.append("It leaps to the next multiple of 2**32, since counting there would take too long.")
    if plan.foreign:
        notes.append(
            f"{counted(plan.foreign, 'ledger')} of others are there. For this Pulsar cluster only ledgers with its "
            f"mark (bookwarden.owner={after.owner}) exist; where an id is taken by another, brokers take the next."
        )
    if not plan.bookies:
        notes.append("It has no bookie yet: start some before it is switched to.")
    return Document(data, (Facts(pairs), *notes_of(cluster, notes)))
