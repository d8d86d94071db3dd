"""`bookwarden bookie-clusters precheck`, `switch` and `rollback`: checks, question, order, and the wait for brokers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from bookwarden.bookie_clusters.checks.observing import run_precheck
from bookwarden.bookie_clusters.checks.precheck import Precheck
from bookwarden.bookie_clusters.documents import switch_data
from bookwarden.bookie_clusters.operation import PlannedSwitch, SwitchedBroker, SwitchOptions, SwitchOutcome
from bookwarden.cli.bookie_clusters.output import wait_option
from bookwarden.cli.shell.invocation import Invocation, pass_invocation
from bookwarden.cli.shell.output import Column, Document, Facts, Note, Part, Table, counted, findings_table
from bookwarden.cli.shell.questions import confirm, yes_option
from bookwarden.exit_codes import SOME_FAILED, WOULD_FAIL
from bookwarden.findings import Verdict
from bookwarden.wiring.bookie_clusters import SwitchOperations
from bookwarden.wiring.cluster import Cluster

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
@pass_invocation
def precheck(invocation: Invocation, target: str, no_trial: bool) -> None:
    """Check whether brokers can be switched.

    Looks at the registry, every live broker and its settings, the metadata and the bookies of all registered clusters,
    and what namespaces ask of bookies. If no check blocks it, it writes a trial ledger to all bookies of the
    target, reads it and deletes it; else it changes nothing.
    """
    with Cluster(invocation.settings) as cluster:
        result = run_precheck(SwitchOperations(cluster).observer, target, with_trial=not no_trial)
        invocation.write(describe_precheck(result))
    click.get_current_context().exit(WOULD_FAIL if result.failing else 0)


def describe_precheck(result: Precheck) -> Document:
    """Describe all lines, in the best order to deal with them."""
    registry = result.seen.registry
    bad, warnings = len(result.failing), sum(one.verdict is Verdict.WARNING for one in result.findings)
    note = (
        f"{counted(bad, 'check')} block{'s' if bad == 1 else ''} it, {counted(warnings, 'warning')}. "
        "What to do about each: docs/bookie-clusters.md."
        if bad
        else f"No check blocks it; {counted(warnings, 'warning')}."
    )
    pairs = (("source", registry.active), ("target", result.seen.target), ("epoch", str(registry.epoch)))
    return Document(result.as_json(), (Facts(pairs), findings_table(result.findings), Note(note)))


_SWITCH_EPILOG = """\b
Exit codes: 0 all live brokers follow; 23 the precheck blocks it, nothing was switched;
27 it is switched, but not all brokers followed in time; 5 it was not confirmed, or another process works at it.

\b
Killed at any moment, the same command carries it on, and so does switch --resume.
Runbook: docs/bookie-clusters.md."""


def _order_options(command: Callable[..., Any]) -> Callable[..., Any]:
    options = (
        click.option("--dry-run", is_flag=True, help="Run the precheck, say what would be done, and do nothing."),
        no_trial_option,
        click.option("--skip-precheck", is_flag=True, help="For testing only: messages can be lost."),
        wait_option,
        yes_option,
        pass_invocation,
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command(epilog=_SWITCH_EPILOG)
@click.option("--target", metavar="NAME", help="The bookie cluster that new ledgers are to go to.")
@click.option("--resume", is_flag=True, help="Carry on a switch, or rollback, whose process ended.")
@_order_options
def switch(
    invocation: Invocation,
    target: str | None,
    resume: bool,
    dry_run: bool,
    no_trial: bool,
    skip_precheck: bool,
    wait_s: float,
    yes: bool,
) -> None:
    """Make another bookie cluster active.

    Runs the precheck, asks, changes the registry, and waits until all live brokers follow. From then on new ledgers
    go to the target; ledgers of the other clusters are read, and written to their end, where they are.
    """
    if (target is None) != resume:
        raise click.UsageError("name the cluster with --target, or carry on with --resume")
    options = SwitchOptions(dry_run, skip_precheck, with_trial=not no_trial, wait_s=wait_s)
    with Cluster(invocation.settings) as cluster:
        operations = SwitchOperations(cluster)
        planned = operations.switch.plan_rest() if target is None else operations.switch.plan(target)
        code = _carry_out(invocation, operations, planned, options, yes=yes)
    click.get_current_context().exit(code)


@click.command(epilog=_SWITCH_EPILOG)
@_order_options
def rollback(
    invocation: Invocation, dry_run: bool, no_trial: bool, skip_precheck: bool, wait_s: float, yes: bool
) -> None:
    """Return to the bookie cluster before the switch.

    The same as a switch to it, with the same checks. Nothing is moved: what was written since stays where it is, and
    is read there. Given again it finds the rollback done; it never switches forward.
    """
    options = SwitchOptions(dry_run, skip_precheck, with_trial=not no_trial, wait_s=wait_s)
    with Cluster(invocation.settings) as cluster:
        operations = SwitchOperations(cluster)
        code = _carry_out(invocation, operations, operations.switch.plan_back(), options, yes=yes)
    click.get_current_context().exit(code)


def _carry_out(
    invocation: Invocation, operations: SwitchOperations, planned: PlannedSwitch, options: SwitchOptions, *, yes: bool
) -> int:
    """Do what is planned; return the exit code."""
    order, is_made = planned.plan.order, operations.switch.is_made(planned)
    if is_made:
        left = "what is left is to see that all brokers follow" if options.dry_run else "seeing that all brokers follow"
        invocation.say(f"{order.target} is active already; {left}")
    elif options.skip_precheck:
        invocation.say("SKIPPED, with --skip-precheck: whether messages will be lost is not known")

    def ask(precheck: Precheck | None) -> None:
        if precheck is not None and invocation.output != "json":
            invocation.write(describe_precheck(precheck))
        _say_what_comes(invocation, planned)
        verb = "Roll back" if order.is_rollback else "Switch"
        confirm(f"{verb} new ledgers from {order.source} to {order.target}?", yes=yes)

    def tell(one: SwitchedBroker) -> None:
        invocation.say(f"{one.broker} follows, after {one.seconds:.3f} s")

    result = operations.switch.run(planned, options, operations.observer, confirm=ask, say=invocation.say, tell=tell)
    data = switch_data(result, operations.switch)
    if result.switched is not None:
        invocation.write(Document(data, _parts(result.switched)))
        return SOME_FAILED if result.switched.behind else 0
    invocation.write(Document(data, () if result.precheck is None else describe_precheck(result.precheck).parts))
    if not (is_made or result.is_refused):
        _say_what_comes(invocation, planned)
    return WOULD_FAIL if result.is_refused else 0


def _say_what_comes(invocation: Invocation, planned: PlannedSwitch) -> None:
    order = planned.plan.order
    invocation.say(
        f"What happens next: the registry gets epoch {order.epoch}, by one write. Each broker then makes new ledgers "
        f"in {order.target}; those that are open in {order.source} stay there until they roll. No connection is "
        "closed, no data is moved."
    )
    invocation.say(
        f"Keep {order.source} running, with all of its bookies, as long as any ledger is there. Start no broker "
        "without the jar meanwhile."
    )


def _parts(switched: SwitchOutcome) -> tuple[Part, ...]:
    order = switched.order
    pairs = (("phase", order.phase.value), ("active", order.target), ("epoch", str(switched.epoch)))
    rows = tuple((one.broker, f"{one.seconds:.3f}") for one in switched.followed)
    columns = (Column("broker"), Column("seconds until it followed", right=True))
    parts: list[Part] = [Facts(pairs), Table(columns, rows, empty="No broker follows.")]
    parts += [Note(f"Not in time: {one}.") for one in switched.behind]
    if switched.behind:
        parts.append(
            Note(
                f"The switch is made. A broker that does not follow yet and knows {order.target} goes on writing to "
                f"the other cluster, from where all read it. One whose epoch is before the registration of "
                f"{order.target} does so too, and cannot load topics with ledgers there; with the jar of "
                "0.1.0 it takes these ledgers for deleted: stop it. Look for 'registry' in the broker's log; then "
                "`bookie-clusters switch --resume`."
            )
        )
    return tuple(parts)
