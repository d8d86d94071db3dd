"""A topic of a test: made, filled, unloaded, rolled, and its subscriptions read, all over a real broker."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import google_crc32c
import pulsar

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.protocol import Session, lookup
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import (
    TopicPositions,
    list_partitions,
    read_positions,
    topic_path,
)
from bookwarden.errors import PulsarConflictError
from bookwarden.wire.pb.pulsar_api_pb2 import MessageMetadata, SingleMessageMetadata
from servers.topic_contents import read_back
from servers.waiting import eventually


def single(value: bytes, **metadata: Any) -> bytes:
    """Return a message as it lies in a batch; what the metadata says of its size may be a lie."""
    size = metadata.pop("payload_size", len(value))
    written = SingleMessageMetadata(payload_size=size, **metadata).SerializeToString()
    return struct.pack(">I", len(written)) + written + value


def raw_entry(payload: bytes, *, checksum: int | None = None, **metadata: Any) -> bytes:
    """Return an entry as a client sends it: checksum, metadata, payload, none of which need be right."""
    written = MessageMetadata(producer_name=b"raw", **{"publish_time": 1, **metadata})
    # Its sequence id, which brokers insist on, is not among the fields that are read here.
    head = written.SerializeToString() + b"\x10\x01"
    rest = struct.pack(">I", len(head)) + head + payload
    return b"\x0e\x01" + struct.pack(">I", google_crc32c.value(rest) if checksum is None else checksum) + rest


def not_an_entry() -> bytes:
    """Return bytes with the right checksum whose metadata is none, which a broker stores and does not look at."""
    rest = struct.pack(">I", 2) + b"\xff\xff" + b"payload"
    return b"\x0e\x01" + struct.pack(">I", google_crc32c.value(rest)) + rest


def send_raw(connection: PulsarConnection, partition: str, *entries: bytes) -> None:
    """Store entries as they are, which no client would send; each must be confirmed."""
    owner = lookup(connection, connection.service_url, partition).owner
    with closing(Session(connection, owner, 10)) as session:

        def send(kind: int, command: bytes, behind: bytes = b"") -> None:
            body = _field(1, kind) + _field(kind, command)
            session._socket.sendall(struct.pack(">II", len(body) + 4 + len(behind), len(body)) + body + behind)

        producer, confirmed = 5, 7
        send(producer, _field(1, partition.encode()) + _field(2, 1) + _field(3, 1))
        session.answer(17, "opening a raw producer", 10)
        for number, entry in enumerate(entries, 1):
            send(6, _field(1, 1) + _field(2, number), entry)
            session.answer(confirmed, "sending a raw entry", 10)


def _field(number: int, value: int | bytes) -> bytes:
    """Encode a protobuf field, of which numbers and lengths are below 16,384."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128, value >> 7])


def unload(admin: PulsarAdmin, topic: str) -> None:
    """Let the owner close the topic; the next client loads it again."""
    admin.put(f"{topic_path(topic)}/unload")


def offload(admin: PulsarAdmin, topic: str, last: int, patience_s: float = 120) -> None:
    """Offload what lies before a topic's last ledger; where the broker says that it failed, it is asked again.

    The local S3 server fails now and then, and what it has of that attempt is no copy.
    """
    path, end = f"{topic_path(topic)}/offload", {"ledgerId": last, "entryId": 0, "partitionIndex": -1}
    answers: list[Any] = []

    def is_done() -> bool:
        answers[:] = [*answers[-9:], admin.get_json(path)]
        status = answers[-1]["status"]
        if status in ("NOT_RUN", "ERROR"):
            admin.put(path, end)
        return bool(status == "SUCCESS")

    admin.put(path, end)
    try:
        eventually(is_done, patience_s)
    except AssertionError:
        raise AssertionError(f"{topic} is not offloaded in {patience_s:g} s: {answers}") from None


class TopicUnderTest:
    """A persistent topic in a test's namespace; ``partitions`` 0 makes an unpartitioned one.

    Unless ``retained``, what no subscription holds is trimmed as soon as its ledger is closed.
    """

    def __init__(
        self, connection: PulsarConnection, namespace: str, name: str, partitions: int = 1, *, retained: bool = True
    ) -> None:
        self.connection = connection
        self.admin = PulsarAdmin(connection)
        self.namespace = namespace
        self.name = f"persistent://{namespace}/{name}"
        self._partitions = partitions
        retention = -1 if retained else 0
        policy = {"retentionTimeInMinutes": retention, "retentionSizeInMB": retention}
        self.admin.post(f"/namespaces/{namespace}/retention", policy)
        path = topic_path(self.name)
        self.admin.put(f"{path}/partitions", partitions) if partitions else self.admin.put(path)

    @property
    def partitions(self) -> list[str]:
        return [f"{self.name}-partition-{index}" for index in range(self._partitions)] or [self.name]

    def add_partitions(self, count: int) -> None:
        # The broker makes each subscription on the new partitions, and may find that a query was quicker.
        with suppress(PulsarConflictError):
            self.admin.post(f"{topic_path(self.name)}/partitions", count)
        eventually(lambda: len(list_partitions(self.admin, self.name)) == count)
        self._partitions = count

    @contextmanager
    def producer(self, partition: int | None = None, **options: Any) -> Iterator[pulsar.Producer]:
        client = self.connection.client()
        options.setdefault("block_if_queue_full", True)
        try:
            yield client.create_producer(self.name if partition is None else self.partitions[partition], **options)
        finally:
            client.close()

    def send(self, values: Iterable[bytes], partition: int | None = None, **options: Any) -> None:
        """Send batched messages and wait for them; a failed one fails the test."""
        failed: list[object] = []
        options.setdefault("batching_enabled", True)
        with self.producer(partition, **options) as producer:
            for value in values:
                producer.send_async(value, lambda result, _id: result == pulsar.Result.Ok or failed.append(result))
            producer.flush()
        assert not failed

    def read_back(self) -> list[bytes]:
        client = self.connection.client()
        try:
            return read_back(client, self.name)
        finally:
            client.close()

    def positions(self, partition: int = 0) -> TopicPositions:
        return read_positions(self.admin, self.partitions[partition])

    def unload(self) -> None:
        for partition in self.partitions:
            unload(self.admin, partition)

    def backlog(self, subscription: str) -> int:
        """Sum the entries that the subscription has not acknowledged."""
        total = 0
        for partition in self.partitions:
            stats = self.admin.get_json(f"{topic_path(partition)}/stats")
            total += int(stats["subscriptions"][subscription]["msgBacklog"])
        return total

    def roll_and_trim(self, partition: int = 0) -> None:
        """Close the open ledger and let the broker delete all that no subscription and no retention holds."""
        before = self.positions(partition).ledgers
        self.unload()
        self.send([b"rolls the ledger"], partition)
        path = topic_path(self.partitions[partition])

        def trimmed() -> bool:
            self.admin.post(f"{path}/trim")
            return self.positions(partition).ledgers[0].ledger_id > before[-1].ledger_id

        eventually(trimmed)
