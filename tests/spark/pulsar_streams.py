"""Streaming queries over a topic under test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bookwarden.pipelines.pulsar_source import options_of
from servers.pulsar_topics import TopicUnderTest

Sink = Callable[[DataFrame, int], None]


def start(
    spark: SparkSession, topic: TopicUnderTest, checkpoint: Path, sink: Sink, *, once: bool = True, **options: str
) -> StreamingQuery:
    """Start a query; with ``once`` it ends when it has read what is there."""
    chosen = {"topics": topic.name, **options} if "topicsPattern" not in options else options
    stream = spark.readStream.format("pulsar").options(**options_of(topic.connection)).options(**chosen).load()
    writer = stream.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    return writer.trigger(availableNow=True).start() if once else writer.trigger(processingTime="0 seconds").start()


def drain(spark: SparkSession, topic: TopicUnderTest, checkpoint: Path, **options: str) -> list[bytes]:
    """Read what is there with Trigger.AvailableNow and return the values."""
    found: list[Any] = []
    start(spark, topic, checkpoint, collecting(found), **options).awaitTermination()
    return [bytes(value) for value in found]


@contextmanager
def running(
    spark: SparkSession, topic: TopicUnderTest, checkpoint: Path, sink: Sink, **options: str
) -> Iterator[StreamingQuery]:
    """Run a query inside the block."""
    query = start(spark, topic, checkpoint, sink, once=False, **options)
    try:
        yield query
    finally:
        query.stop()


def collecting(found: list[Any], column: str = "value") -> Sink:
    """Return a sink that appends one column of every row to a list."""

    def append(batch: DataFrame, _number: int) -> None:
        found.extend(row[0] for row in batch.select(column).collect())

    return append
