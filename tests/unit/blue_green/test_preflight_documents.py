"""The document of the pre-flight: it has each check by number and name, and each case that can be accepted."""

from __future__ import annotations

from pathlib import Path

from bookwarden.cluster_migration.readiness.checks import CHECKS
from bookwarden.cluster_migration.readiness.findings import ACCEPTED

DOCUMENT = (Path(__file__).parents[3] / "docs/cluster-migration.md").read_text(encoding="utf-8")


def test_each_check_is_in_the_document() -> None:
    named = [f"| {number} {name} |" for number, name in enumerate(CHECKS, 1)]
    assert [name for name in named if name not in DOCUMENT] == []


def test_each_case_that_can_be_accepted_is_in_the_document() -> None:
    assert [one.value for one in ACCEPTED if f"| `{one.value}` |" not in DOCUMENT] == []
