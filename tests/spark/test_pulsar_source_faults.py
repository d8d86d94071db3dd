"""The source under unloads and broker kills: every message exactly accounted for."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.errors import PulsarError
from bookwarden_dev.devcluster import DevCluster
from servers.pulsar_topics import TopicUnderTest
from servers.waiting import eventually
from spark.pulsar_streams import running

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(900)]

PARTITIONS = 2


class Traffic:
    """Numbered messages sent one by one, each until the broker confirms it."""

    def __init__(self, topic: TopicUnderTest) -> None:
        self._topic = topic
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self.confirmed: set[bytes] = set()

    @contextmanager
    def flowing(self) -> Iterator[Traffic]:
        self._thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            self._thread.join()

    def _send(self) -> None:
        number = 0
        with self._topic.producer(batching_enabled=False, send_timeout_millis=0) as producer:
            while not self._ended.wait(0.005):
                value = b"%06d" % number
                producer.send_async(value, lambda result, _id, sent=value: self._note(result, sent))
                number += 1
            producer.flush()

    def _note(self, result: Any, value: bytes) -> None:
        if result == pulsar.Result.Ok:
            self.confirmed.add(value)


class Received:
    """What a query gave out: the place of every row and its value."""

    def __init__(self) -> None:
        self.places: Counter[tuple[str, int, int, int]] = Counter()
        self.values: set[bytes] = set()

    def note(self, batch: DataFrame, _number: int) -> None:
        for row in batch.select("topic", "message_id", "value").collect():
            self.places[row[0], row[1].ledger_id, row[1].entry_id, row[1].batch_index] += 1
            self.values.add(bytes(row[2]))


def survive(
    spark: SparkSession, topic: TopicUnderTest, checkpoint: Path, faults: list[Callable[[], None]]
) -> tuple[Traffic, Received, StreamingQuery]:
    """Run faults one after another under traffic, waiting after each until the query has moved on."""
    received, traffic = Received(), Traffic(topic)
    with running(spark, topic, checkpoint, received.note, subscription="job") as query:
        with traffic.flowing():
            eventually(lambda: len(received.values) > 0, 120)
            for fault in faults:
                fault()
                before = len(received.values)
                eventually(lambda before=before: len(received.values) > before + 20 or query.exception(), 120)
                assert query.exception() is None
        eventually(lambda: traffic.confirmed <= received.values, 120)
        eventually(lambda: topic.backlog("job") == 0, 60)
        assert query.isActive
    return traffic, received, query


def assert_exact(traffic: Traffic, received: Received) -> None:
    assert traffic.confirmed - received.values == set()
    assert [place for place, times in received.places.items() if times > 1] == []


def test_unloads_lose_and_repeat_nothing(
    spark: SparkSession, pulsar_cluster: DevCluster, namespace: str, tmp_path: Path
) -> None:
    topic = TopicUnderTest(pulsar_cluster.connection(), namespace, "events", PARTITIONS)

    def unload_all() -> None:
        for partition in topic.partitions:
            _until_accepted(topic, f"{topic_path(partition)}/unload")

    traffic, received, _ = survive(spark, topic, tmp_path, [unload_all] * 10)
    assert_exact(traffic, received)


def test_broker_kills_lose_and_repeat_nothing(
    spark: SparkSession,
    make_cluster: Callable[[], DevCluster],
    make_namespace: Callable[[DevCluster], str],
    tmp_path: Path,
) -> None:
    cluster = make_cluster()
    topic = TopicUnderTest(cluster.connection(), make_namespace(cluster), "events", PARTITIONS)

    def kill() -> None:
        cluster.broker.kill()
        cluster.broker.start()

    traffic, received, _ = survive(spark, topic, tmp_path, [kill, cluster.broker.restart, kill])
    assert_exact(traffic, received)


def _until_accepted(topic: TopicUnderTest, path: str) -> None:
    def accepted() -> bool:
        try:
            topic.admin.put(path)
        except PulsarError:
            return False
        return True

    eventually(accepted, 60)
