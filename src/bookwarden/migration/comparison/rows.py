"""A difference as a flat row, in JSON and in files; times in milliseconds since the epoch, sizes in bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bookwarden.migration.comparison.differences import Difference, DifferenceClass, Side

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


def difference_of(row: Mapping[str, Any]) -> Difference:
    """Convert a row back to its difference."""
    source, target = (_side_of(row, name) for name in _STORES)
    return Difference(DifferenceClass(row["class"]), row["path"], source, target, row["first_byte"])


def _side_of(row: Mapping[str, Any], store: str) -> Side | None:
    return None if row[f"{store}_version"] is None else Side(*(row[f"{store}_{field}"] for field in Side._fields))
