"""The summary of the last account of disk use, as it is kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bookwarden.errors import FormatError
from bookwarden.ledgers.bookie_report import BookieReport
from bookwarden.ledgers.disk_growth import DayUse, Forecast, Growth
from bookwarden.ledgers.disk_use import BookieUse, DiskUse, Use
from bookwarden.pipelines.disk.summary import (
    MOST_TOPICS,
    SUMMARY,
    DiskSummary,
    read_summary,
    summary_of,
    write_summary,
)
from bookwarden.pipelines.folders import Folder

REPORT = BookieReport("http://b:8000", is_read_only=False, compacted_ms=1_700_000_000_000)
BOOKIES = (
    BookieUse("b:1", 2, 3, 4, 5, 6, 100, 50, report=REPORT),
    BookieUse("c:1", 1, 1, 1, 1, 1, error="it does not answer"),
)
FOUND = DiskUse(
    1_700_000_000_000,
    Use("total", 9, disk_bytes=90),
    (),
    0,
    BOOKIES,
    growth=Growth("2026-11-27", -3),
    forecast=Forecast(1, 2, "2027-01-14", "2026-12-29", None),
)


def uses(by: str) -> list[Use]:
    number = MOST_TOPICS + 7 if by == "topic" else 2
    return [Use(f"{by}-{one}", one, disk_bytes=one) for one in range(number)]


def summary() -> DiskSummary:
    days = [DayUse("2026-11-28", "", 1, 2, 3, 4, 5, 6, 7), DayUse("2026-11-27", "", 1, 1, 1, 1, 1)]
    return summary_of(FOUND, uses, [*days, DayUse("2026-11-28", "tenant", 1, 1, 1, 1, 1)])


def test_what_is_kept_is_read_back(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    assert read_summary(folder) is None
    write_summary(folder, summary())
    assert read_summary(folder) == summary()
    assert [path.name for path in tmp_path.iterdir()] == [SUMMARY]


def test_the_large_are_kept_and_the_others_counted() -> None:
    found = summary()
    assert (len(found.topics), found.topics_left_out) == (MOST_TOPICS, 7)
    assert found.topics[0].disk_bytes == MOST_TOPICS + 6
    assert [use.name for use in found.tenants] == ["tenant-1", "tenant-0"]
    assert (found.tenants_left_out, found.namespaces_left_out) == (0, 0)
    assert [day.day for day in found.days] == ["2026-11-27", "2026-11-28"]


def test_each_figure_has_its_name_in_the_file(tmp_path: Path) -> None:
    write_summary(Folder(str(tmp_path)), summary())
    fields = json.loads((tmp_path / SUMMARY).read_text())
    assert fields["total"]["disk_bytes"] == 90
    assert fields["bookies"][1]["error"] == "it does not answer"
    assert fields["bookies"][0]["report"]["url"] == "http://b:8000"
    assert fields["forecast"]["latest"] is None


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 1}', '{"format": 9}', '{"format": 1, "total": "<b>"}'])
def test_a_damaged_summary_is_named_with_what_to_do(tmp_path: Path, content: str) -> None:
    (tmp_path / SUMMARY).write_text(content)
    with pytest.raises(FormatError, match=r"summary\.json is "):
        read_summary(Folder(str(tmp_path)))
