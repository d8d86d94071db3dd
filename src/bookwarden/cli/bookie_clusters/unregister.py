"""`bookwarden bookie-clusters unregister` and `deprecate`: a bookie cluster leaves, or may not become active again."""

from __future__ import annotations

import sys

import click

from bookwarden.bookie_clusters.documents import lost_data, unregistration_data
from bookwarden.bookie_clusters.unregistering import LostPlan, UnregistrationPlan
from bookwarden.cli.bookie_clusters.output import describe_registry, wait_option
from bookwarden.cli.shell.invocation import Invocation, pass_invocation
from bookwarden.cli.shell.output import Column, Document, Note, Table, counted
from bookwarden.cli.shell.questions import confirm, yes_option
from bookwarden.errors import RefusedError
from bookwarden.wiring.bookie_clusters import lost_clusters_of, unregistration_of
from bookwarden.wiring.cluster import Cluster

_EPILOG = """\b
Why a cluster cannot go while a ledger is left there: docs/bookie-clusters.md."""


@click.command(epilog=_EPILOG)
@click.argument("name")
@click.option("--lost", is_flag=True, help="Its metadata is gone for good: count what is lost, then ask for its name.")
@click.option("--confirm", "confirmed", metavar="NAME", help="With --lost: the name, where there is no terminal.")
@click.option("--dry-run", is_flag=True, help="List its ledgers, change nothing.")
@wait_option
@yes_option
@pass_invocation
def unregister(
    invocation: Invocation, name: str, lost: bool, confirmed: str | None, dry_run: bool, wait_s: float, yes: bool
) -> None:
    """Unregister a bookie cluster.

    Refused while it is ACTIVE, and while a ledger is there that this Pulsar cluster made, or may have made.
    With --lost it is one whose metadata is gone for good: what names a ledger that only it had is counted, and lost.
    --yes is not enough for that.
    """
    if confirmed is not None and not lost:
        raise click.UsageError("--confirm is for --lost")
    with Cluster(invocation.settings) as cluster:
        if lost:
            lost_plan = lost_clusters_of(cluster).unregister(
                name, dry_run=dry_run, confirm=lambda plan: confirmed or _typed(plan)
            )
            invocation.write(_describe_lost(cluster.url, lost_plan, dry_run=dry_run))
            return

        def ask(plan: UnregistrationPlan) -> None:
            if plan.foreign:
                invocation.say(of_others(plan))
            confirm(f"Unregister bookie cluster {name}?", yes=yes)

        unregistration = unregistration_of(cluster)
        plan = unregistration.unregister(name, wait_s=wait_s, dry_run=dry_run, confirm=ask, say=invocation.say)
        notes = [f"{name} {'can be' if dry_run else 'is'} unregistered: no ledger of this Pulsar cluster is there."]
        if plan.foreign:
            notes.append(of_others(plan))
        notes += note_of_ids(plan, cluster)
        shown = describe_registry(cluster, plan.before.registry if dry_run else plan.after, *notes)
        data = unregistration_data(cluster.url, plan, dry_run=dry_run)
        invocation.write(Document(data, shown.parts))


def of_others(plan: UnregistrationPlan) -> str:
    """Return what stays of a cluster that leaves."""
    return f"{counted(plan.foreign, 'ledger')} of others are there by their owner marks, and stay: brokers read none."


def _typed(plan: LostPlan) -> str:
    """Return the name that the operator types, shown what is lost; RefusedError where no terminal is there."""
    name = plan.cluster.name
    question = f"{_loss(plan)} {plan.reason}."
    if not sys.stdin.isatty():
        raise RefusedError(
            f"{question} There is no terminal to type its name: add --confirm {name} to unregister it, or --dry-run to "
            "look only; --yes is not enough"
        )
    click.echo(question, err=True)
    return str(click.prompt(f"Type the name {name} to unregister it for good", err=True))


def _loss(plan: LostPlan) -> str:
    if not plan.ledgers:
        return f"Nothing that can be read names a ledger that only {plan.cluster.name} has."
    return (
        f"{counted(sum(plan.references.values()), 'reference')} to {counted(plan.ledgers, 'ledger')} name nothing in "
        "another registered cluster, and are lost."
    )


def _describe_lost(url: str, plan: LostPlan, *, dry_run: bool) -> Document:
    rows = tuple((kind, f"{number:,}") for kind, number in sorted(plan.references.items()))
    notes = [
        f"{plan.cluster.name} {'can be' if dry_run else 'is'} unregistered: {plan.reason}.",
        _loss(plan),
        *(f"Such as {one}." for one in plan.examples),
    ]
    if plan.doubts:
        notes.append(
            f"{counted(len(plan.doubts), 'node')} could not be read, and may name more, such as {plan.doubts[0]}."
        )
    if plan.silent:
        notes.append(f"{', '.join(plan.silent)} does not answer either: what only it has is counted too.")
    if not dry_run:
        notes.append(
            "Topics drop these ledgers from their lists when they are loaded, and cursors go back. If its metadata is "
            "found again, stop all brokers before they do, and register it again."
        )
    table = Table((Column("kind of reference"), Column("lost", right=True)), rows, empty="No reference is lost.")
    return Document(lost_data(url, plan, dry_run=dry_run), (table, *map(Note, notes)))


def note_of_ids(plan: UnregistrationPlan, cluster: Cluster) -> list[str]:
    """Return what to know of a cluster that leaves: its counter of ledger ids stays, if all clusters share it."""
    notes = []
    if plan.cluster.deprecated:
        notes.append("It is DEPRECATED: if it is registered again, it is STANDBY; `deprecate` it again then.")
    if plan.cluster.store_url is not None or plan.after.id_root != plan.cluster.ledgers_root:
        return notes
    return [
        *notes,
        f"Ledger ids are still counted below {plan.after.id_root}: never delete its idgen and idgen-long in "
        f"{cluster.url}, or ids begin again at 0.",
    ]


@click.command()
@click.argument("name")
@click.option("--undo", is_flag=True, help="Let it become active again.")
@click.option("--dry-run", is_flag=True, help="Only show the registry as it would be.")
@pass_invocation
def deprecate(invocation: Invocation, name: str, undo: bool, dry_run: bool) -> None:
    """Keep a bookie cluster from becoming active.

    Its status is DEPRECATED then; its ledgers are read as before. Refused while it is ACTIVE.
    """
    with Cluster(invocation.settings) as cluster:
        registry = cluster.registry.deprecate(name, not undo, dry_run=dry_run)
        invocation.write(describe_registry(cluster, registry, *(["Nothing was changed."] if dry_run else [])))
