"""Signs of life of a task that takes long: rows that mean nothing, seen in Spark's own figures.

A batch may take much longer than `sweep.stall_seconds`: by a limit on what stores are asked, or since they are slow.
Nothing of a running Python worker reaches the driver but how many rows it gave so far, which the executors report with
their heartbeats. So a task that gets on gives such a row now and then, and the supervisor looks at the figures.
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
# What a worker gives stays in its buffer until that is full (pyspark/daemon.py); a beat fills it.
_BUFFER: Final = 65_536
# The running batch and what it consists of are the youngest; Spark keeps a thousand that have ended.
_YOUNGEST: Final = 4


def with_beats(steps: Iterator[_T], signs: Callable[[], int], beat: _T, *, stall: float) -> Iterator[_T]:
    """Yield what the steps give, and `beat` now and then while a step gets on: several times in a `stall`, in seconds.

    ``signs`` is a number that changes as long as it does. The steps run in a thread of their own, one after the other,
    each when the one before it was taken; what they raise is raised here.
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
    """Make a text that brings a row to the driver's side at once, however small it is."""
    return " " * int(os.environ.get("SPARK_BUFFER_SIZE", _BUFFER))


def figures_of(spark: SparkSession) -> Callable[[], str]:
    """Make a function that tells the figures of what runs now, as a text that changes when a task has given rows."""

    def look() -> str:
        session: Any = spark._jsparkSession
        store = session.sharedState().statusStore()
        youngest = store.executionsList(max(0, store.executionsCount() - _YOUNGEST), _YOUNGEST)
        running = [youngest.apply(number) for number in range(youngest.size())]
        ids = [execution.executionId() for execution in running if execution.completionTime().isEmpty()]
        return " ".join(f"{number}: {store.executionMetrics(number).toString()}" for number in ids)

    return look


def without_beats(rows: DataFrame, column: str) -> DataFrame:
    """Leave out the rows that mean nothing, which have an empty text in the column."""
    return rows.where(f"{column} <> ''")
