"""The writes to an Oxia server in their order: its write-ahead log, and by its notifications what came of them.

The log has each request with its values, also one that an expected version refused. The notifications of the same
offset name the keys that changed, without their values. Format: server/wal/codec/v2.go, proto/replication.proto and
proto/storage.proto of Oxia 0.14; 0.17 has the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import grpc

from bookwarden.metastore.snapshot.transaction_log import Change, Created, Deleted, Replaced, Transaction
from bookwarden.wire.pb import oxia_client_pb2 as pb
from bookwarden_dev.devcluster.servers.oxia import NAMESPACE

#: Length of a record, its checksum and that of the one before.
_HEAD: Final = 12
_LENGTH: Final = 4
_OFFSET, _VALUE, _TIMESTAMP = 2, 3, 4
_VARINT, _FIXED64, _BYTES = 0, 1, 2
_ANSWER_S: Final = 60.0
_NOTIFICATIONS: Final = "/io.streamnative.oxia.proto.OxiaClient/GetNotifications"


class Entry(NamedTuple):
    """An entry of the write-ahead log."""

    offset: int
    time_ms: int
    writes: tuple[pb.WriteRequest, ...]  #: None of what the server writes for itself.


def read_oxia_log(folder: Path, address: str) -> Iterator[Transaction]:
    """Read all writes to the only shard of a server that runs at ``address``; ``folder`` is that of its logs.

    The server keeps both for an hour; AssertionError if the first ones are gone. No session is known.
    """
    entries = [entry for entry in read_entries(folder / NAMESPACE / "shard-0") if entry.writes]
    assert entries, f"nothing is in {folder}"
    with grpc.insecure_channel(address) as channel:
        notified = _notified(channel, entries[-1].offset)
    yield from joined(entries, notified)


def read_entries(folder: Path) -> Iterator[Entry]:
    """Read the log of a shard as far as it goes; AssertionError if its beginning is gone."""
    files = sorted(folder.glob("*.txnx"), key=lambda file: int(file.stem))
    assert [file.stem for file in files[:1]] == ["0"], f"the first part of the log is not in {folder}"
    for file in files:
        data, at = file.read_bytes(), 0
        # It is as long as it may become from the beginning, and zero where nothing is written yet.
        while (size := int.from_bytes(data[at : at + _LENGTH], "big")) and at + _HEAD + size <= len(data):
            yield _entry(data[at + _HEAD : at + _HEAD + size])
            at += _HEAD + size


def joined(entries: list[Entry], notified: dict[int, dict[str, int]]) -> Iterator[Transaction]:
    """Make a transaction of each entry; ``notified`` has the kinds of change by offset and key."""
    for entry in entries:
        # Of several puts of a key in one request, which no broker sends, the last would be taken.
        values = {put.key: put.value for write in entry.writes for put in write.puts}
        changes: list[Change] = []
        for key, kind in notified[entry.offset].items():
            if kind == pb.KEY_DELETED:
                changes.append(Deleted(key))
            elif key in values and kind == pb.KEY_CREATED:
                changes.append(Created(key, values[key]))
            elif key in values and kind == pb.KEY_MODIFIED:
                changes.append(Replaced(key, values[key], 0))
        yield Transaction(entry.offset, entry.time_ms, 0, tuple(changes))


def _notified(channel: grpc.Channel, last: int) -> dict[int, dict[str, int]]:
    """Read the notifications of all offsets up to the last one; there are empty ones, too."""
    stream = channel.unary_stream(
        _NOTIFICATIONS,
        request_serializer=pb.NotificationsRequest.SerializeToString,
        response_deserializer=pb.NotificationBatch.FromString,
    )
    call = stream(pb.NotificationsRequest(shard=0, start_offset_exclusive=-1), timeout=_ANSWER_S, wait_for_ready=True)
    found: dict[int, dict[str, int]] = {}
    try:
        for batch in call:
            found[batch.offset] = {key: each.type for key, each in batch.notifications.items()}
            if batch.offset >= last:
                return found
    finally:
        call.cancel()
    raise AssertionError(f"Oxia's notifications end before {last}")


def _entry(data: bytes) -> Entry:
    fields = dict(_fields(data))
    requests = dict(_fields(_bytes(fields[_VALUE]))).get(1, b"")
    writes = tuple(pb.WriteRequest.FromString(_bytes(value)) for _, value in _fields(_bytes(requests)))
    # A field that is 0 is not written.
    return Entry(_number(fields.get(_OFFSET, 0)), _number(fields.get(_TIMESTAMP, 0)), writes)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Read the fields of a message of protobuf, by number."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        if tag & 7 == _VARINT:
            number, at = _varint(data, at)
            yield tag >> 3, number
        elif tag & 7 == _FIXED64:
            yield tag >> 3, int.from_bytes(data[at : at + 8], "little")
            at += 8
        else:
            assert tag & 7 == _BYTES, f"a field of type {tag & 7}"
            size, at = _varint(data, at)
            yield tag >> 3, data[at : at + size]
            at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return value, at


def _bytes(value: int | bytes) -> bytes:
    assert isinstance(value, bytes)
    return value


def _number(value: int | bytes) -> int:
    assert isinstance(value, int)
    return value
