"""Streaming reads of the source `pulsar`: offsets, acknowledgement, limits, discovery, losses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from bookwarden.clusters.pulsar.rest.topic_positions import (
    create_subscription,
    move_subscription,
    read_positions,
    topic_path,
)
from bookwarden.ledgers.managed_ledger import Position
from bookwarden_dev.devcluster import DevCluster
from servers.pulsar_topics import TopicUnderTest
from servers.waiting import eventually
from spark.pulsar_streams import collecting, drain, running, start

pytestmark = pytest.mark.servers

SUB = {"subscription": "job"}


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%05d" % number for number in range(first, last)]


@pytest.fixture
def topic(pulsar_cluster: DevCluster, namespace: str) -> TopicUnderTest:
    return TopicUnderTest(pulsar_cluster.connection(), namespace, "events", 2)


def test_available_now_drains_resumes_and_leaves_no_backlog(
    spark: SparkSession, topic: TopicUnderTest, tmp_path: Path
) -> None:
    topic.send(numbered(0, 300))
    assert sorted(drain(spark, topic, tmp_path, **SUB)) == numbered(0, 300)
    assert topic.backlog("job") == 0
    topic.send(numbered(300, 400))
    assert sorted(drain(spark, topic, tmp_path, **SUB)) == numbered(300, 400)
    assert drain(spark, topic, tmp_path, **SUB) == []
    assert topic.backlog("job") == 0


def test_a_running_query_acknowledges_its_last_batch(
    spark: SparkSession, topic: TopicUnderTest, tmp_path: Path
) -> None:
    found: list[Any] = []
    topic.send(numbered(0, 50))
    with running(spark, topic, tmp_path, collecting(found), **SUB):
        eventually(lambda: len(found) == 50, 120)
        eventually(lambda: topic.backlog("job") == 0, 120)
        topic.send(numbered(50, 60))
        eventually(lambda: len(found) == 60, 120)
        eventually(lambda: topic.backlog("job") == 0, 120)
    assert sorted(map(bytes, found)) == numbered(0, 60)


def test_the_subscription_makes_the_checkpoint_disposable(
    spark: SparkSession, topic: TopicUnderTest, tmp_path: Path
) -> None:
    topic.send(numbered(0, 50))
    assert sorted(drain(spark, topic, tmp_path / "first", **SUB)) == numbered(0, 50)
    topic.send(numbered(50, 60))
    assert sorted(drain(spark, topic, tmp_path / "second", **SUB)) == numbered(50, 60)


def fail(spark: SparkSession, topic: TopicUnderTest, checkpoint: Path) -> None:
    """Read what is there, and end when it was read."""

    def broken(batch: DataFrame, number: int) -> None:
        collecting([])(batch, number)
        raise ValueError("the sink is broken")

    with pytest.raises(StreamingQueryException, match="the sink is broken"):
        start(spark, topic, checkpoint, broken, **SUB).awaitTermination()


def test_a_failed_batch_is_replayed_and_not_acknowledged(
    spark: SparkSession, topic: TopicUnderTest, tmp_path: Path
) -> None:
    topic.send(numbered(0, 20), 0, batching_enabled=False)
    fail(spark, topic, tmp_path)
    assert topic.backlog("job") == 20
    topic.send(numbered(20, 30), 0, batching_enabled=False)
    assert drain(spark, topic, tmp_path, **SUB) == numbered(0, 30)
    assert topic.backlog("job") == 0


def test_a_failed_batch_is_replayed_though_a_partition_without_messages_has_another_ledger(
    spark: SparkSession, topic: TopicUnderTest, tmp_path: Path
) -> None:
    topic.send(numbered(0, 20), 0)
    assert drain(spark, topic, tmp_path, **SUB) == numbered(0, 20)
    topic.unload()
    topic.send(numbered(20, 30), 0)
    planned = topic.positions(1).latest
    fail(spark, topic, tmp_path)
    topic.unload()
    assert planned < topic.positions(1).earliest
    assert drain(spark, topic, tmp_path, **SUB) == numbered(20, 30)


def test_without_a_subscription_nothing_is_left_on_the_broker(
    spark: SparkSession, topic: TopicUnderTest, tmp_path: Path
) -> None:
    topic.send(numbered(0, 30))
    assert sorted(drain(spark, topic, tmp_path, startingOffsets="earliest")) == numbered(0, 30)
    assert topic.positions(0).cursors == {}


def test_latest_starts_behind_what_is_there(spark: SparkSession, topic: TopicUnderTest, tmp_path: Path) -> None:
    topic.send(numbered(0, 30))
    assert drain(spark, topic, tmp_path) == []
    topic.send(numbered(30, 40))
    assert sorted(drain(spark, topic, tmp_path)) == numbered(30, 40)


def test_positions_start_behind_the_entry_they_name(spark: SparkSession, topic: TopicUnderTest, tmp_path: Path) -> None:
    topic.send(numbered(0, 4), 0, batching_enabled=False)
    first = topic.positions(0).earliest.ledger_id
    starting = f'{{"{topic.partitions[0]}": "{first}:1", "{topic.partitions[1]}": "earliest"}}'
    assert drain(spark, topic, tmp_path, startingOffsets=starting, **SUB) == numbered(2, 4)
    assert topic.backlog("job") == 0


def test_an_explicit_earlier_start_takes_the_subscription_along(
    spark: SparkSession, topic: TopicUnderTest, tmp_path: Path
) -> None:
    topic.send(numbered(0, 4), 0, batching_enabled=False)
    assert len(drain(spark, topic, tmp_path / "first", **SUB)) == 4
    assert drain(spark, topic, tmp_path / "second", startingOffsets="earliest", **SUB) == numbered(0, 4)
    assert topic.backlog("job") == 0


def test_entries_per_batch_are_capped_and_shared(spark: SparkSession, topic: TopicUnderTest, tmp_path: Path) -> None:
    topic.send(numbered(0, 24), 0, batching_enabled=False)
    topic.send(numbered(24, 36), 1, batching_enabled=False)
    batches: list[tuple[int, set[int]]] = []

    def note(batch: DataFrame, _number: int) -> None:
        rows = batch.select("partition").collect()
        batches.append((len(rows), {row[0] for row in rows}))

    start(spark, topic, tmp_path, note, maxEntriesPerTrigger="8", **SUB).awaitTermination()
    assert sum(size for size, _ in batches) == 36
    assert max(size for size, _ in batches) == 8
    assert [partitions for _, partitions in batches[:3]] == [{0, 1}] * 3


def test_rows_per_batch_are_capped_by_whole_entries(spark: SparkSession, topic: TopicUnderTest, tmp_path: Path) -> None:
    for first in range(0, 60, 10):
        topic.send(numbered(first, first + 10), 0, batching_max_publish_delay_ms=5000)
    sizes: list[int] = []
    sink = lambda batch, _number: sizes.append(batch.count())  # noqa: E731  # foreachBatch wants a function
    start(spark, topic, tmp_path, sink, maxRowsPerTrigger="20", **SUB).awaitTermination()
    assert sizes == [20, 20, 20]


def test_partitions_that_are_added_are_read_from_their_start(
    spark: SparkSession, topic: TopicUnderTest, tmp_path: Path
) -> None:
    found: list[Any] = []
    with running(spark, topic, tmp_path, collecting(found), partitionDiscoverySeconds="0.2", **SUB):
        topic.send(numbered(0, 10))
        eventually(lambda: len(found) == 10, 120)
        topic.add_partitions(3)
        topic.send(numbered(10, 20), 2)
        eventually(lambda: len(found) == 20, 120)
        eventually(lambda: topic.backlog("job") == 0, 120)
    assert sorted(map(bytes, found)) == numbered(0, 20)


def test_topics_that_come_to_match_are_read_from_their_start(
    spark: SparkSession, topic: TopicUnderTest, tmp_path: Path
) -> None:
    found: list[Any] = []
    options = {"topicsPattern": f"persistent://{topic.namespace}/ev.*", "partitionDiscoverySeconds": "0.2"}
    with running(spark, topic, tmp_path, collecting(found), startingOffsets="earliest", **options):
        topic.send(numbered(0, 10))
        eventually(lambda: len(found) == 10, 120)
        later = TopicUnderTest(topic.connection, topic.namespace, "evening", 0)
        later.send(numbered(10, 20))
        eventually(lambda: len(found) == 20, 120)
    assert sorted(map(bytes, found)) == numbered(0, 20)


def test_an_acknowledged_topic_that_was_trimmed_goes_on(
    spark: SparkSession, pulsar_cluster: DevCluster, namespace: str, tmp_path: Path
) -> None:
    topic = TopicUnderTest(pulsar_cluster.connection(), namespace, "trimmed", retained=False)
    create_subscription(topic.admin, topic.partitions[0], "job", topic.positions().earliest)
    topic.send(numbered(0, 25), 0, batching_enabled=False)
    assert drain(spark, topic, tmp_path, **SUB) == numbered(0, 25)
    topic.roll_and_trim()
    assert drain(spark, topic, tmp_path, **SUB) == [b"rolls the ledger"]


def test_data_trimmed_behind_the_checkpoint_is_an_error_or_passed_over(
    spark: SparkSession, pulsar_cluster: DevCluster, namespace: str, tmp_path: Path
) -> None:
    topic = TopicUnderTest(pulsar_cluster.connection(), namespace, "trimmed", retained=False)
    start_here = {"startingOffsets": "earliest"}
    assert drain(spark, topic, tmp_path, **start_here) == []
    topic.send(numbered(0, 5), 0, batching_enabled=False)
    assert drain(spark, topic, tmp_path, **start_here) == numbered(0, 5)
    topic.send(numbered(5, 9), 0, batching_enabled=False)
    topic.roll_and_trim()
    with pytest.raises(StreamingQueryException, match="DataGoneError"):
        drain(spark, topic, tmp_path, **start_here)
    assert drain(spark, topic, tmp_path, failOnDataLoss="false", **start_here) == [b"rolls the ledger"]


def test_a_subscription_moved_past_the_checkpoint_is_an_error(
    spark: SparkSession, topic: TopicUnderTest, tmp_path: Path
) -> None:
    topic.send(numbered(0, 5), 0, batching_enabled=False)
    assert len(drain(spark, topic, tmp_path, **SUB)) == 5
    topic.send(numbered(5, 9), 0, batching_enabled=False)
    partition = topic.partitions[0]
    move_subscription(topic.admin, partition, "job", read_positions(topic.admin, partition).latest)
    with pytest.raises(StreamingQueryException, match="existing entries past"):
        drain(spark, topic, tmp_path, **SUB)


def test_a_topic_made_anew_under_an_old_checkpoint_is_an_error(
    spark: SparkSession, topic: TopicUnderTest, tmp_path: Path
) -> None:
    topic.send(numbered(0, 5))
    assert len(drain(spark, topic, tmp_path, startingOffsets="earliest")) == 5
    topic.admin.delete(f"{topic_path(topic.name)}/partitions", params={"force": True})
    topic.admin.put(f"{topic_path(topic.name)}/partitions", 2)
    topic.send(numbered(5, 9))
    with pytest.raises(StreamingQueryException, match="DataGoneError"):
        drain(spark, topic, tmp_path, startingOffsets="earliest")


def test_a_subscription_removed_by_somebody_is_put_back_where_it_was(
    spark: SparkSession, topic: TopicUnderTest, tmp_path: Path
) -> None:
    topic.send(numbered(0, 5), 0, batching_enabled=False)
    assert len(drain(spark, topic, tmp_path, **SUB)) == 5
    topic.admin.delete(f"{topic_path(topic.name)}/subscription/job", params={"force": True})
    topic.send(numbered(5, 9), 0, batching_enabled=False)
    assert drain(spark, topic, tmp_path, **SUB) == numbered(5, 9)
    assert topic.backlog("job") == 0


def test_an_existing_subscription_is_where_reading_starts(
    spark: SparkSession, topic: TopicUnderTest, tmp_path: Path
) -> None:
    topic.send(numbered(0, 5), 0, batching_enabled=False)
    first = topic.positions(0).earliest.ledger_id
    create_subscription(topic.admin, topic.partitions[0], "job", Position(first, 2))
    assert drain(spark, topic, tmp_path, **SUB) == numbered(3, 5)
