"""The Pulsar source for Spark: rows a second into Spark's `noop` sink.

Peer: a plain consumer of the Pulsar client in one Python process, that receives and acknowledges each message of
the same topic.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pulsar
from pyspark.sql import SparkSession

from benchmarks.cluster import Site, running_site
from benchmarks.options import Options
from benchmarks.results import compared, publish, say
from bookwarden.pipelines.pulsar_source import PulsarDataSource, options_of
from bookwarden.pipelines.session import running_session
from bookwarden.wiring.pulsar import connection_of

COUNT = 400_000
PARTITIONS = 4
ROWS_PER_BATCH = 200_000
_WARM_UPS = 3
_SIZE = 200
_TOPIC = "persistent://public/default/source"


def run(options: Options) -> None:
    """Run the benchmark."""
    count, rounds = options.scaled(options.count or COUNT), options.rounds or 5
    cap = max(int(ROWS_PER_BATCH * options.scale), 1)
    with running_site() as site, _spark(site) as spark:
        site.admin.put("/persistent/public/default/source/partitions", PARTITIONS)
        _publish(site, count)
        say("warming up Spark")
        for _ in range(_WARM_UPS):
            _stream(spark, site, cap, count)
            _batch(spark, site, count)
        streamed, batched, peer = [], [], []
        for number in range(1, rounds + 1):
            peer.append(count / _consume(site, count))
            streamed.append(count / _stream(spark, site, cap, count))
            batched.append(count / _batch(spark, site, count))
            say(
                f"round {number} of {rounds}: consumer {peer[-1]:,.0f}, stream {streamed[-1]:,.0f}, "
                f"batch read {batched[-1]:,.0f} rows/s"
            )
        publish(
            f"Pulsar source at local[2], {count:,} messages of {_SIZE} bytes on {PARTITIONS} partitions",
            [
                compared("source", "rows/s", streamed, peer, count, ">= 60,000; ratio >= 0.5"),
                compared("source batch read", "rows/s", batched, peer, count),
            ],
        )


@contextmanager
def _spark(site: Site) -> Iterator[SparkSession]:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with running_session(site.settings, local=True) as spark:
        spark.dataSource.register(PulsarDataSource)
        yield spark


def _publish(site: Site, count: int) -> None:
    say(f"publishing {count:,} messages")
    client = connection_of(site.settings.pulsar).client()
    try:
        producer = client.create_producer(
            _TOPIC,
            batching_enabled=True,
            batching_max_messages=1000,
            batching_max_publish_delay_ms=10,
            max_pending_messages=20_000,
            block_if_queue_full=True,
            message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
        )
        for number in range(count):
            producer.send_async(b"%0*d" % (_SIZE, number), _confirmed)
        producer.flush()
    finally:
        client.close()


def _confirmed(result: pulsar.Result, _: pulsar.MessageId) -> None:
    if result != pulsar.Result.Ok:
        # On the client's thread nothing can be raised; the readers count the messages.
        say(f"a message was refused: {result}")


def _consume(site: Site, count: int) -> float:
    client = connection_of(site.settings.pulsar).client()
    try:
        consumer = client.subscribe(_TOPIC, f"plain-{uuid.uuid4()}", initial_position=pulsar.InitialPosition.Earliest)
        started = time.monotonic()
        for _ in range(count):
            consumer.acknowledge(consumer.receive(30_000))
        seconds = time.monotonic() - started
        consumer.unsubscribe()
        return seconds
    finally:
        client.close()


def _stream(spark: SparkSession, site: Site, cap: int, count: int) -> float:
    options = {
        **options_of(connection_of(site.settings.pulsar)),
        "topics": _TOPIC,
        "subscription": f"stream-{uuid.uuid4()}",
        "startingOffsets": "earliest",
        "maxRowsPerTrigger": str(cap),
    }
    checkpoint = Path(site.cluster.home) / "checkpoints" / str(uuid.uuid4())
    query = (
        spark.readStream.format("pulsar")
        .options(**options)
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    rows = sum(progress["numInputRows"] for progress in query.recentProgress)
    if rows != count:
        raise RuntimeError(f"the stream gave {rows} rows, not {count}")
    # The whole of each batch, planning and checkpoint included; not the start of a query, as the peer's leaves out
    # its subscribe.
    return float(sum(progress["durationMs"]["triggerExecution"] for progress in query.recentProgress)) / 1000


def _batch(spark: SparkSession, site: Site, count: int) -> float:
    options = {**options_of(connection_of(site.settings.pulsar)), "topics": _TOPIC, "startingOffsets": "earliest"}
    rows = spark.read.format("pulsar").options(**options).load()
    started = time.monotonic()
    rows.write.format("noop").mode("overwrite").save()
    return time.monotonic() - started
