"""What is told of a Spark error: the line in which the Python worker says what happened."""

from __future__ import annotations

import pytest

from bookwarden.pipelines.streams.supervisor import describe_cause

# As Spark 4.2 writes it, each traceback cut short.
OF_A_WORKER = """An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "/x/py4j/clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/x/pyspark/worker.py", line 4207, in invoke_udf
    func, profiler, deserializer, serializer = read_udfs(
           ^^^^^^^^^^^^^^^^^
pyspark.errors.exceptions.captured.PythonException: An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/x/pyspark/worker.py", line 4207, in invoke_udf
    func, profiler, deserializer, serializer = read_udfs(
                                               ^^^^^^^^^^
{raised}


\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:1)
Driver stacktrace:
Caused by: org.apache.spark.api.python.PythonException: Traceback
"""
ARROW = "pyarrow.lib.ArrowInvalid: Casting from timestamp[ms] to timestamp[us] would result in out of bounds timestamp"


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (ARROW, ARROW),
        ("bookwarden.errors.DataGoneError: entry 5:1 is gone; go on", "DataGoneError: entry 5:1 is gone; go on"),
        ("KeyError: 'ledger'", "KeyError: 'ledger'"),
        ("AssertionError", "AssertionError"),
        ("struct.error: unpack requires a buffer", "struct.error: unpack requires a buffer"),
        (
            "ValueError: first\n\nThe above was the cause:\n\nTraceback (most recent call last):\n  x\nOSError: 2",
            "OSError: 2",
        ),
    ],
)
def test_the_cause_is_the_last_line_of_the_workers_traceback(raised: str, told: str) -> None:
    assert describe_cause(RuntimeError(OF_A_WORKER.format(raised=raised))) == told


def test_without_a_traceback_it_is_the_named_error_or_the_first_line() -> None:
    assert describe_cause(RuntimeError("Job aborted\n  bookwarden.errors.StoreError: no\n")) == "StoreError: no"
    assert describe_cause(RuntimeError("org.apache.X: one\nat y")) == "org.apache.X: one"
    assert describe_cause(RuntimeError("")) == "RuntimeError('')"
