"""The columns that the source gives, for Spark and for Arrow, and messages gathered row by row into record batches."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain, repeat
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from bookwarden.ledgers.managed_ledger import Position
from bookwarden.ledgers.pending_deletion import LAST_MS
from bookwarden.wire.entry import EntryMessage, schema_version
from bookwarden.wire.pb.pulsar_api_pb2 import KeyValue, MessageMetadata

_LOG = logging.getLogger(__name__)
# The property of a row without a value that says why what is in its place was not read.
UNREAD = "bookwarden.unread"

MESSAGE_ID = StructType(
    [
        StructField("ledger_id", LongType(), nullable=False),
        StructField("entry_id", LongType(), nullable=False),
        StructField("batch_index", IntegerType(), nullable=False),
        StructField("batch_size", IntegerType(), nullable=False),
    ]
)

SCHEMA = StructType(
    [
        StructField("topic", StringType(), nullable=False),
        StructField("partition", IntegerType(), nullable=False),
        StructField("message_id", MESSAGE_ID, nullable=False),
        StructField("key", StringType(), nullable=True),
        StructField("ordering_key", StringType(), nullable=True),
        StructField("value", BinaryType(), nullable=True),
        StructField("properties", MapType(StringType(), StringType(), valueContainsNull=False), nullable=False),
        StructField("publish_time", TimestampType(), nullable=False),
        StructField("event_time", TimestampType(), nullable=True),
        StructField("producer_name", StringType(), nullable=False),
        StructField("schema_version", BinaryType(), nullable=True),
    ]
)

ARROW_MESSAGE_ID = pa.struct(
    [
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("entry_id", pa.int64(), nullable=False),
        pa.field("batch_index", pa.int32(), nullable=False),
        pa.field("batch_size", pa.int32(), nullable=False),
    ]
)
ARROW_TIME = pa.timestamp("us", tz="UTC")
ARROW_PROPERTIES = pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False), keys_sorted=False)

# Spark accepts a record batch only if this equals its own conversion of SCHEMA.
ARROW_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("message_id", ARROW_MESSAGE_ID, nullable=False),
        pa.field("key", pa.string(), nullable=True),
        pa.field("ordering_key", pa.string(), nullable=True),
        pa.field("value", pa.binary(), nullable=True),
        pa.field("properties", ARROW_PROPERTIES, nullable=False),
        pa.field("publish_time", ARROW_TIME, nullable=False),
        pa.field("event_time", ARROW_TIME, nullable=True),
        pa.field("producer_name", pa.string(), nullable=False),
        pa.field("schema_version", pa.binary(), nullable=True),
    ]
)


# A batch this large is complete even with few rows, to bound the memory of a worker.
_MAX_BYTES = 16 << 20
_MILLISECONDS = pa.timestamp("ms", tz="UTC")


class RowBuffer:
    """Rows of one partition, gathered for the next record batch.

    The messages of an entry share its position and the producer's stamps: these are read and kept once for the entry.
    """

    def __init__(self, topic: str, partition: int, max_rows: int) -> None:
        self._topic = topic
        self._partition = partition
        self._max_rows = max_rows
        self._entries: list[tuple[Any, ...]] = []
        # The number of rows before each entry's first.
        self._firsts: list[int] = []
        self._rows: list[tuple[Any, ...]] = []
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, position: Position, metadata: MessageMetadata, messages: Sequence[EntryMessage]) -> None:
        """Add the messages of an entry."""
        self._begin_entry(position, metadata, len(messages))
        for message in messages:
            texts = self._texts(position, message.key, message.ordering_key, message.properties)
            self._bytes += len(message.value or b"")
            self._rows.append((message.batch_index, message.value, *texts, message.event_time))

    def add_unread(self, position: Position, metadata: MessageMetadata | None, reason: str) -> None:
        """Add a row without a value in the place of what is not read."""
        found = metadata or MessageMetadata()
        self._begin_entry(position, found, 0)
        key, ordering_key, properties = self._texts(position, found.partition_key, found.ordering_key, found.properties)
        self._rows.append((-1, None, key, ordering_key, {**properties, UNREAD: reason}, found.event_time))

    @property
    def is_due(self) -> bool:
        """True once the rows fill a record batch."""
        return len(self._rows) >= self._max_rows or self._bytes >= _MAX_BYTES

    def _begin_entry(self, position: Position, metadata: MessageMetadata, batch_size: int) -> None:
        self._firsts.append(len(self._rows))
        producer = metadata.producer_name.decode(errors="replace")
        stamps = (metadata.publish_time, producer, schema_version(metadata))
        self._entries.append((position.ledger_id, position.entry_id, batch_size, *stamps))

    def _texts(
        self, position: Position, key: bytes, ordering_key: bytes, properties: Iterable[KeyValue]
    ) -> tuple[str, str, dict[str, str]]:
        try:
            return key.decode(), ordering_key.decode(), {one.key.decode(): one.value.decode() for one in properties}
        except UnicodeDecodeError:
            # One malformed message must not stop the stream for ever; its payload is passed on.
            _LOG.warning("%s %s: key or properties are not UTF-8; dropped", self._topic, position)
            return "", "", {}

    def take(self) -> pa.RecordBatch:
        """Return the rows as a record batch and forget them."""
        count = len(self._rows)
        indexes, values, keys, ordering, properties, events = zip(*self._rows, strict=True)
        ledgers, entries, sizes, published, producers, versions = zip(*self._entries, strict=True)
        each = self._entry_of_row(count)
        self._rows, self._bytes = [], 0
        self._entries, self._firsts = [], []
        ids = [
            pa.array(ledgers, pa.int64()).take(each),
            pa.array(entries, pa.int64()).take(each),
            pa.array(indexes, pa.int32()),
            pa.array(sizes, pa.int32()).take(each),
        ]
        columns = [
            pa.repeat(self._topic, count),
            pa.repeat(pa.scalar(self._partition, pa.int32()), count),
            pa.StructArray.from_arrays(ids, fields=list(ARROW_MESSAGE_ID)),
            pa.array([key or None for key in keys], pa.string()),
            pa.array([key or None for key in ordering], pa.string()),
            pa.array(values, pa.binary()),
            _properties(properties),
            # Producers choose both times, of 64 bits: an impossible one must not stop the stream for ever.
            pa.array([min(time, LAST_MS) for time in published], _MILLISECONDS).cast(ARROW_TIME).take(each),
            pa.array([event if 0 < event <= LAST_MS else None for event in events], _MILLISECONDS).cast(ARROW_TIME),
            pa.array(producers, pa.string()).take(each),
            pa.array(versions, pa.binary()).take(each),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)

    def _entry_of_row(self, count: int) -> pa.Array:
        """Return for each row the index of its entry."""
        ends = [*self._firsts[1:], count]
        rows = (repeat(index, end - first) for index, (first, end) in enumerate(zip(self._firsts, ends, strict=True)))
        return pa.array(list(chain.from_iterable(rows)), pa.int32())


def _properties(rows: Sequence[Mapping[str, str]]) -> pa.MapArray:
    offsets = list(accumulate(map(len, rows), initial=0))
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()),
        pa.array(list(chain.from_iterable(rows)), pa.string()),
        pa.array(list(chain.from_iterable(row.values() for row in rows)), pa.string()),
        type=ARROW_PROPERTIES,
    )
