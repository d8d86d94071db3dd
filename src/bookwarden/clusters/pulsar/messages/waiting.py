"""Messages behind a subscription's position, read without a consumer: none is taken or acknowledged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pulsar

from bookwarden.clusters.pulsar.client_errors import translate
from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.messages.readers import received_message
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import Position, list_partitions, read_positions
from bookwarden.errors import NotFoundError
from bookwarden.ledgers.received import ReceivedMark, believed_properties

_QUIET_MS = 3000


class WaitingMessages:
    """Reads topics from a subscription's position to their end at the time when reading began.

    Of a message that is not on ``retry_topic`` the properties of phase two are left out (`believed_properties`).
    """

    def __init__(self, connection: PulsarConnection, admin: PulsarAdmin, subscription: str, retry_topic: str) -> None:
        self._connection = connection
        self._admin = admin
        self._subscription = subscription
        self._retry_topic = retry_topic

    def read(self, topics: Sequence[str]) -> Iterator[ReceivedMark]:
        """Yield the messages, partition by partition, including those that wait for their delay.

        Raises NotFoundError if a topic or its subscription does not exist.
        """
        spans = [
            (partition, *self._span(partition)) for topic in topics for partition in list_partitions(self._admin, topic)
        ]
        client = self._connection.client()
        try:
            for partition, start, end in spans:
                if start < end:
                    for received in _between(client, partition, start, end):
                        believed = believed_properties(received.properties, partition, self._retry_topic)
                        yield replace(received, properties=believed)
        finally:
            client.close()

    def _span(self, partition: str) -> tuple[Position, Position]:
        positions = read_positions(self._admin, partition)
        start = positions.cursors.get(self._subscription)
        if start is None:
            raise NotFoundError(f"{partition} has no subscription {self._subscription!r}; `bookwarden init` creates it")
        return start, positions.latest


def _between(client: pulsar.Client, partition: str, start: Position, end: Position) -> Iterator[ReceivedMark]:
    try:
        reader = client.create_reader(partition, pulsar.MessageId(-1, start.ledger_id, start.entry_id, -1))
    except pulsar.PulsarException as error:
        raise translate(error, f"opening a reader on {partition}") from error
    try:
        while True:
            try:
                message = reader.read_next(_QUIET_MS)
            except pulsar.Timeout:
                return
            except pulsar.PulsarException as error:
                raise translate(error, f"reading {partition}") from error
            found = message.message_id()
            position = Position(found.ledger_id(), found.entry_id())
            if position > end:
                return
            yield received_message(partition, message)
            # More of a batch may follow; then the next read ends the loop.
            if position == end and found.batch_index() < 0:
                return
    finally:
        reader.close()
