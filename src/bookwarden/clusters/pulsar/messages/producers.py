"""Producers whose every message is confirmed."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Any, NamedTuple

import pulsar

from bookwarden.clusters.pulsar.client_errors import result_name, translate
from bookwarden.clusters.pulsar.rest.schemas import WriterSchema, for_encoded
from bookwarden.errors import UnconfirmedError

logger = logging.getLogger(__name__)

SEND_TIMEOUT_S = 30.0
# The client gives up a send after its timeout and calls back; this is for the call itself.
GRACE_S = 10.0


class ConfirmedProducers:
    """Producers by topic and schema over one client, opened when first needed; `flush` confirms every send.

    Not for use across a fork. ``connect`` opens the client, or returns one that the caller has; ``options`` go to
    Client.create_producer.
    """

    def __init__(
        self, connect: Callable[[], pulsar.Client], *, send_timeout_s: float = SEND_TIMEOUT_S, **options: Any
    ) -> None:
        self._connect = connect
        self._timeout_s = send_timeout_s
        self._options = {
            "send_timeout_millis": int(send_timeout_s * 1000),
            "block_if_queue_full": True,
            **options,
        }
        self._client: pulsar.Client | None = None
        self._opened: dict[tuple[str, WriterSchema | None], pulsar.Producer] = {}
        self._lock = threading.Lock()
        self._outstanding = _Outstanding()

    def producer(self, topic: str, schema: WriterSchema | None) -> pulsar.Producer:
        """Return the open producer for the topic; raise PulsarError when it cannot be opened."""
        with self._lock:
            found = self._opened.get((topic, schema))
            if found is not None:
                return found
            try:
                opened = self._connected().create_producer(topic, schema=for_encoded(schema), **self._options)
            except pulsar.PulsarException as error:
                raise translate(error, f"opening a producer on {topic}") from error
            self._opened[(topic, schema)] = opened
            return opened

    def partitions(self, topic: str) -> list[str]:
        """Return the topic's partitions in their order, or the topic itself; raise PulsarError without an answer."""
        with self._lock:
            try:
                found: list[str] = self._connected().get_topic_partitions(topic)
            except pulsar.PulsarException as error:
                raise translate(error, f"asking for the partitions of {topic}") from error
            return found

    def _connected(self) -> pulsar.Client:
        if self._client is None:
            self._client = self._connect()
        return self._client

    def send(
        self,
        topic: str,
        payload: bytes,
        *,
        schema: WriterSchema | None,
        key: str | None,
        properties: Mapping[str, str],
        event_time: int | None = None,
        deliver_at: int | None = None,
        name: Hashable = None,
    ) -> None:
        """Send without waiting; the next `flush` finds out whether it arrived. Times in ms since the epoch.

        ``name`` is that of the message in an UnconfirmedError.
        """
        producer = self.producer(topic, schema)
        producer.send_async(
            payload,
            self._outstanding.add(topic, name),
            properties=dict(properties),
            partition_key=key,
            event_timestamp=event_time,
            deliver_at=deliver_at,
        )

    def flush(self) -> None:
        """Wait until every send is confirmed; raise UnconfirmedError when one is not."""
        failures = self._outstanding.settle(self._timeout_s + GRACE_S)
        if failures:
            first = failures[0]
            raise UnconfirmedError(
                f"{len(failures)} messages were not confirmed; the first, to {first.topic}: {first.reason}",
                [failure.name for failure in failures],
            )

    def close(self) -> None:
        """Close the client and with it all producers; messages that are not confirmed may be lost."""
        with self._lock:
            client, self._client = self._client, None
            self._opened.clear()
        if client is None:
            return
        try:
            client.close()
        except pulsar.PulsarException as error:
            # Everything that counts was confirmed before; the broker itself ends a connection that is gone.
            logger.debug("closing the client: %s", error)


class _Unconfirmed(NamedTuple):
    topic: str
    name: Hashable
    reason: str = "no answer in time"


class _Outstanding:
    """Any number of sends, until they are settled together."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[int, _Unconfirmed] = {}
        self._failures: list[_Unconfirmed] = []
        self._numbers = itertools.count()

    def add(self, topic: str, name: Hashable) -> Any:
        with self._changed:
            number = next(self._numbers)
            self._waiting[number] = _Unconfirmed(topic, name)
            return partial(self._confirm, number)

    def _confirm(self, number: int, result: pulsar.Result, _: pulsar.MessageId) -> None:
        with self._changed:
            send = self._waiting.pop(number, None)
            if send is None:
                # A late answer, to what was reported as failed.
                return
            reason = reason_of(result)
            if reason is not None:
                self._failures.append(send._replace(reason=reason))
            if not self._waiting:
                self._changed.notify_all()

    def settle(self, timeout_s: float) -> list[_Unconfirmed]:
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting, timeout_s)
            failures = [*self._failures, *self._waiting.values()]
            self._waiting, self._failures = {}, []
            return failures


def reason_of(result: pulsar.Result) -> str | None:
    """Return why a send is not confirmed; None if it is."""
    return None if result == pulsar.Result.Ok else f"the broker answered {result_name(result)}"
