"""The disk use of each day, kept in the folder of the settings.

days/2026-11-28.parquet    of the last account of that day: the columns of DayUse, a row for each tenant and one for all
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from bookwarden.errors import FormatError
from bookwarden.ledgers.disk_growth import MOST_DAYS, DayUse, forecast_of, growth_of
from bookwarden.ledgers.disk_use import DiskUse, Use
from bookwarden.pipelines.columns.tables import Columns, rows_in
from bookwarden.pipelines.folders import Folder

_DAYS: Final = "days"
_NO_TENANT: Final = "(none)"
_USE: Final = Columns(DayUse)


class DiskHistory:
    """The days in a folder. Raises OSError where that cannot be read or written."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def compared(self, found: DiskUse, tenants: Iterable[Use]) -> DiskUse:
        """Keep what was found of all ledgers as that of its day, and return it with what that is to other days."""
        day = datetime.fromtimestamp(found.measured_ms / 1000, timezone.utc).date().isoformat()
        disks = [(one.total, one.free) for one in found.bookies]
        known = [(total, free) for total, free in disks if total is not None and free is not None]
        total, free = map(sum, zip(*known, strict=True)) if known and len(known) == len(disks) else (None, None)
        of_all = _day_use(day, "", found.total)._replace(total=total, free=free)
        self.keep(day, [of_all, *(_day_use(day, use.name or _NO_TENANT, use) for use in tenants)])
        days = self.newest()
        return replace(found, growth=growth_of(days, "", day, found.total.disk_bytes), forecast=forecast_of(days))

    def keep(self, day: str, uses: Sequence[DayUse]) -> None:
        """Write the uses of a day in place of those that it had."""
        self._folder.write(f"{_DAYS}/{day}.parquet", partial(pq.write_table, _USE.table(uses)))

    def newest(self) -> list[DayUse]:
        """Read the newest days, MOST_DAYS at most; FormatError names a file that is damaged."""
        names = [name for name in self._folder.files(_DAYS) if name.endswith(".parquet")]
        return [use for name in names[-MOST_DAYS:] for use in self._read(f"{_DAYS}/{name}")]

    def _read(self, name: str) -> list[DayUse]:
        try:
            with self._folder.open(name) as source:
                return [DayUse(*row) for row in rows_in(pq.read_table(source).select(_USE.arrow.names))]
        except (pa.ArrowException, KeyError) as error:
            raise FormatError(
                f"{self._folder.location}/{name} is no day of disk use ({error}): move it away"
            ) from error


def _day_use(day: str, tenant: str, use: Use) -> DayUse:
    sizes = (use.disk_bytes, use.trashed_bytes, use.unnamed_bytes, use.offloaded_bytes)
    return DayUse(day, tenant, use.ledgers, *sizes)
