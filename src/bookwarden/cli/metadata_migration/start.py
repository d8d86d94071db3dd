"""`bookwarden metadata-migration preflight` and `start`: what would fail, and the order to the broker, followed."""

from __future__ import annotations

import time
from typing import Final

import click

from bookwarden.cli.metadata_migration.options import reads_option, source_option
from bookwarden.cli.metadata_migration.watch import watch_to_the_end
from bookwarden.cli.shell.invocation import Invocation, pass_invocation
from bookwarden.cli.shell.output import Document, Note, counted, findings_table
from bookwarden.cli.shell.questions import confirm, yes_option
from bookwarden.cli.shell.steps import node_progress
from bookwarden.errors import PulsarError, RefusedError
from bookwarden.exit_codes import WOULD_FAIL
from bookwarden.findings import Finding, Verdict, failing
from bookwarden.metadata_migration.control import MigrationControl, Survey
from bookwarden.metadata_migration.preflight import NEVER_SKIPPED, estimate_seconds, evaluate
from bookwarden.wiring.metadata_migration import MigrationStores, control_of

target_option = click.option(
    "--target", required=True, metavar="URL", help="Where the metadata is to go: oxia://host:port/namespace."
)
read_only_option = click.option(
    "--read-only", is_flag=True, help="Write no key to an empty target: how it sorts its keys stays unknown."
)

_PREFLIGHT_EPILOG = """\b
Examples:
  bookwarden metadata-migration preflight --target oxia://oxia1:6648/default
  bookwarden metadata-migration preflight --target oxia://oxia1:6648/default --max-reads-per-second 2000 -o json

\b
Exit codes: 0 nothing that was looked at would fail; 23 something would.
What to do about each line: docs/metadata-migration.md."""


@click.command(epilog=_PREFLIGHT_EPILOG)
@target_option
@source_option
@reads_option
@read_only_option
@pass_invocation
def preflight(
    invocation: Invocation,
    target: str,
    source: str | None,
    limit: float | None,
    read_only: bool,
) -> None:
    """Check what would make a migration fail.

    Looks at the flag, the brokers, the bookies, every process that keeps nodes in the source, the whole source, and
    the target. Changes nothing; into an empty target one key is written and deleted, to see how it sorts them.
    """
    with MigrationStores(invocation.settings, source) as stores:
        control = control_of(stores, max_reads_per_second=limit)
        findings, found = _examine(invocation, control, target, read_only=read_only)
        invocation.write(_describe(control.source_url, target, findings, found))
    click.get_current_context().exit(WOULD_FAIL if failing(findings) else 0)


def _examine(
    invocation: Invocation, control: MigrationControl, target: str, *, read_only: bool
) -> tuple[list[Finding], Survey]:
    """Observe everything, and evaluate it."""
    # To read all of the source may take minutes.
    control.require_libraries(target)
    with node_progress(invocation, f"reading all of {control.source_url}", "read") as tell:
        found = control.survey(tell)
    return evaluate(control.observe(target, found, may_write=not read_only)), found


def _describe(source: str, target: str, findings: list[Finding], found: Survey) -> Document:
    """Describe the findings, in the best order to deal with them."""
    bad, warnings = len(failing(findings)), sum(one.verdict is Verdict.WARNING for one in findings)
    note = (
        f"{counted(bad, 'line')} would let the migration fail, {counted(warnings, 'warning')}. "
        "What to do about each: docs/metadata-migration.md."
        if bad
        else f"Nothing that was looked at would let the migration fail; {counted(warnings, 'warning')}."
    )
    data = {
        "source": source,
        "target": target,
        "would_fail": bool(bad),
        "nodes": found.nodes,
        "bytes": found.size,
        "findings": [one._asdict() for one in findings],
    }
    return Document(data, (findings_table(findings), Note(note)))


_FLAG_WITHIN_S: Final = 30.0
_LOOK_EVERY_S: Final = 0.2

_EPILOG = """\b
Exit codes: those of watch; 23 the pre-flight found what would let it fail; 5 it was not confirmed.

\b
COMPLETED is the point of no return. Read docs/metadata-migration.md before."""


@click.command(epilog=_EPILOG)
@target_option
@source_option
@reads_option
@read_only_option
@click.option("--force", is_flag=True, help="Begin though the pre-flight says that it would fail.")
@click.option("--no-watch", is_flag=True, help="End when the migration has begun.")
@click.option("--dry-run", is_flag=True, help="Only run the pre-flight, and say what comes.")
@yes_option
@pass_invocation
def start(
    invocation: Invocation,
    target: str,
    source: str | None,
    limit: float | None,
    read_only: bool,
    force: bool,
    no_watch: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Move the metadata of a running cluster to Oxia.

    Runs the pre-flight, asks, has the broker of pulsar.admin_url begin, and watches until it is over.
    """
    with MigrationStores(invocation.settings, source) as stores:
        control = control_of(stores, max_reads_per_second=limit)
        findings, found = _examine(invocation, control, target, read_only=read_only)
        bad = failing(findings)
        if bad or dry_run or invocation.output != "json":
            invocation.write(_describe(control.source_url, target, findings, found))
        if any(one.check in NEVER_SKIPPED for one in bad) or (bad and not force):
            click.get_current_context().exit(WOULD_FAIL)
        _say_what_comes(invocation, control.source_url, target, bad, found)
        if dry_run:
            return
        question = f"Move the metadata of {control.source_url} to {target}?"
        confirm(question, yes=yes, look="--dry-run")
        control.start(target)
        _await_flag(control, target)
        code = 0 if no_watch else watch_to_the_end(invocation, control, found=found)
    click.get_current_context().exit(code)


def _say_what_comes(invocation: Invocation, source: str, target: str, skipped: list[Finding], found: Survey) -> None:
    for one in skipped:
        invocation.say(f"SKIPPED, with --force: {one.check}: {one.seen}")
    seconds = estimate_seconds(found.nodes, found.size)
    invocation.say(
        f"What happens next: PREPARATION: no process writes metadata any more, each connects to {target}, makes its "
        "ephemeral nodes there and leaves; one to two minutes at most are waited for. COPYING: "
        f"{found.nodes:,} nodes are copied, in about {seconds:,.0f} s. COMPLETED: all processes use {target}."
    )
    invocation.say(
        f"COMPLETED is the point of no return: {source} stays as it was, and has nothing of what is written later. "
        "Until then a failure leads back to it by itself. Do not restart brokers or bookies meanwhile."
    )


def _await_flag(control: MigrationControl, target: str) -> None:
    """Wait until the source's flag shows the order; raise PulsarError if it does not."""
    deadline = time.monotonic() + _FLAG_WITHIN_S
    while time.monotonic() < deadline:
        snapshot = control.snapshot()
        if snapshot.phase is not None:
            if snapshot.target_url != target:
                raise RefusedError(
                    f"another migration began at the same time, to {snapshot.target_url}: watch that one"
                )
            return
        time.sleep(_LOOK_EVERY_S)
    raise PulsarError(
        f"the broker took the order, but no flag came within {_FLAG_WITHIN_S:.0f} s: look for 'metadata migration' in "
        "its log, and at `bookwarden metadata-migration status`"
    )
