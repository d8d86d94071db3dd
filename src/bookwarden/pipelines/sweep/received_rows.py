"""Received marks, made from the columns of the Pulsar source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from bookwarden.clusters.pulsar.messages.switch_events import SWITCH_TOPIC
from bookwarden.deletion.phase_two.isolation import may_be_of_a_message
from bookwarden.errors import MalformedMarkError
from bookwarden.ledgers.pending_deletion import PendingDeletion
from bookwarden.ledgers.received import Decode, ReceivedMark, believed_properties, decode_mark, is_partition_of
from bookwarden.ledgers.switch_event import SwitchEvent
from bookwarden.pipelines.pulsar_source.schema import UNREAD
from bookwarden.wire.switch_event import decode_switch_event


def received_marks(batch: pa.RecordBatch, decode: Decode, retry_topic: str) -> Iterator[ReceivedMark]:
    """Yield a mark for each row, or a switch directive where it is of their topic.

    `decode` takes topic, payload and schema version. The properties of phase two are believed of messages of
    `retry_topic` alone. A row that is neither has the reason in `problem`, one on which the decoder itself failed the
    error in `failure`.
    """
    columns = {name: batch.column(name) for name in batch.schema.names}
    published = _milliseconds(columns["publish_time"])
    happened = _milliseconds(columns["event_time"])
    rows = zip(
        columns["topic"].to_pylist(),
        columns["partition"].to_pylist(),
        _message_ids(columns["message_id"]),
        columns["key"].to_pylist(),
        columns["value"].to_pylist(),
        columns["properties"].to_pylist(),
        published,
        happened,
        columns["schema_version"].to_pylist(),
        strict=True,
    )
    for topic, partition, place, key, value, properties, published_at, event_time, version in rows:
        (ledger, entry, index, size), payload, written = place, value or b"", dict(properties or ())
        # Of a row without a message the source writes that property, and of others anybody.
        unread = written.pop(UNREAD, "")
        mark: PendingDeletion | None = None
        directive: SwitchEvent | None = None
        problem: str | None = f"not read: {unread}"
        failure: Exception | None = None
        if size and is_partition_of(topic, SWITCH_TOPIC):
            directive, problem = _directive(payload)
        elif size:
            mark, problem, failure = _decoded(decode, topic, payload, version)
        yield ReceivedMark(
            topic=topic,
            message_id=f"{ledger}:{entry}:{partition}" + (f":{index}" if index >= 0 else ""),
            key=key,
            payload=payload,
            properties=believed_properties(written, topic, retry_topic),
            published_at=published_at,
            event_time=event_time,
            schema_version=version,
            mark=mark,
            problem=problem,
            failure=failure,
            directive=directive,
        )


def _decoded(
    decode: Decode, topic: str, payload: bytes, version: bytes | None
) -> tuple[PendingDeletion | None, str | None, Exception | None]:
    try:
        return (*decode_mark(decode, topic, payload, version), None)
    except Exception as error:
        if not may_be_of_a_message(error):
            raise
        return None, None, error


def _directive(payload: bytes) -> tuple[SwitchEvent | None, str | None]:
    try:
        return decode_switch_event(payload), None
    except MalformedMarkError as error:
        return None, f"no switch directive: {error}"


def _message_ids(column: Any) -> Iterator[tuple[int, int, int, int]]:
    names = ("ledger_id", "entry_id", "batch_index", "batch_size")
    return zip(*(column.field(name).to_pylist() for name in names), strict=True)


def _milliseconds(column: Any) -> list[Any]:
    milliseconds: list[Any] = column.cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64()).to_pylist()
    return milliseconds
