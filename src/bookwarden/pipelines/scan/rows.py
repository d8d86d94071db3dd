"""Tables of a scan's folder as Spark's DataFrames.

Tasks read the files through `Folder`, as all others do. Spark's own readers would go through Hadoop's file systems,
which need a client and settings of their own for each store of objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from bookwarden.pipelines.columns.tables import Columns
from bookwarden.pipelines.scan.files import ScanFolder

_PIECES_PER_TASK = 8


@dataclass(frozen=True)
class _ReadRows:
    """Reads pieces of a table, by their numbers."""

    location: str
    table: str
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        folder = ScanFolder(self.location)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from folder.read(self.table, number, self.schema.names).cast(self.schema).to_batches()


def read_table(spark: SparkSession, folder: ScanFolder, table: str, columns: Columns) -> DataFrame:
    """Read a table of a scan's folder."""
    numbers = sorted(folder.finished(table))
    tasks = max(1, -(-len(numbers) // _PIECES_PER_TASK))
    pieces = spark.createDataFrame([(number,) for number in numbers], "number INT NOT NULL").repartition(tasks)
    read = _ReadRows(folder.folder.location, table, columns.arrow)
    return pieces.mapInArrow(read, columns.spark)


def read_tables(spark: SparkSession, folder: ScanFolder, tables: Iterable[str], columns: Columns) -> DataFrame:
    """Read several tables of a scan's folder, with the same columns, as one."""
    return reduce(DataFrame.union, (read_table(spark, folder, table, columns) for table in tables))
