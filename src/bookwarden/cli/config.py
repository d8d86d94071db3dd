"""The commands about the settings: what holds, and whether everything that they name answers."""

from __future__ import annotations

import json
import os

import click

from bookwarden.cli.shell.invocation import Invocation, pass_invocation
from bookwarden.cli.shell.output import Cells, Column, Document, Note, counted, findings_table, table_of
from bookwarden.config import CONFIG_VARIABLE, SettingValue, values_with_origins
from bookwarden.config_check import LIMIT_S, check_settings
from bookwarden.errors import MissingExtraError, SparkError
from bookwarden.exit_codes import WOULD_FAIL
from bookwarden.findings import Finding, Verdict, failing, warns
from bookwarden.preflight import require_spark

_EPILOG = """\b
Examples:
  bookwarden config check            before the first sweep, and after a change
  bookwarden config show --changed   what is not a default, and where it was set"""


@click.group(epilog=_EPILOG)
def config() -> None:
    """Check the settings, and show where they come from."""


_CHECK_EPILOG = """\b
Exit codes: 0 nothing would fail; 23 something would.
What to do about a line: docs/config-check.md."""


@config.command(epilog=_CHECK_EPILOG)
@pass_invocation
def check(invocation: Invocation) -> None:
    """Ask everything that the settings name.

    Metadata stores, bookies, brokers, stores of offloaded copies, the journal and all folders are asked at the same
    time, each for 20 seconds at most; then registered bookie clusters. Rights are tried by reads, and by nodes, files
    and objects of its own that are removed again. No message is sent and no ledger is touched.
    """
    findings = [*check_settings(invocation.settings), *_spark()]
    invocation.write(_describe_check(findings))
    click.get_current_context().exit(WOULD_FAIL if failing(findings) else 0)


def _spark() -> list[Finding]:
    """Return whether sweep, follow and orphans scan can start Spark here; they may run on another machine."""
    try:
        require_spark()
    except (MissingExtraError, SparkError) as error:
        return [Finding("Spark", *warns(str(error), "needed by sweep, follow and orphans scan"))]
    return [Finding("Spark", Verdict.OK, "PySpark and Java are there")]


def _describe_check(findings: list[Finding]) -> Document:
    bad, warnings = len(failing(findings)), sum(one.verdict is Verdict.WARNING for one in findings)
    text = (
        f"{counted(bad, 'line')} would fail, {counted(warnings, 'warning')}. What to do: docs/config-check.md."
        if bad
        else f"Everything answers; {counted(warnings, 'warning')}."
    )
    data = {
        "would_fail": bool(bad),
        "limit_seconds": LIMIT_S,
        "findings": [one._asdict() for one in findings],
    }
    return Document(data, (findings_table(findings), Note(text)))


@config.command()
@click.option("--changed", is_flag=True, help="Only those that are set somewhere.")
@pass_invocation
def show(invocation: Invocation, changed: bool) -> None:
    """Show the settings that hold, and where each was set.

    From the file, the environment or --set; later ones win. Secrets are masked.
    """
    values = values_with_origins(invocation.settings, invocation.config, invocation.overrides)
    shown = [one for one in values if one.origin != "default"] if changed else values
    cells: Cells[SettingValue] = {
        Column("setting"): lambda one: one.name,
        Column("value", whole=False): lambda one: json.dumps(one.value, ensure_ascii=False),
        Column("from", whole=False): lambda one: one.origin,
    }
    file = invocation.config or os.environ.get(CONFIG_VARIABLE)
    note = (
        f"Settings file: {file}." if file else "There is no settings file: --config, or BOOKWARDEN_CONFIG, names one."
    )
    data = {"file": None if file is None else str(file), "settings": {one.name: one._asdict() for one in shown}}
    invocation.write(Document(data, (table_of(shown, cells, empty="Nothing is set: all are defaults."), Note(note))))
