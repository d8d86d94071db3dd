"""What a build says of itself: its counts, its pace, and the exit code."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookwarden.bookie_clusters.moving.build import (
    DONE,
    Build,
    BuildReport,
    CopyCounts,
    CopyPace,
    Pacer,
    UncopiedLedger,
)
from bookwarden.bookie_clusters.moving.scope import Scope
from bookwarden.exit_codes import MORE_LATER, SOME_FAILED
from bookwarden.ledgers.outcomes import CopyOutcome

BUILD = Build("a", "b", Scope(), "/builds/one", 1)
MIB = 1 << 20


def counts(*outcomes: CopyOutcome) -> CopyCounts:
    found = CopyCounts()
    for outcome in outcomes:
        found.add(outcome, "bucket of delayed messages", 7)
    return found


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ((), 0),
        ((CopyOutcome.COPIED, CopyOutcome.COMPLETE, CopyOutcome.GONE, CopyOutcome.LEFT_OUT), 0),
        ((CopyOutcome.COPIED, CopyOutcome.OPEN), MORE_LATER),
        ((CopyOutcome.DEFERRED,), MORE_LATER),
        ((CopyOutcome.OPEN, CopyOutcome.FAILED, CopyOutcome.COPIED), SOME_FAILED),
    ],
)
def test_the_exit_code_tells_what_is_left(outcomes: tuple[CopyOutcome, ...], code: int) -> None:
    report = BuildReport(replace(BUILD, counts=counts(*outcomes)), (), 1.0)
    assert report.exit_code == code
    assert replace(report, is_dry_run=True).exit_code == 0


def test_counts_pass_through_the_seals_of_files_and_through_rows() -> None:
    first, second = counts(CopyOutcome.COPIED, CopyOutcome.LEFT_OUT), counts(CopyOutcome.COPIED, CopyOutcome.FAILED)
    both = CopyCounts()
    for one in (first, second):
        both.add_notes({**one.notes(), "to copy": 3, "bytes to copy": 4})
    assert both.rows() == first.plus(second).rows() == CopyCounts.of_rows(both.rows()).rows()
    assert (both.of(*DONE), both.size_of(*DONE), both.of(CopyOutcome.FAILED)) == (2, 14, 1)
    assert [outcome.value for outcome, _ in both.in_order()] == ["copied", "failed", "left out"]


def test_a_report_names_what_stays() -> None:
    stays = UncopiedLedger(7, CopyOutcome.FAILED, "schema", "schema:t/n/x", "entry 3 is damaged")
    found = BuildReport(BUILD, (stays,), 2.5).as_json()
    assert found["staying"] == [
        {
            "ledgerId": 7,
            "outcome": "failed",
            "kind": "schema",
            "holder": "schema:t/n/x",
            "reason": "entry 3 is damaged",
        }
    ]
    assert (found["source"], found["seconds"], found["dryRun"]) == ("a", 2.5, False)


def test_the_pace_is_that_of_this_process() -> None:
    now = [100.0]
    pacer = Pacer(lambda: now[0])
    listed = replace(BUILD, is_listed=True, ledgers=101, size=101 * MIB, looked_at=1, size_looked_at=MIB)
    assert (pacer.at(1, MIB), listed.left_s) == (None, None)
    now[0] += 10
    assert pacer.at(1, MIB) is None
    pace = pacer.at(21, 21 * MIB)
    assert pace == CopyPace(2.0, 2.0 * MIB)
    # Twenty in ten seconds; eighty are left.
    assert replace(listed, looked_at=21, size_looked_at=21 * MIB, pace=pace).left_s == pytest.approx(40.0)
    assert replace(listed, looked_at=101, size_looked_at=101 * MIB).share_done == 1.0
    assert replace(BUILD, is_listed=True).share_done == 1.0
