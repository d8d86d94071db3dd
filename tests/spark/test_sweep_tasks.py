"""How many tasks of a batch delete ledgers at the same time, and what a killed daemon leaves of those who run them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark import TaskContext, cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from bookwarden.config import load_settings
from bookwarden.pipelines.sweep.query import divided_among_tasks
from bookwarden.pipelines.workers import end_with_daemon
from bookwarden.processes import ProcessIdentity, identify
from bookwarden.wiring.stores import has_one_writer
from servers.waiting import eventually

PARTITIONS = 4
# Spark's workers cannot import the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


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
    rows = (
        divided_among_tasks(received, one_writer=has_one_writer(settings.metadata_store))
        .mapInArrow(tasks, "task long")
        .collect()
    )
    assert len(rows) == 100
    assert len({row.task for row in rows}) == expected


def workers(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Say which process did it, and its parent, as each task of the sweep begins."""
    end_with_daemon()
    rows = sum(batch.num_rows for batch in batches)
    yield pa.record_batch({"worker": [os.getpid()] * rows, "daemon": [os.getppid()] * rows})


def test_a_killed_daemon_leaves_no_worker(spark: SparkSession) -> None:
    def run() -> tuple[set[int], set[int]]:
        found = spark.range(0, 8, numPartitions=2).mapInArrow(workers, "worker long, daemon long").collect()
        return {row.worker for row in found}, {row.daemon for row in found}

    before, (daemon,) = run()
    identities: list[ProcessIdentity | None] = [identify(worker) for worker in before]
    os.kill(daemon, signal.SIGKILL)
    eventually(lambda: not any(found and found.is_alive() for found in identities), 60)

    def run_again() -> tuple[set[int], set[int]] | None:
        try:
            return run()
        except (Py4JJavaError, PySparkException):
            # Where nobody reaps what has ended, Spark takes such a worker for alive, and a task fails for it once.
            return None

    after, (another,) = eventually(run_again, 120)
    assert another != daemon
    assert not after & before
