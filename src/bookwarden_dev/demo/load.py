"""Producers and consumers on many topics, message by message, and counts of what became of the messages."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import TracebackType
from typing import Any, Final

import pulsar

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.errors import PulsarError

SUBSCRIPTION: Final = "load"
_RECEIVE_MS: Final = 200
# A broker that was killed needs a while to come back.
_SEND_MS: Final = 120_000
_READ_MS: Final = 60_000
_JOIN_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class TopicTally:
    """Counts of what became of the messages of one topic."""

    topic: str  #: Full name.
    sent: int  #: Messages that the broker acknowledged.
    send_errors: int  #: Messages whose send failed.
    received: int  #: Different messages that the subscription received.
    lost: int  #: Acknowledged and not received.
    doubled: int  #: Received again after the first time.
    disordered: int  #: Received for the first time after a later one.
    longest_gap_s: float  #: Longest time between two acknowledgements by the broker.

    @classmethod
    def of(
        cls,
        topic: str,
        acknowledged: Collection[int],
        acknowledged_at: Sequence[float],
        send_errors: int,
        received: Sequence[int],
    ) -> TopicTally:
        """Count by the messages' numbers, in the order in which they were acknowledged and received."""
        different = set(received)
        return cls(
            topic,
            len(acknowledged),
            send_errors,
            len(different),
            len(set(acknowledged) - different),
            len(received) - len(different),
            _disordered(received),
            max((after - before for before, after in pairwise(acknowledged_at)), default=0.0),
        )


class Load:
    """A producer and a consumer for each topic, from `start` to `stop`; each message carries its number.

    As a context manager it closes its clients at the end, whatever happens inside.
    """

    def __init__(self, connection: PulsarConnection, topics: Sequence[str], per_second: float) -> None:
        """Make a load of a number of messages a second on each topic; nothing is connected yet."""
        # A client each: what one waits for must not hold up the other.
        self._sending, self._receiving = connection.client(), connection.client()
        self._topics = [_Topic(name, per_second) for name in topics]

    def start(self) -> None:
        """Subscribe to all topics, then send; PulsarError if a client cannot be made."""
        for topic in self._topics:
            topic.start(self._sending, self._receiving)

    def wait_for(self, more: int, seconds: float) -> None:
        """Wait until each topic has this many more acknowledged messages; PulsarError if that takes too long."""
        wanted = [(topic, len(topic.acknowledged) + more) for topic in self._topics]
        deadline = time.monotonic() + seconds
        for topic, count in wanted:
            while len(topic.acknowledged) < count:
                if time.monotonic() > deadline:
                    found = count - len(topic.acknowledged)
                    raise PulsarError(f"{topic.name} has {found} of {more} messages not sent within {seconds:.0f} s")
                time.sleep(0.02)

    def longest_gap(self, since: float, until: float) -> float:
        """Return the longest time in seconds without an acknowledged message of some topic, of time.monotonic."""
        return max(topic.longest_gap(since, until) for topic in self._topics)

    def stop(self, seconds: float = 60.0) -> list[TopicTally]:
        """Stop sending, wait for all answers, and at most ``seconds`` for the consumers; tally."""
        for topic in self._topics:
            topic.stop_sending()
        for topic in self._topics:
            topic.flush()
        deadline = time.monotonic() + seconds
        while any(topic.missing() for topic in self._topics) and time.monotonic() < deadline:
            time.sleep(0.05)
        for topic in self._topics:
            topic.stop_receiving()
        return [topic.tally() for topic in self._topics]

    def lost_to_a_reader(self, connection: PulsarConnection) -> dict[str, int]:
        """Read each topic from its beginning; return how many acknowledged messages are not there, by topic."""
        client = connection.client()
        try:
            return {topic.name: len(set(topic.acknowledged) - _numbers(client, topic.name)) for topic in self._topics}
        finally:
            client.close()

    def __enter__(self) -> Load:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for topic in self._topics:
            topic.stop_sending()
            topic.stop_receiving()
        self._sending.close()
        self._receiving.close()


class _Topic:
    """One topic's producer and consumer, each with a thread; lists only grow, and are read by other threads."""

    def __init__(self, name: str, per_second: float) -> None:
        self.name = name
        self._pause = 1 / per_second
        self.acknowledged: list[int] = []
        self._acknowledged_at: list[float] = []
        self._errors: list[object] = []
        self._received: list[int] = []
        self._sent_all, self._received_all = threading.Event(), threading.Event()
        self._sender: threading.Thread | None = None
        self._receiver: threading.Thread | None = None
        self._producer: Any = None

    def start(self, sending: pulsar.Client, receiving: pulsar.Client) -> None:
        # From the beginning: a consumer that comes late has missed nothing.
        consumer = receiving.subscribe(self.name, SUBSCRIPTION, initial_position=pulsar.InitialPosition.Earliest)
        self._producer = sending.create_producer(
            self.name, batching_enabled=False, block_if_queue_full=True, send_timeout_millis=_SEND_MS
        )
        self._receiver = _thread(self._receive, consumer)
        self._sender = _thread(self._send, self._producer)

    def longest_gap(self, since: float, until: float) -> float:
        inside = [since, *(at for at in list(self._acknowledged_at) if since < at < until), until]
        return max(after - before for before, after in pairwise(inside))

    def stop_sending(self) -> None:
        self._sent_all.set()

    def flush(self) -> None:
        _join(self._sender)
        if self._producer is not None:
            self._producer.flush()

    def stop_receiving(self) -> None:
        self._received_all.set()
        _join(self._receiver)

    def missing(self) -> set[int]:
        return set(self.acknowledged) - set(self._received)

    def tally(self) -> TopicTally:
        return TopicTally.of(
            self.name, self.acknowledged, self._acknowledged_at, len(self._errors), list(self._received)
        )

    def _send(self, producer: Any) -> None:
        due, number = time.monotonic(), 0
        while not self._sent_all.wait(max(0.0, due - time.monotonic())):
            producer.send_async(str(number).encode(), self._on_answer(number))
            number += 1
            due = max(due + self._pause, time.monotonic() - 1.0)

    def _on_answer(self, number: int) -> Any:
        def answered(result: Any, _message_id: Any) -> None:
            if result == pulsar.Result.Ok:
                self._acknowledged_at.append(time.monotonic())
                self.acknowledged.append(number)
            else:
                self._errors.append(result)

        return answered

    def _receive(self, consumer: Any) -> None:
        while not self._received_all.is_set():
            try:
                message = consumer.receive(timeout_millis=_RECEIVE_MS)
            except pulsar.Timeout:
                continue
            self._received.append(int(message.data()))
            consumer.acknowledge(message)


def _thread(work: Callable[[Any], None], argument: object) -> threading.Thread:
    thread = threading.Thread(target=work, args=(argument,), name="load", daemon=True)
    thread.start()
    return thread


def _join(thread: threading.Thread | None) -> None:
    if thread is not None:
        thread.join(_JOIN_S)


def _disordered(received: Iterable[int]) -> int:
    seen: set[int] = set()
    last, found = -1, 0
    for number in received:
        found += number < last and number not in seen
        seen.add(number)
        last = max(last, number)
    return found


def _numbers(client: pulsar.Client, topic: str) -> set[int]:
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = set()
    while reader.has_message_available():
        found.add(int(reader.read_next(timeout_millis=_READ_MS).data()))
    reader.close()
    return found
