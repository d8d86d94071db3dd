"""The verification of a migrated store as a result: what was compared with what, and what was found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bookwarden.migration.comparison.differences import Difference
from bookwarden.migration.comparison.findings import Report
from bookwarden.migration.comparison.rows import row_of


@dataclass(frozen=True, slots=True)
class Verification:
    """What was found; ``phase`` is what the source's flag said, None without one.

    ``switched_ms`` is when the target was put in the source's place, by the source's clock, None if it was not.
    ``differences`` is where all of them are, if they are anywhere.
    """

    source: str
    target: str
    phase: str | None
    switched_ms: int | None
    report: Report
    seconds: float
    differences: str | None

    @property
    def first(self) -> Iterator[Difference]:
        """The differences that are shown, by class."""
        return (one for found in self.report.first.values() for one in found)

    def as_json(self) -> dict[str, Any]:
        """Lay it out for programs."""
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
