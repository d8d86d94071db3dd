"""Times as they travel in marks and metadata: milliseconds since the epoch, by clocks that may be wrong."""

from __future__ import annotations

from typing import Final

# The end of the year 9999: tables, and most who read them, know no later one.
LAST_MS: Final = 253_402_300_799_999


def is_time(milliseconds: int) -> bool:
    """Return whether a number can be a time that a clock told."""
    return 0 <= milliseconds <= LAST_MS
