"""The DLQ as its subscription sees it: read without acknowledging, then acknowledged one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pulsar

from bookwarden.clusters.pulsar.client_errors import translate
from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.messages.producers import ConfirmedProducers
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.schemas import SchemaRegistry, WriterSchema
from bookwarden.clusters.pulsar.rest.topic_positions import list_partitions, read_positions
from bookwarden.errors import PulsarConflictError
from bookwarden.ledgers.managed_ledger import Position
from bookwarden.ledgers.received import ReceivedMark

_QUIET_MS = 3000
# The last messages that were read, of which any may be acknowledged.
_MOST_HELD = 1000


class DeadLetterTopic:
    """The DLQ of a deletion topic; for one holder at a time, since a second would take part of the messages."""

    def __init__(
        self, connection: PulsarConnection, admin: PulsarAdmin, dlq_topic: str, topic: str, subscription: str
    ) -> None:
        self._connection = connection
        self._admin = admin
        self._dlq_topic = dlq_topic
        self._topic = topic
        self._subscription = subscription

    @contextmanager
    def open(self) -> Iterator[DeadLetterConsumer]:
        """Hold the subscription until the context ends; NotFoundError if the DLQ does not exist."""
        partitions = list_partitions(self._admin, self._dlq_topic)
        ends = {partition: read_positions(self._admin, partition).latest for partition in partitions}
        client = self._connection.client()
        producers = ConfirmedProducers(lambda: client, batching_enabled=False)
        try:
            consumer = DeadLetterConsumer(
                client, producers, SchemaRegistry(self._admin), ends, self._topic, self._subscription
            )
            yield consumer
            consumer.close()
        finally:
            client.close()


class DeadLetterConsumer:
    """Consumers of the DLQ's partitions while they are held; messages that are not acknowledged stay."""

    def __init__(
        self,
        client: pulsar.Client,
        producers: ConfirmedProducers,
        registry: SchemaRegistry,
        ends: Mapping[str, Position],
        topic: str,
        subscription: str,
    ) -> None:
        self._client = client
        self._producers = producers
        self._registry = registry
        self._ends = ends
        self._topic = topic
        self._subscription = subscription
        self._consumers: dict[str, pulsar.Consumer] = {}
        self._ids: dict[str, pulsar.MessageId] = {}

    def __iter__(self) -> Iterator[ReceivedMark]:
        for partition, end in self._ends.items():
            if end.entry_id < 0:
                continue
            consumer = self._subscribe(partition)
            while True:
                message = self._receive(consumer, partition)
                if message is None:
                    break
                found = message.message_id()
                position = Position(found.ledger_id(), found.entry_id())
                if position > end:
                    break
                received = received_message(partition, message)
                self._ids[received.message_id] = found
                if len(self._ids) > _MOST_HELD:
                    del self._ids[next(iter(self._ids))]
                yield received
                # More of a batch may follow; then the next receive ends the loop.
                if position == end and found.batch_index() < 0:
                    break

    def send_back(self, received: ReceivedMark, properties: Mapping[str, str]) -> None:
        """Send the payload to the deletion topic with these properties, without waiting."""
        schema: WriterSchema | None = None
        if received.schema_version:
            schema = self._registry.written_with(received.topic, received.schema_version)
        self._producers.send(
            self._topic,
            received.payload,
            schema=schema,
            key=received.key,
            properties=properties,
            event_time=received.event_time,
        )

    def confirm(self) -> None:
        """Wait until everything that was sent back is confirmed."""
        self._producers.flush()

    def acknowledge(self, received: ReceivedMark) -> None:
        """Remove the message from the DLQ."""
        try:
            self._consumers[received.topic].acknowledge(self._ids.pop(received.message_id))
        except pulsar.PulsarException as error:
            raise translate(error, f"acknowledging {received.message_id} of {received.topic}") from error

    def close(self) -> None:
        """Close the consumers, which sends the acknowledgements that are waiting."""
        for partition, consumer in self._consumers.items():
            try:
                consumer.close()
            except pulsar.PulsarException as error:
                raise translate(error, f"closing the consumer of {partition}") from error
        self._consumers.clear()

    def _subscribe(self, partition: str) -> pulsar.Consumer:
        try:
            consumer = self._client.subscribe(
                partition,
                self._subscription,
                consumer_type=pulsar.ConsumerType.Exclusive,
                initial_position=pulsar.InitialPosition.Earliest,
                receiver_queue_size=1000,
            )
        except pulsar.ConsumerBusy as error:
            raise PulsarConflictError(
                f"another consumer holds {self._subscription} of {partition}: wait until it is done"
            ) from error
        except pulsar.PulsarException as error:
            raise translate(error, f"subscribing to {partition}") from error
        self._consumers[partition] = consumer
        return consumer

    def _receive(self, consumer: pulsar.Consumer, partition: str) -> pulsar.Message | None:
        try:
            return consumer.receive(_QUIET_MS)
        except pulsar.Timeout:
            return None
        except pulsar.PulsarException as error:
            raise translate(error, f"reading {partition}") from error


def received_message(partition: str, message: pulsar.Message) -> ReceivedMark:
    """Convert a message, without decoding its payload."""
    found = message.message_id()
    batch = f":{found.batch_index()}" if found.batch_index() >= 0 else ""
    # The public accessor decodes the bytes as UTF-8, which fails from version 128 on.
    version = message._message.int_schema_version()
    return ReceivedMark(
        topic=partition,
        message_id=f"{found.ledger_id()}:{found.entry_id()}:{found.partition()}{batch}",
        key=message.partition_key() or None,
        payload=message.data(),
        properties=message.properties(),
        published_at=message.publish_timestamp(),
        event_time=message.event_timestamp() or None,
        schema_version=version.to_bytes(8, "big") if version >= 0 else None,
    )
