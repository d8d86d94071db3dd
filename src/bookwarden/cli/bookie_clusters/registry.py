"""`bookwarden bookie-clusters registry`: the registry's node saved, and put back where it is gone or damaged."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import click

from bookwarden.cli.bookie_clusters.output import describe_registry
from bookwarden.cli.migration.node_progress import node_progress
from bookwarden.cli.shell.invocation import Invocation, output_option, pass_invocation
from bookwarden.cli.shell.output import Document
from bookwarden.cli.shell.questions import confirm, execute_option, yes_option
from bookwarden.durable import sync
from bookwarden.switching.documents import import_data
from bookwarden.switching.registry import serialize_registry
from bookwarden.wiring.switching import SwitchingContext

_EPILOG = """\b
When to save it, and what an import refuses: docs/howto/repair-bookie-clusters.md."""
_FILE = click.Path(path_type=Path, dir_okay=False)


@click.group("registry", epilog=_EPILOG)
def registry() -> None:
    """Save the registry of bookie clusters, and put it back."""


@registry.command("export")
@click.argument("file", type=_FILE)
@output_option
@pass_invocation
def export_registry(invocation: Invocation, file: Path) -> None:
    """Save the registry into a file, which is replaced. Changes nothing else."""
    with SwitchingContext(invocation.settings) as context:
        found = context.registry.require().registry
        written = file.with_name(f"{file.name}.tmp")
        written.write_bytes(serialize_registry(found))
        sync(written)
        written.replace(file)
        invocation.write(describe_registry(context, found, f"Saved in {file}."))


@registry.command("import")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@execute_option("Put it back; without this it is only compared.", former="--no-dry-run/--dry-run")
@yes_option
@output_option
@pass_invocation
def import_registry(invocation: Invocation, file: Path, execute: bool, yes: bool) -> None:
    """Put a saved registry back where its node is gone, or is none.

    The next ledger id is raised above every id where its counter was lost too. Refused where a registry is there, where
    a cluster is another than in the file, and where brokers follow another owner, or another active cluster. Its epoch
    is then above every one that brokers followed. Without --execute the file is only compared with what is there.
    """
    saved = file.read_bytes()
    with SwitchingContext(invocation.settings) as context:
        plan = context.registry_import.plan(saved)
        raised = f"the next ledger id from {plan.next_id} to {plan.free_id}" if plan.behind else ""
        if execute:
            question = f"Put the registry of {file} back, with {plan.registry.active} active"
            confirm(f"{question}{f', and raise {raised}' if raised else ''}?", yes=yes)
            shows = node_progress(invocation, f"raising {raised}", "passed", "ids") if raised else nullcontext(_nothing)
            with shows as progress:
                plan = context.registry_import.carry_out(saved, progress)
        done = "Put back" if execute else "Would be put back"
        note = f"{done}: epoch {plan.saved_epoch} of {file} as {plan.registry.epoch}."
        if raised:
            note += f" {'Raised' if execute else 'Would be raised'}: {raised}."
        more = "See that brokers follow: `bookie-clusters status`." if execute else "With --execute, after a question."
        shown = describe_registry(context, plan.registry, note, more)
        invocation.write(Document(import_data(context.pulsar_url, plan, dry_run=not execute), shown.parts))


def _nothing(_: int) -> None:
    """Show no progress."""
