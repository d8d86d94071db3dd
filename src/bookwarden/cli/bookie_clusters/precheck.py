"""`bookwarden bookie-clusters precheck`: may brokers be switched to another bookie cluster now?"""

from __future__ import annotations

from typing import Final

import click

from bookwarden.cli.shell.findings import findings_table
from bookwarden.cli.shell.invocation import Invocation, output_option, pass_invocation
from bookwarden.cli.shell.output import Document, Facts, Note, counted
from bookwarden.findings import Verdict
from bookwarden.switching.checks.precheck import Precheck
from bookwarden.wiring.switch import SwitchContext

#: The exit code of every command that is refused by the precheck.
NOT_READY: Final = 23

#: Of every command that runs the precheck.
no_trial_option = click.option("--no-trial", is_flag=True, help="Write no trial ledger to the target's bookies.")

_EPILOG = """\b
Examples:
  bookwarden bookie-clusters precheck --name bookies-b
  bookwarden bookie-clusters precheck --name bookies-b -o json

\b
Exit codes: 0 no check blocks it; 23 one does.
What to do about each line: docs/bookie-clusters.md."""


@click.command(epilog=_EPILOG)
@click.option("--name", "target", required=True, metavar="TARGET", help="The bookie cluster to switch to.")
@no_trial_option
@output_option
@pass_invocation
def precheck(invocation: Invocation, target: str, no_trial: bool) -> None:
    """Check whether brokers can be switched.

    Looks at the registry, every live broker and its settings, the metadata and the bookies of all registered clusters,
    and what namespaces ask of bookies. If no check blocks it, it writes a trial ledger to all bookies of the
    target, reads it and deletes it; else it changes nothing.
    """
    with SwitchContext(invocation.settings) as context:
        result = context.precheck(target, with_trial=not no_trial)
        invocation.write(describe_precheck(result))
    click.get_current_context().exit(NOT_READY if result.failing else 0)


def describe_precheck(result: Precheck) -> Document:
    """Describe all lines, in the best order to deal with them."""
    registry = result.seen.registry
    bad, warnings = len(result.failing), sum(one.verdict is Verdict.WARNING for one in result.findings)
    note = (
        f"{counted(bad, 'line')} stand{'s' if bad == 1 else ''} in the way, {counted(warnings, 'warning')}. "
        "What to do about each: docs/bookie-clusters.md."
        if bad
        else f"No check blocks it; {counted(warnings, 'warning')}."
    )
    pairs = (("source", registry.active), ("target", result.seen.target), ("epoch", str(registry.epoch)))
    return Document(result.as_json(), (Facts(pairs), findings_table(result.findings), Note(note)))
