"""Findings of a check, as a table."""

from __future__ import annotations

from collections.abc import Iterable

from bookwarden.cli.shell.output import Column, Table
from bookwarden.findings import Finding


def findings_table(findings: Iterable[Finding]) -> Table:
    """Make a table with a row for each finding, in their order."""
    columns = (
        Column("check"),
        Column("verdict"),
        Column("what was seen", whole=False),
        Column("what to do", whole=False),
    )
    return Table(columns, tuple((one.check, one.verdict.value, one.seen, one.advice) for one in findings))
