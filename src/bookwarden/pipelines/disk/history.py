"""The disk use of each day, kept in the folder of the settings.

days/2026-11-28.parquet    of the last account of that day: the columns of DayUse, a row for each tenant and one for all
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from bookwarden.errors import FormatError
from bookwarden.ledgers.disk_growth import MOST_DAYS, DayUse
from bookwarden.pipelines.columns.tables import Columns, rows_in
from bookwarden.pipelines.folders import Folder

_DAYS: Final = "days"
_USE: Final = Columns(DayUse)


class DiskHistory:
    """The days in a folder. Raises OSError where that cannot be read or written."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

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
