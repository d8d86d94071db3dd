"""A Spark that does a little of what bookwarden's do, so that its classes are recorded; see class_archives."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow
from pyspark.sql import DataFrame, SparkSession

from bookwarden.pipelines import own_jvm as jvms


def _as_they_are(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    yield from batches


def _collect(batch: DataFrame, _: int) -> None:
    batch.mapInArrow(_as_they_are, batch.schema).collect()


def _run(spark: SparkSession, folder: Path) -> None:
    table = str(folder / "table")
    spark.range(100).selectExpr("id", "id % 7 AS part", "cast(id AS string) AS name").write.parquet(table)
    read = spark.read.parquet(table)
    read.groupBy("part").count().orderBy("part").collect()
    read.join(spark.range(10), "id", "left_anti").mapInArrow(_as_they_are, read.schema).toArrow()
    writer = spark.readStream.schema(read.schema).parquet(table).writeStream.foreachBatch(_collect)
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()


def main() -> None:
    """Run queries in the folder that is named, and wait until the JVM has ended."""
    # It writes its archive last, for a minute on a busy machine.
    jvms._JVM_SECONDS = 200.0
    with jvms.own_jvm() as jvm:
        builder = SparkSession.builder.master("local[2]").config(map=jvm.properties).config("spark.ui.enabled", "false")
        spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
        try:
            _run(spark, Path(sys.argv[1]))
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
