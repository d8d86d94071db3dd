"""What is decided by the report of a bookie on its garbage collection."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookwarden.ledgers.bookie_report import (
    BookieReport,
    Compactions,
    compaction_problem,
    compactions_made,
    compactions_to_ask,
)

REPORT = BookieReport(
    "http://b1:8000",
    is_major_suspended=False,
    is_minor_suspended=False,
    minor_compactions=4,
    major_compactions=1,
    entry_logs=3,
    live_bytes=1_000,
    log_size_limit=1_000,
)
MAJOR_SUSPENDED = replace(REPORT, is_major_suspended=True)
BOTH_SUSPENDED = replace(MAJOR_SUSPENDED, is_minor_suspended=True)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, 2_000),
        ({"entry_logs": 0, "live_bytes": 0}, 0),
        # The last entry of a log may be beyond the limit.
        ({"live_bytes": 3_001}, 0),
        ({"entry_logs": None}, None),
        ({"live_bytes": None}, None),
        ({"log_size_limit": None}, None),
    ],
)
def test_dead_bytes_are_at_most_what_full_logs_would_have(fields: dict[str, int | None], expected: int | None) -> None:
    assert replace(REPORT, **fields).dead_bytes == expected  # type: ignore[arg-type]  # those above


@pytest.mark.parametrize(
    ("report", "major", "expected"),
    [
        (REPORT, False, Compactions(False, True)),
        (REPORT, True, Compactions(True, True)),
        (MAJOR_SUSPENDED, True, Compactions(False, True)),
        (BOTH_SUSPENDED, True, Compactions(False, False)),
        # It does not tell, as bookies before 4.15.
        (BookieReport(""), True, Compactions(True, True)),
    ],
)
def test_no_compaction_is_asked_for_that_is_suspended(report: BookieReport, major: bool, expected: Compactions) -> None:
    assert compactions_to_ask(report, major=major) == expected


@pytest.mark.parametrize(
    ("report", "used", "expected"),
    [
        (REPORT, 0.99, ""),
        (MAJOR_SUSPENDED, 0.1, "major compaction is suspended"),
        (BOTH_SUSPENDED, 0.1, "compaction is suspended: only entry logs without a live ledger are freed now"),
        (BookieReport("", error="off"), 0.94, ""),
        (BookieReport("", error="off"), 0.96, "more than 95% of its disks are used"),
        (None, 0.96, "more than 95% of its disks are used"),
        (None, None, ""),
    ],
)
def test_a_bookie_says_whether_it_compacts_or_else_its_disks_do(
    report: BookieReport | None, used: float | None, expected: str
) -> None:
    found = compaction_problem(report, used)
    assert found.startswith(expected)
    assert bool(found) is bool(expected)


def test_compactions_are_told_by_their_numbers() -> None:
    assert compactions_made(REPORT, replace(REPORT, minor_compactions=5)) == "minor"
    assert compactions_made(REPORT, replace(REPORT, minor_compactions=5, major_compactions=2)) == "major and minor"
    assert compactions_made(REPORT, REPORT) == "none"
    assert compactions_made(REPORT, replace(REPORT, major_compactions=None)) == "-"
