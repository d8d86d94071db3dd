"""Times as they travel in marks and metadata: milliseconds since the epoch, by clocks that may be wrong."""

from __future__ import annotations

from typing import Final

# The end of the year 9999: tables, and most of their readers, know no later time.
LAST_MS: Final = 253_402_300_799_999


def is_time(milliseconds: int) -> bool:
    """Return whether a number can be the time of a clock."""
    return 0 <= milliseconds <= LAST_MS
