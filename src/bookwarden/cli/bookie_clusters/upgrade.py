"""`bookwarden bookie-clusters upgrade`: what a registry of 0.1.0 leaves out is written down."""

from __future__ import annotations

import click

from bookwarden.cli.bookie_clusters.output import describe_registry
from bookwarden.cli.shell.invocation import Invocation, output_option, pass_invocation
from bookwarden.cli.shell.output import Document
from bookwarden.cli.shell.questions import confirm, yes_option
from bookwarden.switching.documents import upgrade_data
from bookwarden.switching.upgrading import UpgradePlan
from bookwarden.wiring.switching import SwitchingContext

_EPILOG = """\b
When this is needed: docs/bookie-clusters.md, "A registry of 0.1.0"."""


@click.command(epilog=_EPILOG)
@click.option("--owner", "owners", multiple=True, help="An owner mark of an earlier registry. May be repeated.")
@click.option("--dry-run", is_flag=True, help="Look at everything, change nothing.")
@yes_option
@output_option
@pass_invocation
def upgrade(invocation: Invocation, owners: tuple[str, ...], dry_run: bool, yes: bool) -> None:
    """Write down which ledgers are ours.

    Ends, in each cluster that does not count ids, the range in which ledgers without an owner mark are ours, and adds
    owner marks of earlier registries. Refused while a broker lives with an older jar, or without one. May be repeated.
    """
    with SwitchingContext(invocation.settings) as context:

        def ask(plan: UpgradePlan) -> None:
            for line in _notes(plan, dry_run=True):
                invocation.say(line)
            confirm("Write this into the registry?", yes=yes)

        plan = context.upgrade.upgrade(owners, dry_run=dry_run, confirm=ask)
        registry = plan.before.registry if dry_run else plan.after
        shown = describe_registry(context, registry, *_notes(plan, dry_run=dry_run))
        invocation.write(Document(upgrade_data(context.pulsar_url, plan, dry_run=dry_run), shown.parts))


def _notes(plan: UpgradePlan, *, dry_run: bool) -> list[str]:
    are = "would be" if dry_run else "are"
    notes = []
    if plan.closed:
        where = ", ".join(plan.closed)
        notes.append(f"Ledgers without an owner mark {are} ours in {where} only below {plan.below}.")
    if plan.added:
        notes.append(f"Ledgers with the owner mark {', '.join(plan.added)} {are} ours too.")
    return notes or ["Nothing is left to upgrade."]
