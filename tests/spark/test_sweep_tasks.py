"""How many tasks of a batch delete ledgers at the same time: one alone where the metadata store breaks under two."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from bookwarden.config import load_settings
from bookwarden.context import has_one_writer
from bookwarden.pipelines.ledger_deletion import divided_among_tasks

PARTITIONS = 4


def tasks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Say for each row which task had it."""
    task = TaskContext.get()
    assert task is not None
    for batch in batches:
        yield pa.record_batch({"task": [task.taskAttemptId()] * batch.num_rows})


@pytest.mark.parametrize(("url", "expected"), [("oxia://o:6648/default", 1), ("zk:z:2181", PARTITIONS)])
def test_one_task_does_all_of_a_batch_on_oxia(spark: SparkSession, url: str, expected: int) -> None:
    settings = load_settings(overrides={"metadata_store.urls": f"['{url}']"})
    received = spark.range(0, 100, numPartitions=PARTITIONS)
    rows = divided_among_tasks(received, one_writer=has_one_writer(settings)).mapInArrow(tasks, "task long").collect()
    assert len(rows) == 100
    assert len({row.task for row in rows}) == expected
