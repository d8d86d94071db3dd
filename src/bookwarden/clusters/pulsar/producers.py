"""Producers whose every message is confirmed: for marks by the thousand, and for messages that are sent on."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, Protocol

import pulsar

from bookwarden.clusters.pulsar.client_errors import result_name, translate
from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.schemas import WriterSchema, for_encoded
from bookwarden.errors import MarkingInterrupted, PulsarUnavailableError
from bookwarden.ledgers.pending_deletion import PendingDeletion

logger = logging.getLogger(__name__)

_SEND_TIMEOUT_S = 30.0
# The client gives up a send after its timeout and calls back; this much more is for the call itself.
_GRACE_S = 10.0


class MarkEncoder(Protocol):
    """Turns pending deletions into payloads of one registered schema."""

    def encode(self, mark: PendingDeletion) -> bytes:
        """Return the payload."""

    def registry_schema(self) -> str:
        """Return the Avro schema as Pulsar's registry keeps it."""


class PendingDeletionSender:
    """Sends pending deletions to the deletion topic, many at once; connects at the first send. Thread-safe.

    Messages of one holder share a key, hence a partition and their order. At most ``max_pending`` wait per
    partition: beyond that a send waits for room.
    """

    def __init__(
        self,
        connection: PulsarConnection,
        topic: str,
        encoder: MarkEncoder,
        *,
        max_pending: int = 20_000,
        send_timeout_s: float = _SEND_TIMEOUT_S,
    ) -> None:
        self._encoder = encoder
        self._timeout_s = send_timeout_s
        self._producers = ConfirmedProducers(
            connection,
            send_timeout_s=send_timeout_s,
            max_pending_messages=max_pending,
            max_pending_messages_across_partitions=max_pending * 8,
            batching_enabled=True,
            batching_max_messages=1000,
            batching_max_publish_delay_ms=10,
        )
        self._topic = topic

    def send_all(self, marks: Sequence[PendingDeletion]) -> list[str | None]:
        """Send each and wait for the broker; None where it confirmed, else the reason, in the order given.

        Raises PulsarError only when nothing could be sent at all. A send that timed out may have arrived: that is
        harmless as long as its ledger stays referenced. MarkingInterrupted (a KeyboardInterrupt) tells how many were
        confirmed before Ctrl-C.
        """
        if not marks:
            return []
        waiting = _Confirmations(len(marks))
        try:
            with _interruptible():
                self._send_each(marks, waiting)
            return waiting.results(self._timeout_s + _GRACE_S)
        except KeyboardInterrupt as interrupt:
            raise MarkingInterrupted(waiting.confirmed(), len(marks)) from interrupt

    def _send_each(self, marks: Sequence[PendingDeletion], waiting: _Confirmations) -> None:
        schema = WriterSchema("AVRO", self._encoder.registry_schema())
        send = self._producers.producer(self._topic, schema).send_async
        encode = self._encoder.encode
        confirm = waiting.confirm
        keys: dict[tuple[object, ...], str] = {}
        for index, mark in enumerate(marks):
            named = (mark.topic_name, mark.component, mark.cursor_name, mark.schema_id)
            key = keys.get(named)
            if key is None:
                key = keys[named] = str(mark.holder())
            send(encode(mark), partial(confirm, index), partition_key=key)

    def close(self) -> None:
        """Close the connection; a later send opens a new one."""
        self._producers.close()

    def __enter__(self) -> PendingDeletionSender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ConfirmedProducers:
    """Producers by topic and schema over one client, opened when first needed; `flush` confirms every send.

    Not for use across a fork. ``options`` go to Client.create_producer.
    """

    def __init__(
        self, connection: PulsarConnection, *, send_timeout_s: float = _SEND_TIMEOUT_S, **options: Any
    ) -> None:
        self._connection = connection
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
            if self._client is None:
                self._client = self._connection.client()
            try:
                opened = self._client.create_producer(topic, schema=for_encoded(schema), **self._options)
            except pulsar.PulsarException as error:
                raise translate(error, f"opening a producer on {topic}") from error
            self._opened[(topic, schema)] = opened
            return opened

    def send(
        self,
        topic: str,
        payload: bytes,
        *,
        schema: WriterSchema | None,
        key: str | None,
        properties: Mapping[str, str],
        event_time: int | None = None,
        delay_s: float = 0.0,
    ) -> None:
        """Send without waiting; the next `flush` tells whether it arrived. Times in milliseconds, delay in seconds."""
        producer = self.producer(topic, schema)
        producer.send_async(
            payload,
            self._outstanding.add(topic),
            properties=dict(properties),
            partition_key=key,
            event_timestamp=event_time,
            deliver_after=timedelta(seconds=delay_s) if delay_s > 0 else None,
        )

    def flush(self) -> None:
        """Wait until every send is confirmed; raise PulsarUnavailableError when one is not."""
        failures = self._outstanding.settle(self._timeout_s + _GRACE_S)
        if failures:
            raise PulsarUnavailableError(
                f"{len(failures)} messages were not confirmed; the first, to {failures[0]}: nothing counts as sent"
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
            # Everything that counts was confirmed before; the broker ends a connection that is gone by itself.
            logger.debug("closing the client: %s", error)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C be a KeyboardInterrupt.

    The native `send_async` looks for signals and returns although it found one, which Python reports as a SystemError.
    """
    try:
        yield
    except SystemError as error:
        if isinstance(error.__cause__, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        raise


class _Confirmations:
    """What became of a known number of sends, by index."""

    def __init__(self, count: int) -> None:
        self._results: list[pulsar.Result | None] = [None] * count
        self._last = count - 1
        self._arrived = itertools.count()
        self._complete = threading.Event()

    def confirm(self, index: int, result: pulsar.Result, _: pulsar.MessageId) -> None:
        # Runs on the client's threads, where an exception would end the process; each step is atomic by itself.
        self._results[index] = result
        if next(self._arrived) == self._last:
            self._complete.set()

    def results(self, timeout_s: float) -> list[str | None]:
        self._complete.wait(timeout_s)
        return [_reason(result) for result in self._results]

    def confirmed(self) -> int:
        return self._results.count(pulsar.Result.Ok)


class _Outstanding:
    """Sends of an open number, until they are settled together."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting = 0
        self._failures: list[str] = []
        self._round = 0

    def add(self, topic: str) -> Any:
        with self._changed:
            self._waiting += 1
            return partial(self._confirm, topic, self._round)

    def _confirm(self, topic: str, round_: int, result: pulsar.Result, _: pulsar.MessageId) -> None:
        with self._changed:
            if round_ != self._round:
                return
            self._waiting -= 1
            reason = _reason(result)
            if reason is not None:
                self._failures.append(f"{topic}: {reason}")
            if self._waiting == 0:
                self._changed.notify_all()

    def settle(self, timeout_s: float) -> list[str]:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting == 0, timeout_s)
            failures = self._failures + ["a topic: no answer in time"] * self._waiting
            # Late answers belong to a round that was reported as failed.
            self._round += 1
            self._waiting, self._failures = 0, []
            return failures


def _reason(result: pulsar.Result | None) -> str | None:
    if result == pulsar.Result.Ok:
        return None
    return "the broker did not confirm in time" if result is None else f"the broker answered {result_name(result)}"
