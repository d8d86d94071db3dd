"""Sending pending deletions by the thousand, each confirmed by the broker or reported."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from types import TracebackType
from typing import Any, Final, NamedTuple
from zlib import crc32

import pulsar

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.messages.producers import GRACE_S, SEND_TIMEOUT_S, ConfirmedProducers, reason_of
from bookwarden.clusters.pulsar.rest.schemas import WriterSchema
from bookwarden.errors import MarkingInterrupted
from bookwarden.ledgers.pending_deletion import PendingDeletion
from bookwarden.ledgers.received import DELAY_TIME, REAL_TOPIC, waiving
from bookwarden.wire.avro import PendingDeletionCodec

# A batch with a single answer: the number of messages, and the most characters of payloads and keys.
_WHOLE_BATCH: Final = 500
_WHOLE_BATCH_CHARACTERS: Final = 256 * 1024
# The client's own limit of a batch, too large to reach even at four bytes a character: it must not split our batches.
_CLIENTS_BATCH_BYTES: Final = 2 * 1024 * 1024

# Of a partition: beyond that a send waits for room.
_MOST_PENDING: Final = 20_000

_NO_ANSWER: Final = "the broker did not confirm in time"


_Confirm = Callable[[pulsar.Result, pulsar.MessageId], None]


class PendingDeletionSender:
    """Sends pending deletions to the deletion topic, many at once; connects at the first send. Thread-safe.

    Messages of one holder share a key, a partition (by the key's CRC-32; the client's own choice is unpredictable)
    and their order. Where many wait for a partition a send waits for room.

    Six sevenths of a send's cost are its callback into Python. So marks that fill whole batches are sent as such, with
    a callback for the last message alone: the broker takes a batch as one entry, and the message's place in it proves
    that the others were there. The rest is sent after them, with a callback for each mark.
    """

    def __init__(
        self,
        connection: PulsarConnection,
        topic: str,
        encoder: PendingDeletionCodec,
        *,
        send_timeout_s: float = SEND_TIMEOUT_S,
    ) -> None:
        self._encoder = encoder
        self._timeout_s = send_timeout_s
        options: dict[str, Any] = {
            "send_timeout_s": send_timeout_s,
            "max_pending_messages": _MOST_PENDING,
            "batching_enabled": True,
        }
        self._producers = ConfirmedProducers(
            connection.client, batching_max_messages=1000, batching_max_publish_delay_ms=10, **options
        )
        # Over a client of their own, which is closed to drop a part of a batch that is left in it.
        # A batch leaves with its last message; the client's delay, which would split a batch, is never reached.
        self._batch_producers = ConfirmedProducers(
            connection.client,
            batching_max_messages=_WHOLE_BATCH,
            batching_max_allowed_size_in_bytes=_CLIENTS_BATCH_BYTES,
            batching_max_publish_delay_ms=int(2 * send_timeout_s * 1000),
            **options,
        )
        self._filling = threading.Lock()
        self._topic = topic

    def send_all(
        self,
        marks: Sequence[PendingDeletion],
        properties: Mapping[str, str] | None = None,
        deliver_at: int | None = None,
    ) -> list[str | None]:
        """Send each and wait for the broker; None where it confirmed, else the reason, in the order given.

        ``properties`` are set on each; without ``deliver_at``, in milliseconds since the epoch, they are for now.

        Raises PulsarError only when nothing could be sent at all. A send that timed out may have arrived: that is
        harmless as long as its ledger stays referenced. MarkingInterrupted (a KeyboardInterrupt) says how many were
        confirmed before Ctrl-C.
        """
        if not marks:
            return []
        confirmations = _Confirmations(len(marks))
        try:
            with _interruptible():
                partitions = self._producers.partitions(self._topic)
                producers = self._open(self._producers, partitions)
                messages = self._messages(marks, len(partitions), properties or {}, deliver_at)
                # The client sends each delayed message as an entry of its own.
                if len(marks) >= _WHOLE_BATCH and deliver_at is None:
                    messages = self._send_whole_batches(messages, partitions, confirmations)
                self._send_each(list(messages), producers, confirmations)
            return confirmations.results()
        except KeyboardInterrupt as interrupt:
            raise MarkingInterrupted(confirmations.confirmed(), len(marks)) from interrupt

    # Fast path of PendingDeletionSender._send_each, must equal it: tests/unit/clusters/test_mark_sender.py
    def _send_whole_batches(
        self, messages: Iterator[_Message], partitions: Sequence[str], confirmations: _Confirmations
    ) -> Iterator[_Message]:
        """Send the marks that fill whole batches, wait for the answers, and return the remaining messages."""
        batches = [_Batch() for _ in partitions]
        left: list[_Message] = []
        try:
            # Messages of two calls must not meet in one batch.
            with self._filling:
                producers = self._open(self._batch_producers, partitions)
                for message in messages:
                    number = message.partition
                    batches[number].add(message)
                    if not batches[number].is_full:
                        continue
                    batch, batches[number] = batches[number], _Batch()
                    if batch.characters > _WHOLE_BATCH_CHARACTERS:
                        left += batch.messages
                    else:
                        confirmations.expect(1)
                        batch.send(producers[number], confirmations)
            # The rest goes after them, so that the order of a holder's marks is kept.
            all_confirmed = confirmations.wait(self._timeout_s + GRACE_S)
        except BaseException:
            self._batch_producers.close()
            raise
        if not all_confirmed:
            # Messages that are still in the client must not begin the next batch.
            self._batch_producers.close()
        return chain(left, *(batch.messages for batch in batches))

    def _send_each(
        self, messages: Sequence[_Message], producers: Sequence[pulsar.Producer], confirmations: _Confirmations
    ) -> None:
        confirmations.expect(len(messages))
        for message in messages:
            confirm = partial(confirmations.confirm, message.place)
            message.send(producers[message.partition], confirm)
        confirmations.wait(self._timeout_s + GRACE_S)

    def _open(self, producers: ConfirmedProducers, partitions: Sequence[str]) -> list[pulsar.Producer]:
        schema = WriterSchema("AVRO", self._encoder.registry_schema())
        return [producers.producer(partition, schema) for partition in partitions]

    def _messages(
        self, marks: Sequence[PendingDeletion], partitions: int, all_have: Mapping[str, str], deliver_at: int | None
    ) -> Iterator[_Message]:
        encode = self._encoder.encode
        routes: dict[tuple[object, ...], tuple[int, str]] = {}
        for place, mark in enumerate(marks):
            named = (mark.topic_name, mark.component, mark.cursor_name, mark.schema_id)
            route = routes.get(named)
            if route is None:
                key = str(mark.holder())
                route = routes[named] = (crc32(key.encode("utf-8")) % partitions, key)
            properties = {**all_have, **waiving(mark.waives)} if all_have or mark.waives else None
            yield _Message(place, route[0], encode(mark), route[1], properties, deliver_at)

    def close(self) -> None:
        """Close the connections; a later send opens new ones."""
        self._producers.close()
        self._batch_producers.close()

    def __enter__(self) -> PendingDeletionSender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class DelayedSender:
    """Sends pending deletions to the retry topic, by a sender of that, for the sweep to read them after a delay.

    The messages are as those of `RetrySender`, with no retry counted; ``origin`` is the deletion topic.
    """

    def __init__(
        self,
        sender: PendingDeletionSender,
        delay_s: float,
        origin: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._sender = sender
        self._delay_ms = max(0, int(delay_s * 1000))
        self._origin = origin
        self._clock = clock

    def send_all(self, marks: Sequence[PendingDeletion]) -> list[str | None]:
        """Send each and wait for the broker, as PendingDeletionSender does."""
        properties = {DELAY_TIME: str(self._delay_ms), REAL_TOPIC: self._origin}
        return self._sender.send_all(marks, properties, int(self._clock() * 1000) + self._delay_ms)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Turn Ctrl-C into a KeyboardInterrupt.

    The native `send_async` checks for signals but returns normally after one, which Python reports as a SystemError.
    """
    try:
        yield
    except SystemError as error:
        if isinstance(error.__cause__, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        raise


class _Message(NamedTuple):
    place: int  #: In the marks that were given.
    partition: int  #: Number of the topic's.
    payload: bytes  #: The mark, encoded.
    key: str  #: Text of the holder.
    properties: dict[str, str] | None = None  #: None for none.
    deliver_at: int | None = None  #: In ms since the epoch; None for now.

    def send(self, producer: pulsar.Producer, confirm: _Confirm | None) -> None:
        """Hand it to the client, which calls back with the broker's answer."""
        producer.send_async(
            self.payload, confirm, properties=self.properties, partition_key=self.key, deliver_at=self.deliver_at
        )


@dataclass
class _Batch:
    """Messages that the broker gets, and confirms, as one entry."""

    messages: list[_Message] = field(default_factory=list)
    characters: int = 0

    def add(self, message: _Message) -> None:
        self.messages.append(message)
        self.characters += len(message.payload) + len(message.key)

    @property
    def is_full(self) -> bool:
        return len(self.messages) == _WHOLE_BATCH

    def send(self, producer: pulsar.Producer, confirmations: _Confirmations) -> None:
        *others, last = self.messages
        for message in others:
            message.send(producer, None)
        last.send(producer, partial(confirmations.confirm_batch, self))


class _Confirmations:
    """The result of each send, by index. The client's threads confirm; an exception there would end the process."""

    def __init__(self, count: int) -> None:
        self._reasons: list[str | None] = [_NO_ANSWER] * count
        self._changed = threading.Condition()
        self._expected = 0
        self._refused = False

    def expect(self, answers: int) -> None:
        with self._changed:
            self._expected += answers

    def confirm(self, index: int, result: pulsar.Result, _: pulsar.MessageId) -> None:
        reason = reason_of(result)
        self._reasons[index] = reason
        self._answered(reason)

    def confirm_batch(self, batch: _Batch, result: pulsar.Result, last: pulsar.MessageId) -> None:
        """Take the answer to the last message of a batch; its place in the batch shows that it was sent as one."""
        reason = reason_of(result)
        if reason is None and last.batch_index() != len(batch.messages) - 1:
            reason = "the client sent its batch in parts, of which only the last one is known to be confirmed"
        for message in batch.messages:
            self._reasons[message.place] = reason
        self._answered(reason)

    def _answered(self, reason: str | None) -> None:
        with self._changed:
            self._refused |= reason is not None
            self._expected -= 1
            if self._expected == 0:
                self._changed.notify_all()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the expected answers; return whether all came and confirmed."""
        with self._changed:
            self._changed.wait_for(lambda: self._expected == 0, timeout_s)
            return self._expected == 0 and not self._refused

    def results(self) -> list[str | None]:
        return list(self._reasons)

    def confirmed(self) -> int:
        return self._reasons.count(None)
