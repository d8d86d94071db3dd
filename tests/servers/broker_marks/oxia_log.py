"""The writes to an Oxia server in their order: its write-ahead log, and by its notifications what came of them.

The log has each request with its values, also one that an expected version refused. The notifications of the same
offset name the keys that changed, and their versions from then on. Format: server/wal/codec/v2.go,
proto/replication.proto and proto/storage.proto of Oxia 0.14; 0.17 has the same.
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
#: Of a batch of notifications.
_BATCH_OFFSET, _BATCH_KEYS = 2, 4
#: What a put expects where there is to be no key.
_ABSENT: Final = -1
_VARINT, _FIXED64, _BYTES = 0, 1, 2
_ANSWER_S: Final = 60.0
_NOTIFICATIONS: Final = "/io.streamnative.oxia.proto.OxiaClient/GetNotifications"


class Notified(NamedTuple):
    """What became of a key."""

    kind: int  #: One of Oxia's types of notification.
    version: int  #: Its version now, 0 where it was deleted.


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


def joined(entries: list[Entry], notified: dict[int, dict[str, Notified]]) -> Iterator[Transaction]:
    """Make a transaction of each entry; ``notified`` has by offset what became of its keys."""
    versions: dict[str, int] = {}
    for entry in entries:
        sent, values = dict[str, bytes](), dict[str, bytes]()
        for put in (put for write in entry.writes for put in write.puts):
            # A client puts into one request what several of its threads write: of one key, too.
            expected = put.expected_version_id if put.HasField("expected_version_id") else None
            if expected is None or (expected == versions.get(put.key, _ABSENT) and put.key not in values):
                values[put.key] = put.value
            sent[put.key] = put.value
        # Of a node that went with its session there may be no word, so that its version is another.
        values = {**sent, **values}
        changes: list[Change] = []
        for key, now in notified[entry.offset].items():
            if now.kind == pb.KEY_DELETED:
                versions.pop(key, None)
                changes.append(Deleted(key))
            elif key in values:
                versions[key] = now.version
                made = now.kind == pb.KEY_CREATED
                changes.append(Created(key, values[key]) if made else Replaced(key, values[key], now.version))
        yield Transaction(entry.offset, entry.time_ms, 0, tuple(changes))


def _notified(channel: grpc.Channel, last: int) -> dict[int, dict[str, Notified]]:
    """Read the notifications of all offsets up to the last one; there are empty ones, too."""
    stream = channel.unary_stream(
        _NOTIFICATIONS, request_serializer=pb.NotificationsRequest.SerializeToString, response_deserializer=bytes
    )
    call = stream(pb.NotificationsRequest(shard=0, start_offset_exclusive=-1), timeout=_ANSWER_S, wait_for_ready=True)
    found: dict[int, dict[str, Notified]] = {}
    try:
        for batch in call:
            fields = list(_fields(batch))
            offset = _number(dict(fields).get(_BATCH_OFFSET, 0))
            keys = [dict(_fields(_bytes(value))) for number, value in fields if number == _BATCH_KEYS]
            found[offset] = {_bytes(key[1]).decode(): _notified_of(_bytes(key.get(2, b""))) for key in keys}
            if offset >= last:
                return found
    finally:
        call.cancel()
    raise AssertionError(f"Oxia's notifications end before {last}")


def _notified_of(data: bytes) -> Notified:
    # The client of the product needs no version, and has no field for it.
    fields = dict(_fields(data))
    return Notified(_number(fields.get(1, 0)), _number(fields.get(2, 0)))


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
