"""Messages gathered row by row into Arrow record batches."""

from __future__ import annotations

import logging
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, chain, repeat
from typing import Any

import pyarrow as pa

from bookwarden.ledgers.times import LAST_MS
from bookwarden.pipelines.pulsar_source.schema import ARROW_MESSAGE_ID, ARROW_PROPERTIES, ARROW_SCHEMA, ARROW_TIME

_LOG = logging.getLogger(__name__)

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
        self._position = (-1, -1)
        self._rows: list[tuple[Any, ...]] = []
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, message: Any, position: tuple[int, int], batch_index: int, batch_size: int) -> bool:
        """Add a message of the native client; return whether a record batch is due.

        ``position`` is ledger and entry; ``batch_index`` is -1 for the one message of an unbatched entry. One of
        ``batch_size`` 0 is a message whose payload is not read.
        """
        if position != self._position:
            self._begin_entry(message, position, batch_size)
        value: bytes | None = message.data() if batch_size else None
        if value:
            self._bytes += len(value)
        elif not batch_size or message.has_null_value():
            value = None
        try:
            texts = (message.partition_key(), message.ordering_key(), message.properties())
        except UnicodeDecodeError:
            # One malformed message must not stop the stream for ever; its payload is passed on.
            _LOG.warning("%s %d:%d: key or properties are not UTF-8; dropped", self._topic, *position)
            texts = ("", "", {})
        self._rows.append((batch_index, value, *texts, message.event_timestamp()))
        return len(self._rows) >= self._max_rows or self._bytes >= _MAX_BYTES

    def _begin_entry(self, message: Any, position: tuple[int, int], batch_size: int) -> None:
        self._position = position
        self._firsts.append(len(self._rows))
        stamped = (message.publish_timestamp(), message.producer_name(), message.int_schema_version())
        self._entries.append((*position, batch_size, *stamped))

    def take(self) -> pa.RecordBatch:
        """Return the rows as a record batch and forget them."""
        count = len(self._rows)
        indexes, values, keys, ordering, properties, events = zip(*self._rows, strict=True)
        ledgers, entries, sizes, published, producers, versions = zip(*self._entries, strict=True)
        each = self._entry_of_row(count)
        self._rows, self._bytes = [], 0
        self._entries, self._firsts, self._position = [], [], (-1, -1)
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
            pa.array([_version_bytes(version) for version in versions], pa.binary()).take(each),
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


@lru_cache(maxsize=1024)
def _version_bytes(version: int) -> bytes | None:
    # The client reads the 8 bytes of the schema version as text, which fails from 128 on; the number always works.
    return struct.pack(">q", version) if version >= 0 else None
