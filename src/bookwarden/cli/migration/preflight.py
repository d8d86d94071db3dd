"""`bookwarden metadata-migration preflight`: the causes that would make a migration fail, found before it begins."""

from __future__ import annotations

from typing import Final

import click

from bookwarden.cli.migration.node_progress import node_progress
from bookwarden.cli.migration.status import source_option
from bookwarden.cli.shell.findings import findings_table
from bookwarden.cli.shell.invocation import Invocation, max_reads_option, output_option, pass_invocation
from bookwarden.cli.shell.output import Document, Note, counted
from bookwarden.findings import Finding, Verdict, failing
from bookwarden.migration.control import MigrationControl
from bookwarden.migration.preflight import judge
from bookwarden.migration.survey import Survey
from bookwarden.wiring.migration import MigrationContext

WOULD_FAIL: Final = 23

target_option = click.option(
    "--target", required=True, metavar="URL", help="Where the metadata is to go: oxia://host:port/namespace."
)
reads_option = max_reads_option("from the source in a second. Default: no limit but that of the settings.")
read_only_option = click.option(
    "--read-only", is_flag=True, help="Write no key to an empty target: how it sorts its keys stays unknown."
)

_EPILOG = """\b
Examples:
  bookwarden metadata-migration preflight --target oxia://oxia1:6648/default
  bookwarden metadata-migration preflight --target oxia://oxia1:6648/default --max-reads-per-second 2000 -o json

\b
Exit codes: 0 nothing that was looked at would fail; 23 something would.
What to do about each line: docs/metadata-migration.md."""


@click.command(epilog=_EPILOG)
@target_option
@source_option
@reads_option
@read_only_option
@output_option
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
    with MigrationContext(invocation.settings, source=source, max_reads_per_second=limit) as context:
        control = context.control
        findings, found = examine(invocation, control, target, read_only=read_only)
        invocation.write(describe(control.source_url, target, findings, found))
    click.get_current_context().exit(WOULD_FAIL if failing(findings) else 0)


def examine(
    invocation: Invocation, control: MigrationControl, target: str, *, read_only: bool
) -> tuple[list[Finding], Survey]:
    """Observe everything, and judge it."""
    with node_progress(invocation, f"reading all of {control.source_url}", "read") as tell:
        found = control.survey(tell)
    return judge(control.observe(target, found, may_write=not read_only)), found


def describe(source: str, target: str, findings: list[Finding], found: Survey) -> Document:
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
