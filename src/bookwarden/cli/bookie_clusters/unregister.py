"""`bookwarden bookie-clusters unregister` and `deprecate`: a bookie cluster leaves, or may not become active again."""

from __future__ import annotations

import click

from bookwarden.cli.bookie_clusters.output import describe_registry, wait_option
from bookwarden.cli.shell.invocation import Invocation, output_option, pass_invocation
from bookwarden.cli.shell.output import Document, counted
from bookwarden.cli.shell.questions import confirm, yes_option
from bookwarden.switching.documents import unregistration_data
from bookwarden.switching.unregistering import UnregistrationPlan
from bookwarden.wiring.switching import SwitchingContext

_EPILOG = """\b
Why a cluster cannot go while a ledger is left there: docs/bookie-clusters.md."""


@click.command(epilog=_EPILOG)
@click.argument("name")
@click.option("--dry-run", is_flag=True, help="List its ledgers, change nothing.")
@wait_option
@yes_option
@output_option
@pass_invocation
def unregister(invocation: Invocation, name: str, dry_run: bool, wait_s: float, yes: bool) -> None:
    """Unregister a bookie cluster.

    Refused while it is ACTIVE, and while a ledger is there that this Pulsar cluster made, or may have made.
    """
    with SwitchingContext(invocation.settings) as context:

        def ask(plan: UnregistrationPlan) -> None:
            if plan.foreign:
                invocation.say(_foreign(plan))
            confirm(f"Unregister bookie cluster {name}?", yes=yes)

        plan = context.unregistration.unregister(name, wait_s=wait_s, dry_run=dry_run, confirm=ask)
        notes = [f"{name} {'can be' if dry_run else 'is'} unregistered: no ledger of this Pulsar cluster is there."]
        if plan.foreign:
            notes.append(_foreign(plan))
        notes += note_of_ids(plan, context)
        shown = describe_registry(context, plan.before.registry if dry_run else plan.after, *notes)
        data = unregistration_data(context.pulsar_url, plan, dry_run=dry_run)
        invocation.write(Document(data, shown.parts))


def _foreign(plan: UnregistrationPlan) -> str:
    return f"{counted(plan.foreign, 'ledger')} of others are there by their owner marks, and stay: brokers read none."


def note_of_ids(plan: UnregistrationPlan, context: SwitchingContext) -> list[str]:
    """Return what to know of a cluster that leaves: its counter of ledger ids stays, if all clusters share it."""
    notes = []
    if plan.cluster.deprecated:
        notes.append("It is DEPRECATED: if it is registered again, it is STANDBY; `deprecate` it again then.")
    if plan.cluster.store_url is not None or plan.after.id_root != plan.cluster.ledgers_root:
        return notes
    return [
        *notes,
        f"Ledger ids are still counted below {plan.after.id_root}: never delete its idgen and idgen-long in "
        f"{context.pulsar_url}, or ids begin anew."
    ]


@click.command()
@click.argument("name")
@click.option("--undo", is_flag=True, help="Let it become active again.")
@output_option
@pass_invocation
def deprecate(invocation: Invocation, name: str, undo: bool) -> None:
    """Keep a bookie cluster from becoming active.

    Its status is DEPRECATED then; its ledgers are read as before. Refused while it is ACTIVE.
    """
    with SwitchingContext(invocation.settings) as context:
        invocation.write(describe_registry(context, context.registry.deprecate(name, not undo)))
