"""Delayed topics: never early by the time the broker keeps, and never lost."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from bookwarden_dev.devcluster import DevCluster
from servers.pulsar_topics import TopicUnderTest
from servers.waiting import eventually
from spark.pulsar_streams import drain, running

pytestmark = pytest.mark.servers


@pytest.fixture
def topic(pulsar_cluster: DevCluster, namespace: str) -> TopicUnderTest:
    return TopicUnderTest(pulsar_cluster.connection(), namespace, "retry", 2)


def send_delayed(topic: TopicUnderTest, delays_ms: list[int]) -> dict[bytes, int]:
    """Send one message for each delay and return the deliver-at time of each value; delay 0 is none."""
    due: dict[bytes, int] = {}
    with topic.producer(batching_enabled=False) as producer:
        for number, delay_ms in enumerate(delays_ms):
            at = int(time.time() * 1000) + delay_ms
            due[b"%d" % number] = at
            producer.send(b"%d" % number, deliver_at=at if delay_ms else None)
    return due


def test_mixed_delays_are_never_early_and_never_lost(
    spark: SparkSession, topic: TopicUnderTest, tmp_path: Path
) -> None:
    delays = [0, 4000, 500, 0, 6000, 100, 2500, 0, 1500, 3000] * 4
    arrived: dict[bytes, int] = {}

    def note(batch: DataFrame, _number: int) -> None:
        now = int(time.time() * 1000)
        for row in batch.select("value").collect():
            assert bytes(row[0]) not in arrived
            arrived[bytes(row[0])] = now

    options = {"subscription": "job", "delayedTopics": topic.name, "maxDelaySeconds": "7200"}
    with running(spark, topic, tmp_path, note, **options) as query:
        due = send_delayed(topic, delays)
        eventually(lambda: len(arrived) == len(delays) or query.exception() is not None, 120)
        assert query.exception() is None
        eventually(lambda: topic.backlog("job") == 0, 60)
    assert arrived.keys() == due.keys()
    assert [value for value, at in due.items() if arrived[value] < at] == []


def test_available_now_takes_what_is_due_and_leaves_the_rest(
    spark: SparkSession, topic: TopicUnderTest, tmp_path: Path
) -> None:
    options = {"subscription": "job", "delayedTopics": topic.name, "maxDelaySeconds": "7200"}
    topic.send([b"a", b"b"], 0, batching_enabled=False)
    with topic.producer(0, batching_enabled=False) as producer:
        producer.send(b"later", deliver_at=int(time.time() * 1000) + 3_600_000)
    topic.send([b"behind"], 0, batching_enabled=False)
    assert drain(spark, topic, tmp_path, **options) == [b"a", b"b"]
    assert topic.backlog("job") == 2


def test_a_topic_that_is_not_named_as_delayed_is_read_at_once(
    spark: SparkSession, topic: TopicUnderTest, tmp_path: Path
) -> None:
    with topic.producer(0, batching_enabled=False) as producer:
        producer.send(b"later", deliver_at=int(time.time() * 1000) + 3_600_000)
    assert drain(spark, topic, tmp_path, subscription="job") == [b"later"]


def test_no_message_is_waited_for_longer_than_the_longest_delay(
    spark: SparkSession, topic: TopicUnderTest, tmp_path: Path
) -> None:
    with topic.producer(0, batching_enabled=False) as producer:
        for late in (int(time.time() * 1000) + 365 * 86_400_000, 2**62):
            producer.send(b"%d" % late, deliver_at=late)
    topic.send([b"behind"], 0, batching_enabled=False)
    options = {"subscription": "job", "delayedTopics": topic.name, "maxDelaySeconds": "1"}
    taken: list[bytes] = []

    def all_taken() -> bool:
        taken.extend(drain(spark, topic, tmp_path, **options))
        return len(taken) >= 3

    eventually(all_taken, 120)
    assert (len(taken), taken[-1]) == (3, b"behind")
