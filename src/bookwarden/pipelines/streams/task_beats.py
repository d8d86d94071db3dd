"""Signs of life of a long task: padding rows, seen in Spark's own figures.

A batch may take much longer than `sweep.stall_seconds`, because of limits on requests to stores, or of slow stores.
The driver learns nothing of a running Python worker but the number of rows it has returned so far, which executors
report with their heartbeats. So a task that makes progress returns a padding row now and then.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, Final, TypeVar

from pyspark.sql import DataFrame, SparkSession

_T = TypeVar("_T")

_BEAT_SECONDS: Final = 10.0
_BEATS_IN_A_STALL: Final = 6
# The rows of a worker stay in its buffer until that is full (pyspark/daemon.py); a beat fills it.
_BUFFER: Final = 65_536
# The running batch and its stages are the youngest; Spark keeps a thousand that have ended.
_YOUNGEST: Final = 4


def with_beats(steps: Iterator[_T], signs: Callable[[], int], beat: _T, *, stall: float) -> Iterator[_T]:
    """Yield the steps' batches, and `beat` while a step makes progress: several times in a `stall`, in seconds.

    ``signs`` returns a number that changes with progress. The steps run in a thread of their own, one after the other,
    each when the one before was taken; their errors are raised here.
    """
    with ThreadPoolExecutor(1, "steps") as thread:
        seen, every = signs(), min(_BEAT_SECONDS, stall / _BEATS_IN_A_STALL)
        while True:
            step = thread.submit(next, steps, None)
            while not wait((step,), every).done:
                before, seen = seen, signs()
                if seen != before:
                    yield beat
            given = step.result()
            if given is None:
                return
            yield given


def padding() -> str:
    """Make a text that fills the worker's buffer, so that its row reaches the JVM at once."""
    return " " * int(os.environ.get("SPARK_BUFFER_SIZE", _BUFFER))


def figures_of(spark: SparkSession) -> Callable[[], str]:
    """Make a function that returns the figures of running tasks, as a text that changes when one has returned rows."""

    def look() -> str:
        session: Any = spark._jsparkSession
        store = session.sharedState().statusStore()
        youngest = store.executionsList(max(0, store.executionsCount() - _YOUNGEST), _YOUNGEST)
        running = [youngest.apply(number) for number in range(youngest.size())]
        ids = [execution.executionId() for execution in running if execution.completionTime().isEmpty()]
        return " ".join(f"{number}: {store.executionMetrics(number).toString()}" for number in ids)

    return look


def without_beats(rows: DataFrame, column: str) -> DataFrame:
    """Drop the padding rows, which have an empty text in the column."""
    return rows.where(f"{column} <> ''")
