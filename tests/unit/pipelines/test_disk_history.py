"""The disk use of each day, as it is kept."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import pytest

from bookwarden.errors import FormatError
from bookwarden.ledgers.disk_growth import MOST_DAYS, DayUse
from bookwarden.pipelines.disk.history import DiskHistory
from bookwarden.pipelines.folders import Folder


def use(day: str, tenant: str = "", size: int = 1, free: int | None = None) -> DayUse:
    return DayUse(day, tenant, 2, size, 3, 4, 5, free, free)


def test_the_last_account_of_a_day_is_kept(tmp_path: Path) -> None:
    history = DiskHistory(Folder(str(tmp_path)))
    assert history.newest() == []
    history.keep("2026-11-27", [use("2026-11-27", free=9), use("2026-11-27", "t")])
    history.keep("2026-11-28", [use("2026-11-28", size=7), use("2026-11-28", "t"), use("2026-11-28", "u")])
    history.keep("2026-11-28", [use("2026-11-28", size=8)])
    (tmp_path / "days" / "notes.txt").write_text("of an operator")
    assert history.newest() == [use("2026-11-27", free=9), use("2026-11-27", "t"), use("2026-11-28", size=8)]


def test_days_of_long_ago_are_not_read(tmp_path: Path) -> None:
    history = DiskHistory(Folder(str(tmp_path)))
    days = [(date(2026, 1, 1) + timedelta(days=number)).isoformat() for number in range(MOST_DAYS + 3)]
    for day in days:
        history.keep(day, [use(day)])
    assert [one.day for one in history.newest()] == days[3:]


@pytest.mark.parametrize("content", [b"", b"PAR1"])
def test_a_damaged_day_is_named(tmp_path: Path, content: bytes) -> None:
    history = DiskHistory(Folder(str(tmp_path)))
    history.keep("2026-11-27", [use("2026-11-27")])
    (tmp_path / "days" / "2026-11-26.parquet").write_bytes(content)
    with pytest.raises(FormatError, match=r"2026-11-26\.parquet is no day of disk use .*: move it away"):
        history.newest()
