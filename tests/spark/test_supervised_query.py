"""The supervisor over real queries that hang in a task, in planning and in the driver, or have nothing to do."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bookwarden.errors import SparkError
from bookwarden.pipelines.session import SPARK_DEFAULTS
from bookwarden.pipelines.streams.supervisor import Pulse, StreamLimits, Supervisor, attach
from servers.waiting import eventually
from spark.gated_source import Gates, register

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

IDLE_EVENTS = "spark.sql.streaming.noDataProgressEventInterval"
STOP_TIMEOUT = "spark.sql.streaming.stopTimeout"
# Shorter than Spark's own time between idle events, and longer than a query takes for its first batch, unless the
# machine is slow.
STALL = 6.0


class Stream:
    """A supervised query over numbers, whose outcome is a file for each batch as in the sweep."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._checkpoint = folder / "checkpoint"
        self._outcome = folder / "outcome"
        self._outcome.mkdir()
        self.gates = Gates(folder)
        self.pulse = Pulse()
        self.queries: list[StreamingQuery] = []
        self.failures: list[int] = []
        self.error: SparkError | None = None
        self.stall = STALL

    def warm_up(self) -> None:
        """Go through ten numbers twice, and take for a stall what is much longer than the second time."""
        for numbers in (10, 20):
            self.gates.offer(numbers)
            begun = time.monotonic()
            query = self.start()
            eventually(lambda: self.outcome() == list(range(self.gates.offered())), 240)
            self.stall = max(STALL, 3 * (time.monotonic() - begun))
            query.stop()
        self.queries.clear()

    def start(self) -> StreamingQuery:
        stream = self._spark.readStream.format("gated_numbers").option("folder", str(self.gates.folder)).load()
        writer = stream.writeStream.foreachBatch(self._batch).option("checkpointLocation", str(self._checkpoint))
        self.queries.append(writer.trigger(processingTime="0 seconds").start())
        return self.queries[-1]

    def _batch(self, batch: DataFrame, number: int) -> None:
        self.pulse.enter(number)
        finished = False
        try:
            numbers = [row.number for row in batch.collect()]
            self.gates.pass_through("driver")
            unfinished = self._outcome.parent / "unfinished"
            unfinished.write_text(json.dumps(numbers))
            unfinished.replace(self._outcome / str(number))
            finished = True
        finally:
            self.pulse.leave(number, finished=finished)

    def outcome(self) -> list[int]:
        """All numbers of the outcome, in order; one that is there twice is in here twice."""
        return sorted(number for file in self._outcome.iterdir() for number in json.loads(file.read_text()))

    @contextmanager
    def supervised(self, *, stop_timeout: float = 60.0) -> Iterator[None]:
        limits = StreamLimits(stall=self.stall, max_failures=20, backoff=0.2, stop_timeout=stop_timeout)
        supervisor = Supervisor(self.start, self.pulse, limits, on_failures=self.failures.append)

        def run() -> None:
            try:
                supervisor.run()
            except SparkError as error:
                self.error = error

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            supervisor.stop()
            thread.join(120)
            assert not thread.is_alive()


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Iterator[Stream]:
    """A stream with the sweep's own settings of Spark, which has gone through twenty numbers before."""
    register(spark)
    spark.conf.set(IDLE_EVENTS, SPARK_DEFAULTS[IDLE_EVENTS])
    made = Stream(spark, tmp_path)
    made.warm_up()
    attach(spark, made.pulse)
    yield made
    for gate in ("plan", "read", "driver"):
        made.gates.open(gate)
    for query in made.queries:
        query.stop()
    spark.streams.removeListener(made.pulse)
    spark.conf.unset(IDLE_EVENTS)


@pytest.mark.parametrize("gate", ["read", "plan"])
def test_a_query_that_hangs_is_restarted_and_goes_on_from_its_checkpoint(stream: Stream, gate: str) -> None:
    with stream.supervised():
        eventually(lambda: stream.queries, 60)
        stream.gates.shut(gate)
        stream.gates.offer(30)
        eventually(lambda: stream.gates.reached(gate), 60)
        hung = stream.queries[-1]
        eventually(lambda: not hung.isActive, 20 * stream.stall)
        assert stream.outcome() == list(range(20))
        eventually(lambda: len(stream.queries) > stream.queries.index(hung) + 1, 60)
        stream.gates.open(gate)
        eventually(lambda: stream.outcome() == list(range(30)), 120)
        eventually(lambda: stream.failures[-1] == 0)
    assert stream.error is None
    assert stream.failures[0] == 1
    assert {query.id for query in stream.queries} == {hung.id}, "the checkpoint was not gone on from"


@pytest.mark.parametrize("spark_gives_up", [False, True])
def test_a_query_whose_stop_hangs_ends_the_supervisor_and_no_second_one_begins(
    stream: Stream, spark: SparkSession, spark_gives_up: bool, caplog: pytest.LogCaptureFixture
) -> None:
    usual = spark.conf.get(STOP_TIMEOUT)
    if spark_gives_up:
        # Then stop() returns with an error while the query goes on.
        spark.conf.set(STOP_TIMEOUT, "1s")
    try:
        with stream.supervised(stop_timeout=20 if spark_gives_up else 2), caplog.at_level(logging.WARNING):
            stream.gates.shut("driver")
            stream.gates.offer(30)
            eventually(lambda: stream.gates.reached("driver"), 60)
            begun = len(stream.queries)
            eventually(lambda: stream.error, 120)
    finally:
        spark.conf.set(STOP_TIMEOUT, usual)
    assert "did not stop" in str(stream.error)
    assert len(stream.queries) == begun
    assert stream.outcome() == list(range(20))
    assert ("while stopping" in caplog.text) is spark_gives_up


def test_a_query_without_anything_to_do_is_left_alone(stream: Stream) -> None:
    with stream.supervised():
        stream.gates.offer(30)
        eventually(lambda: stream.outcome() == list(range(30)), 120)
        started, idle_since = len(stream.queries), time.monotonic()
        eventually(lambda: time.monotonic() - idle_since > 1.5 * stream.stall, 10 * stream.stall)
        stream.gates.offer(40)
        eventually(lambda: stream.outcome() == list(range(40)), 120)
        assert len(stream.queries) == started
    assert stream.error is None
