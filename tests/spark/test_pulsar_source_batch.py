"""Batch reads of the source `pulsar` from a real broker."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from pathlib import Path

import _pulsar
import pulsar
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from pulsar.schema import AvroSchema, Integer, Record
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.pipelines.pulsar_source import options_of
from bookwarden_dev.devcluster import DevCluster
from servers.pulsar_topics import TopicUnderTest
from servers.waiting import eventually

pytestmark = pytest.mark.servers


class Numbered(Record):  # type: ignore[misc]  # the client ships no types
    number = Integer()


def read(spark: SparkSession, topic: TopicUnderTest, **options: str) -> DataFrame:
    chosen = {"topic": topic.name, **options} if "topicsPattern" not in options else options
    return spark.read.format("pulsar").options(**options_of(topic.connection)).options(**chosen).load()


def values(frame: DataFrame) -> list[bytes]:
    return sorted(bytes(row[0]) for row in frame.select("value").collect())


@pytest.fixture
def topic(pulsar_cluster: DevCluster, namespace: str) -> TopicUnderTest:
    return TopicUnderTest(pulsar_cluster.connection(), namespace, "events", 2)


def test_every_message_is_read_once(spark: SparkSession, topic: TopicUnderTest) -> None:
    sent = [b"%05d" % number for number in range(1200)]
    topic.send(sent[:1000])
    topic.send(sent[1000:], batching_enabled=False)
    frame = read(spark, topic)
    assert values(frame) == sent
    assert frame.select("message_id", "partition").distinct().count() == 1200


def test_an_empty_topic_has_no_rows(spark: SparkSession, topic: TopicUnderTest) -> None:
    assert read(spark, topic).count() == 0


def test_columns_are_exact(spark: SparkSession, topic: TopicUnderTest) -> None:
    moment = datetime(2024, 2, 29, 12, 30, 15, 678000)
    milliseconds = int(moment.replace(tzinfo=timezone.utc).timestamp() * 1000)
    before = int(time.time() * 1000)
    with topic.producer(1, producer_name="author", batching_enabled=False, schema=AvroSchema(Numbered)) as producer:
        producer.send(
            Numbered(number=7),
            properties={"a": "1", "ü": "ключ"},
            partition_key="key",
            ordering_key="order",
            event_timestamp=milliseconds,
        )
    row = read(spark, topic).collect()[0]
    published = int(row.publish_time.replace(tzinfo=timezone.utc).timestamp() * 1000)
    assert before - 60_000 <= published <= before + 60_000
    assert row.asDict(recursive=True) | {"publish_time": None, "message_id": None} == {
        "topic": f"{topic.name}-partition-1",
        "partition": 1,
        "message_id": None,
        "key": "key",
        "ordering_key": "order",
        "value": b"\x02\x0e",
        "properties": {"a": "1", "ü": "ключ"},
        "publish_time": None,
        "event_time": moment,
        "producer_name": "author",
        "schema_version": bytes(8),
    }
    assert (row.message_id.batch_index, row.message_id.batch_size) == (-1, 1)
    assert row.message_id.ledger_id == topic.positions(1).latest.ledger_id


def test_what_a_message_lacks_is_null_or_empty(spark: SparkSession, topic: TopicUnderTest) -> None:
    topic.send([b""], 0, batching_enabled=False)
    row = read(spark, topic).collect()[0]
    assert (row.key, row.ordering_key, row.event_time, row.schema_version) == (None, None, None, None)
    assert (row.value, row.properties) == (bytearray(), {})


def test_batched_messages_keep_their_places(spark: SparkSession, topic: TopicUnderTest) -> None:
    topic.send((b"%d" % number for number in range(5)), 0, batching_max_publish_delay_ms=2000)
    rows = read(spark, topic).orderBy("message_id").collect()
    assert [bytes(row.value) for row in rows] == [b"0", b"1", b"2", b"3", b"4"]
    assert [(row.message_id.batch_index, row.message_id.batch_size) for row in rows] == [(n, 5) for n in range(5)]


def test_a_message_whose_texts_are_no_utf8_does_not_stop_the_rest(spark: SparkSession, topic: TopicUnderTest) -> None:
    with topic.producer(0, batching_enabled=False) as producer:
        odd = _pulsar.MessageBuilder()
        odd.content(b"odd")
        odd.partition_key(b"\xff\xfe")
        producer._producer.send(odd.build())
        producer.send(b"even", partition_key="key")
    rows = read(spark, topic).orderBy("message_id").collect()
    assert [(bytes(row.value), row.key) for row in rows] == [(b"odd", None), (b"even", "key")]


@pytest.mark.parametrize("kind", ["LZ4", "ZLib", "ZSTD", "SNAPPY"])
@pytest.mark.parametrize("batched", [True, False])
def test_compressed_messages_are_read(spark: SparkSession, topic: TopicUnderTest, kind: str, batched: bool) -> None:
    sent = [b"%03d" % number * 50 for number in range(100)]
    topic.send(sent, compression_type=getattr(pulsar.CompressionType, kind), batching_enabled=batched)
    assert values(read(spark, topic)) == sent


def test_boundaries_cut_exactly(spark: SparkSession, topic: TopicUnderTest) -> None:
    topic.send((b"%d" % number for number in range(6)), 0, batching_enabled=False)
    topic.send([b"other"], 1, batching_enabled=False)
    ledger = topic.positions(0).latest.ledger_id
    first, second = topic.partitions
    starting = f'{{"{first}": "{ledger}:1", "{second}": "latest"}}'
    ending = f'{{"{first}": "{ledger}:4"}}'
    assert values(read(spark, topic, startingOffsets=starting, endingOffsets=ending)) == [b"2", b"3", b"4"]
    assert values(read(spark, topic, endingOffsets=f'{{"{first}": "earliest"}}')) == [b"other"]


def test_a_timestamp_starts_with_what_was_published_from_then_on(spark: SparkSession, topic: TopicUnderTest) -> None:
    topic.send([b"1", b"2"], 0, batching_enabled=False)
    rows = read(spark, topic).orderBy("message_id").collect()
    at = max(int(row.publish_time.replace(tzinfo=timezone.utc).timestamp() * 1000) for row in rows) + 1
    while int(time.time() * 1000) <= at:
        pass
    topic.send([b"3"], 0, batching_enabled=False)
    assert values(read(spark, topic, startingOffsets=str(at))) == [b"3"]
    assert values(read(spark, topic, endingOffsets=str(at))) == [b"1", b"2"]


def test_a_pattern_reads_the_topics_that_match(spark: SparkSession, pulsar_cluster: DevCluster, namespace: str) -> None:
    connection = pulsar_cluster.connection()
    made = [TopicUnderTest(connection, namespace, name, count) for name, count in (("a-1", 2), ("a-2", 0), ("b", 1))]
    for topic in made:
        topic.send([topic.name.encode()])
    assert values(read(spark, made[0], topicsPattern=f"persistent://{namespace}/a-[0-9]")) == [
        made[0].name.encode(),
        made[1].name.encode(),
    ]


def test_a_start_that_was_trimmed_is_an_error_or_passed_over(
    spark: SparkSession, pulsar_cluster: DevCluster, namespace: str
) -> None:
    topic = TopicUnderTest(pulsar_cluster.connection(), namespace, "trimmed", retained=False)
    topic.send([b"lost"], 0, batching_enabled=False)
    gone = topic.positions(0).earliest
    topic.roll_and_trim(0)
    starting = f'{{"{topic.partitions[0]}": "{gone}"}}'
    with pytest.raises(PySparkException, match="DataGoneError"):
        read(spark, topic, startingOffsets=starting).count()
    assert values(read(spark, topic, startingOffsets=starting, failOnDataLoss="false")) == [b"rolls the ledger"]


def test_a_chunked_message_is_an_error_that_says_so(spark: SparkSession, topic: TopicUnderTest) -> None:
    with topic.producer(0, batching_enabled=False, chunking_enabled=True) as producer:
        producer.send(b"x" * 6_000_000)
    with pytest.raises(PySparkException, match="chunked message"):
        read(spark, topic).count()


def test_a_chunked_message_can_be_left_out_without_its_neighbours(spark: SparkSession, topic: TopicUnderTest) -> None:
    topic.send([b"before"], 0, batching_enabled=False)
    with topic.producer(0, batching_enabled=False, chunking_enabled=True) as producer:
        producer.send(b"x" * 6_000_000)
    topic.send([b"after 1", b"after 2"], 0)
    with topic.producer(0, batching_enabled=False, chunking_enabled=True) as producer:
        producer.send(b"x" * 6_000_000)
    assert values(read(spark, topic, chunkedMessages="skip")) == [b"after 1", b"after 2", b"before"]
    rows = read(spark, topic, chunkedMessages="empty").collect()
    assert len(rows) == 5
    assert [row.value for row in rows if row.message_id.batch_size == 0] == [None, None]


@pytest.mark.parametrize("batched", [False, True])
def test_a_message_that_cannot_be_decrypted_stops_nobody(
    spark: SparkSession, topic: TopicUnderTest, tmp_path: Path, batched: bool
) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private, public = tmp_path / "private.pem", tmp_path / "public.pem"
    encodings = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    private.write_bytes(key.private_bytes(*encodings))
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    reader = pulsar.CryptoKeyReader(str(public), str(private))
    topic.send([b"before"], 0)
    topic.send([b"secret"] * 3, 0, batching_enabled=batched, encryption_key="k", crypto_key_reader=reader)
    topic.send([b"after"], 0)
    found = [bytes(row.value) for row in read(spark, topic).collect()]
    assert (found[0], found[-1]) == (b"before", b"after")
    assert b"secret" not in found
    assert len(found) > 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"maxRowsPerTriger": "1"}, "maxrowspertriger"),
        ({"topics": "a/b/c"}, "exactly one"),
        ({"startingOffsets": '{"a/b/c": "1:1"}'}, "startingOffsets names persistent://a/b/c"),
        ({"adminUrl": "ftp://host"}, "admin_url"),
    ],
)
def test_options_that_cannot_work_say_why(
    spark: SparkSession, topic: TopicUnderTest, options: dict[str, str], says: str
) -> None:
    with pytest.raises(PySparkException, match=says):
        read(spark, topic, **options).count()


def test_a_topic_that_does_not_exist_is_named(spark: SparkSession, topic: TopicUnderTest) -> None:
    absent = f"persistent://{topic.namespace}/absent"
    frame = spark.read.format("pulsar").options(**options_of(topic.connection)).option("topic", absent).load()
    with pytest.raises(PySparkException, match="absent does not exist"):
        frame.count()


def test_secrets_are_not_in_the_plan(spark: SparkSession, topic: TopicUnderTest) -> None:
    frame = read(spark, topic, authToken="s3cret-token")
    plan = frame._jdf.queryExecution().toString()
    assert "s3cret-token" not in plan


def test_reading_leaves_no_subscription(spark: SparkSession, topic: TopicUnderTest) -> None:
    topic.send([b"1"], 0)
    assert values(read(spark, topic)) == [b"1"]
    # Readers are closed aside, so that a broker that does not answer holds nobody up.
    eventually(lambda: topic.positions(0).cursors == {})
    assert topic.admin.get_json(f"{topic_path(topic.partitions[0])}/subscriptions") == []
