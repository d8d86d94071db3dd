"""A difference as a flat row, in JSON and in files; times in milliseconds since the epoch, sizes in bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bookwarden.migration.comparison.differences import Difference, DifferenceClass, Side

_STORES: Final = ("source", "target")

TEXT_COLUMNS: Final = ("class", "path")
# None where there is no node on that side, and no byte that differs.
NUMBER_COLUMNS: Final = ("first_byte", *(f"{store}_{field}" for store in _STORES for field in Side._fields))


def row_of(difference: Difference) -> dict[str, Any]:
    """Lay out a difference flat."""
    row: dict[str, Any] = {"class": difference.kind.value, "path": difference.path, "first_byte": difference.first_byte}
    for name, side in zip(_STORES, (difference.source, difference.target), strict=True):
        row |= {f"{name}_{field}": None if side is None else getattr(side, field) for field in Side._fields}
    return row


def difference_of(row: Mapping[str, Any]) -> Difference:
    """Make the difference again that a row was made of."""
    source, target = (_side_of(row, name) for name in _STORES)
    return Difference(DifferenceClass(row["class"]), row["path"], source, target, row["first_byte"])


def _side_of(row: Mapping[str, Any], store: str) -> Side | None:
    return None if row[f"{store}_version"] is None else Side(*(row[f"{store}_{field}"] for field in Side._fields))
