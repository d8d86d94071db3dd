"""A difference as a flat row, in JSON and in files; times in milliseconds since the epoch, sizes in bytes."""

from __future__ import annotations

from typing import Any, Final

from bookwarden.migration.comparison.differences import Difference, Side

_STORES: Final = ("source", "target")

TEXT_COLUMNS: Final = ("class", "path")
# None for a side without a node, and where no byte differs.
NUMBER_COLUMNS: Final = ("first_byte", *(f"{store}_{field}" for store in _STORES for field in Side._fields))


def row_of(difference: Difference) -> dict[str, Any]:
    """Convert a difference to a flat row."""
    row: dict[str, Any] = {"class": difference.kind.value, "path": difference.path, "first_byte": difference.first_byte}
    for name, side in zip(_STORES, (difference.source, difference.target), strict=True):
        row |= {f"{name}_{field}": None if side is None else getattr(side, field) for field in Side._fields}
    return row
