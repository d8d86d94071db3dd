"""Growth of disk use, and the day on which the disks are full."""

from __future__ import annotations

from datetime import date, timedelta

import pytest

from bookwarden.ledgers.disk_growth import DayUse, Growth, forecast_of, growth_of

TOTAL = 1_000


def days(*used: int, tenant: str = "", step: int = 1) -> list[DayUse]:
    first = date(2026, 1, 1)
    return [
        DayUse((first + timedelta(days=number * step)).isoformat(), tenant, 1, size, 0, 0, 0, TOTAL, TOTAL - size)
        for number, size in enumerate(used)
    ]


def test_growth_is_since_the_newest_day_before_today() -> None:
    found = [*days(100, 150, 170), *days(5, 6, 7, tenant="t")]
    assert growth_of(found, "", "2026-01-03", 180) == Growth("2026-01-02", 30)
    assert growth_of(found, "t", "2026-02-01", 1) == Growth("2026-01-03", -6)
    assert growth_of(found, "t", "2026-01-01", 1) is None
    assert growth_of(found, "u", "2026-02-01", 1) is None


def test_what_grows_by_as_much_each_day_is_full_on_a_day_without_an_error() -> None:
    found = forecast_of(days(*range(100, 200, 10)))
    assert found == (10, 0, "2026-04-01", "2026-04-01", "2026-04-01")


def test_what_grows_unevenly_is_told_with_its_error() -> None:
    found = forecast_of(days(100, 120, 110, 140, 130, 160, 150, 180, 170, 200))
    assert found is not None
    assert found.bytes_per_day == 10
    assert found.error_per_day == 2
    assert found.full is not None
    assert found.earliest is not None
    assert found.latest is not None
    assert found.earliest < found.full < found.latest


@pytest.mark.parametrize("used", [[500] * 10, list(range(500, 400, -10))])
def test_what_does_not_grow_is_never_full(used: list[int]) -> None:
    found = forecast_of(days(*used))
    assert found is not None
    assert (found.full, found.latest) == (None, None)


def test_there_is_no_forecast_from_less_than_seven_days() -> None:
    assert forecast_of([]) is None
    assert forecast_of(days(*range(7))) is None
    assert forecast_of(days(1, 2, step=10)) is None
    assert forecast_of(days(*range(10), tenant="t")) is None
    assert forecast_of([one._replace(free=None) for one in days(*range(10))]) is None
    assert forecast_of(days(*range(8))) is not None


def test_what_is_long_ago_does_not_count() -> None:
    found = forecast_of([*days(900), *[one._replace(day=one.day.replace("2026", "2027")) for one in days(*range(10))]])
    assert found is not None
    assert found.bytes_per_day == 1
