"""All differences between two metadata stores in a file, a row for each: Parquet or JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from bookwarden.errors import BookwardenError, ConfigError
from bookwarden.migration.comparison import NUMBER_COLUMNS, TEXT_COLUMNS, DifferenceSink, row_of

_SUFFIXES: Final = (".parquet", ".jsonl")
_ROWS_IN_GROUP: Final = 50_000


class _RowFile(Protocol):
    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        """Write some rows."""

    def close(self) -> None:
        """Write the remaining rows."""


@contextmanager
def difference_file(path: Path | None) -> Iterator[DifferenceSink]:
    """Return a writer of differences to a file, which appears once it has all of them; None writes none.

    It then replaces a file of that name. Raises ConfigError for another suffix than .parquet and .jsonl.
    """
    if path is None:
        yield lambda _: None
        return
    if path.suffix not in _SUFFIXES:
        raise ConfigError(f"{path} is no file for differences: its name must end with {' or '.join(_SUFFIXES)}")
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        rows: _RowFile = _JsonLines(unfinished) if path.suffix == ".jsonl" else _parquet_file(unfinished)
        try:
            yield lambda differences: rows.write([row_of(one) for one in differences])
        finally:
            rows.close()
        unfinished.replace(path)
    except OSError as error:
        raise BookwardenError(f"the differences cannot be written to {path}: {error}") from error
    finally:
        unfinished.unlink(missing_ok=True)


class _JsonLines:
    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        self._file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)

    def close(self) -> None:
        self._file.close()


def _parquet_file(path: Path) -> _RowFile:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema(
        [
            *(pa.field(name, pa.string(), nullable=False) for name in TEXT_COLUMNS),
            *(pa.field(name, pa.int64()) for name in NUMBER_COLUMNS),
        ]
    )

    class ParquetRows:
        """Rows in large groups, since a small group is larger than its rows."""

        def __init__(self) -> None:
            self._writer = pq.ParquetWriter(path, schema, compression="zstd")
            self._waiting: list[dict[str, Any]] = []

        def write(self, rows: Sequence[dict[str, Any]]) -> None:
            self._waiting += rows
            if len(self._waiting) >= _ROWS_IN_GROUP:
                self._flush()

        def close(self) -> None:
            try:
                self._flush()
            finally:
                self._writer.close()

        def _flush(self) -> None:
            if self._waiting:
                self._writer.write_table(pa.Table.from_pylist(self._waiting, schema=schema))
                self._waiting = []

    return ParquetRows()
