"""Producers and consumers of many kinds that go on while their topics move, and an account of every message.

A message carries its number; a number that the broker confirmed and no consumer received is lost, one that was received
again is doubled.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import pulsar

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.errors import PulsarError
from bookwarden_dev.demo.load import TopicTally

_RECEIVE_MS: Final = 200
_SEND_MS: Final = 60_000
_JOIN_S: Final = 90.0
_CLOSE_S: Final = 20.0
_LOOK_S: Final = 0.05

EXCLUSIVE: Final = pulsar.ConsumerType.Exclusive
FAILOVER: Final = pulsar.ConsumerType.Failover
SHARED: Final = pulsar.ConsumerType.Shared
KEY_SHARED: Final = pulsar.ConsumerType.KeyShared


@dataclass(frozen=True, slots=True)
class Flow:
    """Messages through one topic: who sends them and who receives them."""

    topic: str  #: Full name.
    subscription: str | None = "app"  #: None where no consumer receives.
    per_second: float = 20.0  #: Messages sent.
    consumers: int = 1  #: Of the subscription.
    kind: Any = EXCLUSIVE  #: The subscription's type.
    earliest: bool = False  #: Where a subscription that is not there yet begins; clients' default is the latest.
    pause_s: float = 0.0  #: Between two messages of a consumer: a long one makes a backlog.
    keys: int = 0  #: Number of different keys; 0 for messages without.
    deliver_after_s: float = 0.0  #: Delay of delivery.
    is_away: bool = False  #: Its consumers come back only when `Traffic.arrive` calls them.


@dataclass(frozen=True, slots=True)
class Account:
    """Counts of the messages of one flow, and the errors of its clients."""

    flow: Flow
    tally: TopicTally
    errors: tuple[str, ...]  #: Of its clients: what ended one of them before its time.


class Traffic:
    """The flows from `start` to `stop`; as a context manager it closes its clients at the end."""

    def __init__(self, connection: PulsarConnection, flows: Sequence[Flow]) -> None:
        self._connection = connection
        self._clients: list[pulsar.Client] = []
        self._sending = self._client()
        self._flows = {flow.topic: _Running(flow) for flow in flows}

    def start(self) -> None:
        """Subscribe everywhere, then send; the consumers of flows that are away subscribe and leave."""
        for running in self._flows.values():
            running.subscribe(self._client)
        for running in self._flows.values():
            running.send(self._sending)

    def arrive(self) -> None:
        """Bring back the consumers that are away."""
        for running in self._flows.values():
            if running.flow.is_away:
                running.come_back(self._client)

    def restart_consumers(self, topics: Collection[str]) -> None:
        """Have new consumers in the place of those of these topics, which hang: what they wait for never comes."""
        for topic in topics:
            self._flows[topic].come_back(self._client)

    def sent(self, topic: str) -> int:
        """Return how many messages of the topic are confirmed."""
        return len(self._flows[topic].acknowledged)

    def numbers(self, topic: str) -> set[int]:
        """Return the numbers of the topic's confirmed messages."""
        return set(self._flows[topic].acknowledged)

    def wait_for(self, more: int, seconds: float, topics: Collection[str] | None = None) -> None:
        """Wait until all flows, or these, have ``more`` confirmed messages; PulsarError if that takes too long."""
        wanted = {topic: self.sent(topic) + more for topic in (self._flows if topics is None else topics)}
        deadline = time.monotonic() + seconds
        while behind := [topic for topic, count in wanted.items() if self.sent(topic) < count]:
            if time.monotonic() > deadline:
                raise PulsarError(f"not {more} messages more within {seconds:.0f} s on {', '.join(behind)}")
            time.sleep(_LOOK_S)

    def stop(self, seconds: float = 60.0) -> list[Account]:
        """Stop sending, wait for answers, and at most ``seconds`` for consumers, which hurry; account for each flow."""
        flows = list(self._flows.values())
        for running in flows:
            running.sent_all.set()
        for running in flows:
            running.join_sender()
        deadline = time.monotonic() + seconds
        while any(running.missing() for running in flows) and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        for running in flows:
            running.stop_receiving()
        return [running.account() for running in flows]

    def __enter__(self) -> Traffic:
        return self

    def __exit__(self, *_: object) -> None:
        for running in self._flows.values():
            running.sent_all.set()
        for running in self._flows.values():
            # A client that is closed under a sender may never return.
            running.join_sender()
            running.stop_receiving()
        closing = [_thread(lambda client: client.close(), client) for client in self._clients]
        for thread in closing:
            # One whose consumer hangs never returns.
            thread.join(_CLOSE_S)

    def _client(self) -> pulsar.Client:
        """Make a client of its own for each consumer, as applications have it.

        A client closes its connection when one of the topics on it is migrated, and its other consumers subscribe
        again; where the topic of one of these is migrated in that moment, the client hangs for ever (docs/findings.md).
        """
        client = self._connection.client()
        self._clients.append(client)
        return client


class _Running:
    """One flow's clients, each with a thread; lists only grow, and are read by other threads."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.acknowledged: list[int] = []
        self.sent_all = threading.Event()
        self._acknowledged_at: list[float] = []
        self._failed: list[int] = []
        self._received: list[int] = []
        self._received_all = threading.Event()
        self._errors: list[str] = []
        self._threads: list[threading.Thread] = []
        self._sender: threading.Thread | None = None

    def subscribe(self, connect: Callable[[], pulsar.Client]) -> None:
        if self.flow.subscription is None:
            return
        if self.flow.is_away:
            self._consumer(connect(), 0).close()
        else:
            self.receive(connect)

    def receive(self, connect: Callable[[], pulsar.Client]) -> None:
        for number in range(self.flow.consumers):
            self._threads.append(_thread(self._receive, self._consumer(connect(), number)))

    def come_back(self, connect: Callable[[], pulsar.Client]) -> None:
        """Receive as `receive` does, and return at once: a subscription of a topic that is moving may take for ever."""
        for number in range(self.flow.consumers):
            self._threads.append(_thread(lambda one: self._return(connect(), one), number))

    def _return(self, client: pulsar.Client, number: int) -> None:
        """Subscribe, as often as it takes: blue may hold a consumer that hangs for half a minute; then receive."""
        while not self._received_all.wait(0.0):
            try:
                consumer = self._consumer(client, number)
            except pulsar.PulsarException as error:
                self._note(f"subscribe: {type(error).__name__}")
                time.sleep(_LOOK_S)
                continue
            self._receive(consumer)
            return

    def send(self, client: pulsar.Client) -> None:
        producer = client.create_producer(
            self.flow.topic, batching_enabled=False, block_if_queue_full=True, send_timeout_millis=_SEND_MS
        )
        self._sender = _thread(self._send, producer)

    def join_sender(self) -> None:
        if self._sender is not None:
            self._sender.join(_JOIN_S)

    def stop_receiving(self) -> None:
        self._received_all.set()
        for thread in self._threads:
            thread.join(_CLOSE_S)
            if thread.is_alive():
                self._note("receive: a consumer hangs in the client")

    def missing(self) -> set[int]:
        return set() if self.flow.subscription is None else set(self.acknowledged) - set(self._received)

    def account(self) -> Account:
        tally = TopicTally.of(
            self.flow.topic, self.acknowledged, self._acknowledged_at, len(self._failed), list(self._received)
        )
        return Account(self.flow, tally, tuple(self._errors))

    def _consumer(self, client: pulsar.Client, number: int) -> Any:
        start = pulsar.InitialPosition.Earliest if self.flow.earliest else pulsar.InitialPosition.Latest
        return client.subscribe(
            self.flow.topic,
            self.flow.subscription,
            consumer_type=self.flow.kind,
            consumer_name=f"{self.flow.subscription}-{number}",
            initial_position=start,
            # What one consumer has fetched, no other can get to.
            receiver_queue_size=10 if self.flow.pause_s else 1000,
        )

    def _send(self, producer: Any) -> None:
        due, number = time.monotonic(), 0
        options: dict[str, Any] = {}
        if self.flow.deliver_after_s:
            options["deliver_after"] = timedelta(seconds=self.flow.deliver_after_s)
        while not self.sent_all.wait(max(0.0, due - time.monotonic())):
            if self.flow.keys:
                options["partition_key"] = f"key-{number % self.flow.keys}"
            with self._noting(f"send of {number}") as noted:
                producer.send_async(str(number).encode(), self._on_answer(number), **options)
            if noted:
                self._failed.append(number)
            number += 1
            due = max(due + 1 / self.flow.per_second, time.monotonic() - 1.0)
        with self._noting("flush"):
            producer.flush()

    def _on_answer(self, number: int) -> Callable[[Any, Any], None]:
        def answered(result: Any, _message_id: Any) -> None:
            if result == pulsar.Result.Ok:
                self._acknowledged_at.append(time.monotonic())
                self.acknowledged.append(number)
            else:
                self._failed.append(number)
                self._note(f"send of {number}: {result}")

        return answered

    def _receive(self, consumer: Any) -> None:
        while not self._received_all.wait(0.0 if self.sent_all.is_set() else self.flow.pause_s):
            try:
                message = consumer.receive(timeout_millis=_RECEIVE_MS)
            except pulsar.Timeout:
                continue
            except pulsar.PulsarException as error:
                self._note(f"receive: {type(error).__name__}")
                if isinstance(error, pulsar.AlreadyClosed):
                    return
                continue
            self._received.append(int(message.data()))
            with self._noting("acknowledge"):
                consumer.acknowledge(message)

    @contextmanager
    def _noting(self, what: str) -> Iterator[list[str]]:
        noted: list[str] = []
        try:
            yield noted
        except pulsar.PulsarException as error:
            noted.append(type(error).__name__)
            self._note(f"{what}: {type(error).__name__}")

    def _note(self, error: str) -> None:
        if len(self._errors) < 20:
            self._errors.append(error)


def _thread(work: Callable[[Any], None], argument: object) -> threading.Thread:
    thread = threading.Thread(target=work, args=(argument,), name="traffic", daemon=True)
    thread.start()
    return thread
