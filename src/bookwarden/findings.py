"""Findings of a check: what was seen, whether it blocks, and what to do about it; and texts of findings."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple


class Verdict(Enum):
    """The result of one line of a check."""

    OK = "ok"
    WARNING = "warning"
    FAILS = "would fail"


class Finding(NamedTuple):
    """One line: its subject, the verdict, the observation, and the remedy unless all is well."""

    check: str
    verdict: Verdict
    seen: str
    advice: str = ""


#: The verdict, the observation and the remedy of a line.
Found = tuple[Verdict, str, str]

_SHOWN = 3
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def ok(seen: str) -> Found:
    """Make a line on which all is well."""
    return Verdict.OK, seen, ""


def warns(seen: str, advice: str) -> Found:
    """Make a line that the operator should know before."""
    return Verdict.WARNING, seen, advice


def fails(seen: str, advice: str) -> Found:
    """Make a line that blocks."""
    return Verdict.FAILS, seen, advice


def failing(findings: Iterable[Finding]) -> list[Finding]:
    """List the lines that block."""
    return [finding for finding in findings if finding.verdict is Verdict.FAILS]


def size_text(size: int) -> str:
    """Format a number of bytes in the largest binary unit in which it is at least 1."""
    value, unit = float(size), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{size:,} B" if unit == 0 else f"{value:,.1f} {_UNITS[unit]}"


def some(names: list[str]) -> str:
    """Join the first few names, and count the rest."""
    shown = ", ".join(names[:_SHOWN])
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown
