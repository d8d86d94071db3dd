"""The growth of what ledgers take on the disks of bookies, and the day on which the disks are full if it goes on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from typing import Final, NamedTuple

#: A forecast needs as many days between the first and the last measurement.
FEWEST_DAYS: Final = 7
#: Earlier measurements say little of the growth of today.
MOST_DAYS: Final = 90
#: A slope is within this many standard errors of the one that is found, in nineteen of twenty cases.
_ERRORS: Final = 2.0
_LATEST: Final = 36_500


class DayUse(NamedTuple):
    """The last measurement of a day: of a tenant, or of all together; all numbers but the last two are as in a Use."""

    day: str  #: As 2026-11-28, in UTC.
    tenant: str  #: "" for all together.
    ledgers: int  #: Number of ledgers.
    disk_bytes: int  #: Of all copies.
    trashed_bytes: int  #: Of these, what the trash keeps.
    unnamed_bytes: int  #: Of these, what neither a node names nor the trash keeps.
    offloaded_bytes: int  #: In stores of offloaded copies.
    total: int | None = None  #: Bytes of the disks of all bookies; None of a tenant, and where one did not tell.
    free: int | None = None  #: Of these.


class Growth(NamedTuple):
    """The change of bytes on disks since an earlier day."""

    since: str  #: That day.
    disk_bytes: int  #: More than then; below 0: less.


class Forecast(NamedTuple):
    """The day on which the disks of all bookies are full if they fill as they did; each None beyond a century."""

    bytes_per_day: int  #: By a straight line through what was used on each day.
    error_per_day: int  #: In nineteen of twenty cases the growth is within this many bytes of it.
    full: str | None  #: By that growth.
    earliest: str | None  #: By the largest growth within the error.
    latest: str | None  #: By the smallest.


def growth_of(days: Iterable[DayUse], tenant: str, today: str, disk_bytes: int) -> Growth | None:
    """Return the growth since the newest day before today; None if there is none."""
    before = [one for one in days if one.tenant == tenant and one.day < today]
    newest = max(before, key=lambda one: one.day, default=None)
    return None if newest is None else Growth(newest.day, disk_bytes - newest.disk_bytes)


def forecast_of(days: Iterable[DayUse]) -> Forecast | None:
    """Return when the disks are full; None where the days are too few, or bookies did not tell of their disks."""
    points = sorted(
        (date.fromisoformat(one.day).toordinal(), one.total - one.free, one.free)
        for one in days
        if not one.tenant and one.total is not None and one.free is not None
    )
    points = [point for point in points if point[0] > points[-1][0] - MOST_DAYS]
    if len(points) < 3 or points[-1][0] - points[0][0] < FEWEST_DAYS:
        return None
    today, _, free = points[-1]
    slope, error = _line([(day, used) for day, used, _ in points])
    full, earliest, latest = (_full(today, free, one) for one in (slope, slope + error, slope - error))
    return Forecast(round(slope), round(error), full, earliest, latest)


def _line(points: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """Lay a straight line through points; return its slope, and the error of that."""
    count = len(points)
    middle_x, middle_y = (sum(axis) / count for axis in zip(*points, strict=True))
    spread = sum((x - middle_x) ** 2 for x, _ in points)
    slope = sum((x - middle_x) * (y - middle_y) for x, y in points) / spread
    missed = sum((y - middle_y - slope * (x - middle_x)) ** 2 for x, y in points)
    return slope, _ERRORS * math.sqrt(missed / (count - 2) / spread)


def _full(today: int, free: int, per_day: float) -> str | None:
    if per_day <= 0 or free / per_day > _LATEST:
        return None
    return (date.fromordinal(today) + timedelta(days=free / per_day)).isoformat()
