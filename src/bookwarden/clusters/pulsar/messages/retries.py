"""Sends marks on to the retry topic and the DLQ, with the properties of the Java client (RetryMessageUtil)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.messages.producers import ConfirmedProducers
from bookwarden.clusters.pulsar.messages.switch_events import SWITCH_TOPIC
from bookwarden.clusters.pulsar.rest.schemas import SchemaRegistry, WriterSchema
from bookwarden.errors import NotFoundError
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.ledgers.received import (
    ATTEMPTS,
    DELAY_TIME,
    FIRST_PUBLISHED,
    FIRST_READ,
    OF_PHASE_TWO,
    ORIGIN_MESSAGE_ID,
    ORIGIN_MESSAGE_ID_MISSPELT,
    OUTCOME,
    REAL_SUBSCRIPTION,
    REAL_TOPIC,
    RECONSUME_TIMES,
    VERIFIED_AT,
    ReceivedMark,
    is_partition_of,
    properties_of_phase_two,
    travelling,
)

logger = logging.getLogger(__name__)


class RetrySender:
    """The outbox of the sweep: payload, key, event time and properties stay unchanged. Opens at the first send.

    A payload keeps its writer's schema: the message is sent by a producer of that schema, so the retry topic's and
    the DLQ's own registries know it and each copy carries a version that its topic can resolve.
    """

    def __init__(
        self,
        connection: PulsarConnection,
        retry_topic: str,
        dlq_topic: str,
        subscription: str,
        *,
        registry: SchemaRegistry,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._retry_topic = retry_topic
        self._dlq_topic = dlq_topic
        self._subscription = subscription
        self._registry = registry
        # As in Java: a delayed message is always an entry of its own. Chunks are for dead letters: no mark is so large.
        self._producers = ConfirmedProducers(connection.client, batching_enabled=False, chunking_enabled=True)

    def retry(self, received: ReceivedMark, delay_s: float, reason: str) -> None:
        """Send to the retry topic, with one more attempt counted, not to be delivered before the delay.

        It must be verified from the start: a delay starts over.
        """
        properties = self._origin(received)
        properties.pop(VERIFIED_AT, None)
        properties[RECONSUME_TIMES] = str(received.attempts + 1)
        self._send_later(received, properties, delay_s, reason)

    def delay(self, received: ReceivedMark, delay_s: float, verified_ms: int, reason: str) -> None:
        """Send to the retry topic, with its count unchanged and the time at which it was first verified."""
        properties = self._origin(received)
        properties[VERIFIED_AT] = str(verified_ms)
        self._send_later(received, properties, delay_s, reason)

    def wait(self, received: ReceivedMark, delay_s: float, reason: str) -> None:
        """Send to the retry topic, with its count unchanged; it must be verified from the start."""
        properties = self._origin(received)
        properties.pop(VERIFIED_AT, None)
        self._send_later(received, properties, delay_s, reason)

    def give_up(self, received: ReceivedMark, outcome: Outcome, reason: str) -> None:
        """Send to the DLQ with the reason, the outcome and the number of retries."""
        properties = self._origin(received)
        properties[OUTCOME] = outcome.value
        properties[ATTEMPTS] = str(received.attempts)
        self._send(self._dlq_topic, received, properties, reason)

    def flush(self) -> None:
        """Wait until each message is confirmed; raises UnconfirmedError when one is not."""
        self._producers.flush()

    def close(self) -> None:
        """Close the connection; call `flush` before."""
        self._producers.close()

    def _origin(self, received: ReceivedMark) -> dict[str, str]:
        """Return our properties with those of the origin; the first hop's values stay, as by Java's putIfAbsent."""
        properties = properties_of_phase_two(received)
        properties.setdefault(REAL_TOPIC, str(TopicName.parse(received.topic).base))
        properties.setdefault(REAL_SUBSCRIPTION, self._subscription)
        properties.setdefault(ORIGIN_MESSAGE_ID, received.message_id)
        properties.setdefault(ORIGIN_MESSAGE_ID_MISSPELT, received.message_id)
        properties.setdefault(FIRST_PUBLISHED, str(received.published_at))
        now_ms = int(self._clock() * 1000)
        properties.setdefault(FIRST_READ, str(now_ms - int(received.age(now_ms) * 1000)))
        return properties

    def _send_later(self, received: ReceivedMark, properties: dict[str, str], delay_s: float, reason: str) -> None:
        delay_ms = max(0, int(delay_s * 1000))
        properties[DELAY_TIME] = str(delay_ms)
        # By the clock of the store, as all ages of a mark: those of machines differ.
        self._send(self._retry_topic, received, properties, reason, int(self._clock() * 1000) + delay_ms)

    def _send(
        self,
        topic: str,
        received: ReceivedMark,
        properties: dict[str, str],
        reason: str,
        deliver_at: int | None = None,
    ) -> None:
        key, kept = travelling(received, properties, reason)
        if left_out := received.properties.keys() - kept.keys() - OF_PHASE_TWO:
            logger.warning(
                "message %s of %s goes on without %d of its properties: they are too many or too long",
                *(received.message_id, received.topic, len(left_out)),
            )
        self._producers.send(
            topic,
            received.payload,
            schema=self._schema(received),
            key=key,
            properties=kept,
            event_time=received.event_time,
            deliver_at=deliver_at,
            name=(received.topic, received.message_id),
        )

    def _schema(self, received: ReceivedMark) -> WriterSchema | None:
        # Another record's schema is not compatible with that of the DLQ.
        if not received.schema_version or is_partition_of(received.topic, SWITCH_TOPIC):
            return None
        try:
            return self._registry.written_with(received.topic, received.schema_version)
        except NotFoundError as error:
            logger.warning("message %s of %s goes on without a schema: %s", received.message_id, received.topic, error)
            return None
