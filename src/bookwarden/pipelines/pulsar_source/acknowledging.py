"""Acknowledgement of finished batches on the durable subscription, believed only when the broker shows it."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Mapping

import pulsar

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.ledgers.managed_ledger import Position

_LOG = logging.getLogger(__name__)

# The client gathers acknowledgements for 100 ms and gives no answer to them; one lost at an unload is sent again
# by a new client, because the old one holds back what it believes to be acknowledged.
_UNCONFIRMED_S = 3.0
_TIMEOUT_S = 3
_PAUSE_S = 0.1


class Acknowledger:
    """A thread that acknowledges on one Failover subscription until the mark-delete positions are up to date.

    Failures of the broker are retried for ever: a late acknowledgement costs nothing but space.
    """

    def __init__(self, connection: PulsarConnection, subscription: str) -> None:
        self._connection = connection
        self._subscription = subscription
        self._wanted: dict[str, Position] = {}
        self._sent: dict[str, tuple[Position, float]] = {}
        self._client: pulsar.Client | None = None
        self._consumers: dict[str, pulsar.Consumer] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def want(self, finished: Mapping[str, Position], marked: Mapping[str, Position]) -> None:
        """Request the acknowledgement of everything up to `finished`, given the mark-delete positions last seen."""
        with self._changed:
            for topic, position in finished.items():
                # A position before a ledger's first entry acknowledges nothing more than the end of the ledger before.
                if position.entry_id >= 0:
                    self._wanted[topic] = max(position, self._wanted.get(topic, position))
            for topic, position in marked.items():
                if topic in self._wanted and position >= self._wanted[topic]:
                    del self._wanted[topic]
                    self._sent.pop(topic, None)
            if self._wanted and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="pulsar-acknowledger", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    @property
    def unconfirmed(self) -> frozenset[str]:
        """The partitions whose acknowledgement the broker has not shown yet."""
        with self._changed:
            return frozenset(self._wanted)

    def _run(self) -> None:
        while True:
            due = self._wait_for_due()
            if any(again for _, _, again in due):
                self._drop_client()
            for topic, position, _ in due:
                try:
                    self._acknowledge(topic, position)
                except pulsar.PulsarException as error:
                    _LOG.info("%s: acknowledging %s failed (%s); again soon", topic, position, type(error).__name__)
                    self._drop_client()
                    time.sleep(_PAUSE_S)
                    # One topic that cannot be acknowledged holds up no other.
                    continue
                with self._changed:
                    self._sent[topic] = (position, time.monotonic())

    def _wait_for_due(self) -> list[tuple[str, Position, bool]]:
        with self._changed:
            while True:
                due = [found for topic in self._wanted if (found := self._due(topic)) is not None]
                if due:
                    return due
                self._changed.wait(_UNCONFIRMED_S / 4 if self._wanted else None)

    def _due(self, topic: str) -> tuple[str, Position, bool] | None:
        wanted = self._wanted[topic]
        sent, at = self._sent.get(topic, (None, 0.0))
        again = sent is not None and time.monotonic() - at >= _UNCONFIRMED_S
        return (topic, wanted, again) if sent != wanted or again else None

    def _acknowledge(self, topic: str, position: Position) -> None:
        if self._client is None:
            self._client = self._connection.client(operation_timeout_seconds=_TIMEOUT_S)
        consumer = self._consumers.get(topic)
        if consumer is None:
            # Queue size 0: the consumer is there to acknowledge and must never be given a message.
            consumer = self._client.subscribe(
                topic,
                self._subscription,
                consumer_type=pulsar.ConsumerType.Failover,
                receiver_queue_size=0,
                initial_position=pulsar.InitialPosition.Earliest,
            )
            self._consumers[topic] = consumer
        # Batch index -1 means the whole entry; any other index of a batched entry would be taken as the whole too.
        consumer.acknowledge_cumulative(pulsar.MessageId(-1, position.ledger_id, position.entry_id, -1))

    def _drop_client(self) -> None:
        client, self._client = self._client, None
        self._consumers.clear()
        with self._changed:
            self._sent.clear()
        if client is not None:
            threading.Thread(target=_close, args=(client,), daemon=True).start()


def _close(client: pulsar.Client) -> None:
    # A client that cannot be closed is broken already; the broker drops its consumers with the connection.
    with contextlib.suppress(pulsar.PulsarException):
        client.close()
