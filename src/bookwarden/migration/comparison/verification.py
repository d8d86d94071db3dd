"""The result of verifying a migrated store: the two stores, and the findings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bookwarden.migration.comparison.differences import Difference
from bookwarden.migration.comparison.findings import Report
from bookwarden.migration.comparison.rows import row_of


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of verifying a migrated store."""

    source: str  #: Its URL.
    target: str  #: Its URL.
    phase: str | None  #: In the source's flag; None without a flag.
    switched_ms: int | None  #: When the target replaced the source, by the source's clock; None if it has not.
    report: Report  #: The findings, in numbers of nodes.
    seconds: float  #: The comparison took.
    differences: str | None  #: The file or folder of all differences; None if they were not kept.

    @property
    def first(self) -> Iterator[Difference]:
        """The differences that are shown, by class."""
        return (one for found in self.report.first.values() for one in found)

    def as_json(self) -> dict[str, Any]:
        """Convert it to JSON's types, for programs."""
        report = self.report
        return {
            "source": self.source,
            "target": self.target,
            "phase": self.phase,
            "switched_ms": self.switched_ms,
            "seconds": round(self.seconds, 3),
            "clean": not report.faults,
            "compared": report.compared,
            "equal": report.equal,
            "ephemeral": report.ephemeral,
            "versions_kept": report.versions_kept,
            "other_versions": report.other_versions,
            "counts": {kind.value: count for kind, count in report.counts.items()},
            "first": [row_of(one) for one in self.first],
            "differences_file": self.differences,
        }
