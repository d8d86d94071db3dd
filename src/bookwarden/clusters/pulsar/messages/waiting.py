"""Messages behind a subscription's position, read without a consumer: none is taken or acknowledged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bookwarden.clusters.pulsar.entries import TopicEntries, TopicEntry
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import list_partitions, read_positions
from bookwarden.errors import FormatError, NotFoundError
from bookwarden.ledgers.managed_ledger import Position
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.received import LARGEST_ENTRY, ReceivedMark, believed_properties
from bookwarden.wire.entry import EntryMessage, is_chunk, messages, schema_version
from bookwarden.wire.pb.pulsar_api_pb2 import MessageMetadata

_TIMEOUT_S = 10.0
_QUIET_S = 3.0


class WaitingMessages:
    """Reads topics from a subscription's position to their end at the time when reading began.

    Of a message that is not on ``retry_topic`` the properties of phase two are left out (`believed_properties`).
    """

    def __init__(self, entries: TopicEntries, admin: PulsarAdmin, subscription: str, retry_topic: str) -> None:
        self._entries = entries
        self._admin = admin
        self._subscription = subscription
        self._retry_topic = retry_topic

    def read(self, topics: Sequence[str]) -> Iterator[ReceivedMark]:
        """Yield the messages, partition by partition, including those that wait for their delay.

        An unreadable entry is a mark with a problem. Raises NotFoundError if a topic or its subscription does not
        exist.
        """
        spans = [
            (partition, *self._span(partition)) for topic in topics for partition in list_partitions(self._admin, topic)
        ]
        for partition, first, last in spans:
            if first is not None:
                yield from self._between(partition, first, last)

    def first(self, partition: str) -> ReceivedMark | None:
        """Read the first message of a partition; None where there is none."""
        return next(self.read((partition,)), None)

    def first_of_each(self, topics: Sequence[str]) -> list[ReceivedMark]:
        """Read the first message of each partition that has any; errors as of `read`."""
        partitions = [partition for topic in topics for partition in list_partitions(self._admin, topic)]
        return [found for partition in partitions if (found := self.first(partition)) is not None]

    def _span(self, partition: str) -> tuple[Position | None, Position]:
        """Return the first entry behind the subscription's position, None if there is none, and the last one."""
        positions = read_positions(self._admin, partition)
        start = positions.cursors.get(self._subscription)
        if start is None:
            raise NotFoundError(f"{partition} has no subscription {self._subscription!r}; `bookwarden init` creates it")
        return positions.behind(start).first, positions.latest

    def _between(self, partition: str, first: Position, last: Position) -> Iterator[ReceivedMark]:
        with self._entries.open(partition, first, _TIMEOUT_S) as stream:
            while (entry := stream.next(_QUIET_S)) is not None and entry.position <= last:
                # A broker may begin an entry earlier: it takes the position for one within a batch.
                if entry.position >= first:
                    yield from self._marks(partition, entry)
                if entry.position == last:
                    return

    def _marks(self, partition: str, entry: TopicEntry) -> Iterator[ReceivedMark]:
        if entry.metadata is None:
            yield self._mark(partition, entry.position, MessageMetadata(), None, entry.problem)
        elif is_chunk(entry.metadata):
            yield self._mark(partition, entry.position, entry.metadata, None, "a part of a message in chunks")
        else:
            try:
                found = messages(entry.metadata, entry.payload, LARGEST_ENTRY)
            except FormatError as error:
                yield self._mark(partition, entry.position, entry.metadata, None, str(error))
                return
            for message in found:
                yield self._mark(partition, entry.position, entry.metadata, message, None)

    def _mark(
        self,
        partition: str,
        position: Position,
        metadata: MessageMetadata,
        message: EntryMessage | None,
        problem: str | None,
    ) -> ReceivedMark:
        batch = f":{message.batch_index}" if message is not None and message.batch_index >= 0 else ""
        texts = message or metadata
        properties = {_text(one.key): _text(one.value) for one in texts.properties}
        return ReceivedMark(
            topic=partition,
            message_id=f"{position}:{TopicName.parse(partition).partition or 0}{batch}",
            key=_text(message.key if message is not None else metadata.partition_key) or None,
            payload=(message.value or b"") if message is not None else b"",
            properties=believed_properties(properties, partition, self._retry_topic),
            published_at=metadata.publish_time,
            event_time=texts.event_time or None,
            schema_version=schema_version(metadata),
            problem=None if problem is None else f"not read: {problem}",
        )


def _text(written: bytes) -> str:
    return written.decode(errors="replace")
