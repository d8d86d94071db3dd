"""Tables of a comparison: differences, and the nodes still to be compared."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from bookwarden.migration.comparison.differences import Difference
from bookwarden.migration.comparison.rows import NUMBER_COLUMNS, TEXT_COLUMNS, row_of
from bookwarden.migration.walking import Directory, Unvisited

DIFFERENCES = pa.schema(
    [
        *(pa.field(name, pa.string(), nullable=False) for name in TEXT_COLUMNS),
        *(pa.field(name, pa.int64()) for name in NUMBER_COLUMNS),
    ]
)
# A node to compare with all below it, or a directory that was compared itself, with its number of children if known.
UNVISITED = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("is_directory", pa.bool_(), nullable=False),
        pa.field("children", pa.int64()),
    ]
)
_ROWS_AT_ONCE = 5_000


def difference_table(differences: Sequence[Difference]) -> pa.Table:
    """Lay out differences as rows."""
    parts = [
        pa.Table.from_pylist([row_of(one) for one in differences[at : at + _ROWS_AT_ONCE]], schema=DIFFERENCES)
        for at in range(0, len(differences), _ROWS_AT_ONCE)
    ]
    return pa.concat_tables(parts) if parts else DIFFERENCES.empty_table()


def unvisited_table(left: Unvisited) -> pa.Table:
    """Lay out the rest of a comparison as rows."""
    paths = [*left.paths, *(directory.path for directory in left.directories)]
    are_directories = [False] * len(left.paths) + [True] * len(left.directories)
    children = [None] * len(left.paths) + [directory.children for directory in left.directories]
    return pa.Table.from_arrays(
        [
            pa.array(column, field.type)
            for column, field in zip((paths, are_directories, children), UNVISITED, strict=True)
        ],
        schema=UNVISITED,
    )


def unvisited_in(rows: pa.Table) -> Unvisited:
    """Read the rest of a comparison."""
    paths: list[str] = []
    directories: list[Directory] = []
    for path, is_directory, children in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        if is_directory:
            directories.append(Directory(path, children))
        else:
            paths.append(path)
    return Unvisited(paths, directories)
