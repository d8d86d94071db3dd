"""The topics of marks in memory: the deletion topic, its retry topic and the DLQ, and what the product sends there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.messages.retries import RetrySender
from bookwarden.clusters.pulsar.messages.switch_events import SWITCH_TOPIC
from bookwarden.clusters.pulsar.rest.schemas import SchemaRegistry
from bookwarden.errors import MalformedMarkError, PulsarUnavailableError, UnconfirmedError
from bookwarden.ledgers.kinds import Holder
from bookwarden.ledgers.pending_deletion import PendingDeletion
from bookwarden.ledgers.received import DELAY_TIME, ORIGIN_MESSAGE_ID, ReceivedMark, believed_properties, decoded
from bookwarden.wire.avro import PendingDeletionCodec
from bookwarden.wire.switch_event import decode_switch_event

from .faults import Clock, Faults

DELETION = "persistent://pulsar/system/__ledger_deletion"
RETRY = f"{DELETION}-RETRY"
DLQ = f"{DELETION}-DLQ"
_CODEC = PendingDeletionCodec()


@dataclass
class Message:
    """A message with what the topic knows of it; ``due_s`` and ``sent_s`` are true times."""

    message_id: str
    topic: str
    payload: bytes
    key: str | None
    properties: Mapping[str, str]
    published_ms: int
    sent_s: float
    due_s: float
    honest: bool = False

    def received(self) -> ReceivedMark:
        """Give it as the source of the sweep does."""
        believed = believed_properties(dict(self.properties), self.topic, RETRY)
        raw = ReceivedMark(self.topic, self.message_id, self.key, self.payload, believed, self.published_ms)
        if self.topic == SWITCH_TOPIC:
            try:
                return replace(raw, directive=decode_switch_event(self.payload))
            except MalformedMarkError as error:
                return replace(raw, problem=str(error))
        return decoded(raw, lambda _topic, payload, _version: _CODEC.decode(payload))


@dataclass
class Topics:
    """All messages that were ever sent and not acknowledged; ``letters`` are those of the DLQ."""

    clock: Clock
    waiting: list[Message] = field(default_factory=list)
    letters: list[Message] = field(default_factory=list)
    sent_on: set[tuple[str, str]] = field(default_factory=set)
    numbers: int = 0

    def add(
        self,
        topic: str,
        payload: bytes,
        key: str | None,
        properties: Mapping[str, str],
        *,
        delay_s: float = 0.0,
        skew_ms: int = 0,
        honest: bool = False,
    ) -> None:
        """Store a message; ``skew_ms`` is how far the producer's clock is ahead, ``honest`` a mark of phase one's."""
        self.numbers += 1
        now = self.clock.now
        message = Message(
            f"1:{self.numbers}:0",
            topic,
            payload,
            key,
            dict(properties),
            self.clock.ms + skew_ms,
            now,
            now + delay_s,
            honest,
        )
        (self.letters if topic == DLQ else self.waiting).append(message)

    def due(self) -> list[Message]:
        """Give what may be delivered now."""
        return [message for message in self.waiting if message.due_s <= self.clock.now]

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """Take finished messages off the topics."""
        done = {message.message_id for message in messages}
        self.waiting = [message for message in self.waiting if message.message_id not in done]


class Producers:
    """Stands where the Pulsar client's producers stand; nothing counts before `flush` returns."""

    def __init__(self, topics: Topics, faults: Faults, skew_ms: int) -> None:
        self._topics = topics
        self._faults = faults
        self._skew_ms = skew_ms
        self._lost: list[object] = []
        self._outstanding: list[tuple[str, str]] = []

    def send(
        self,
        topic: str,
        payload: bytes,
        *,
        schema: object,
        key: str | None,
        properties: Mapping[str, str],
        event_time: int | None = None,
        deliver_at: int | None = None,
        name: object = None,
    ) -> None:
        """Send; it may arrive and not be confirmed, or not arrive at all."""
        self._faults.step()
        fails = self._faults.fails()
        if fails:
            self._lost.append(name)
        if not fails or self._faults.happens(0.5):
            # The source counts the delay from the arrival.
            delay_s = int(properties[DELAY_TIME]) / 1000 if deliver_at is not None else 0.0
            self._topics.add(topic, payload, key, properties, delay_s=delay_s, skew_ms=self._skew_ms)
        if not fails:
            self._outstanding.append((topic, properties.get(ORIGIN_MESSAGE_ID, "")))

    def flush(self) -> None:
        """Confirm those that arrived for certain, and raise for the others."""
        self._faults.step()
        lost, self._lost = self._lost, []
        sent, self._outstanding = self._outstanding, []
        self._topics.sent_on.update(sent)
        if lost:
            raise UnconfirmedError(f"{len(lost)} messages were not confirmed", lost)


def outbox(
    topics: Topics,
    faults: Faults,
    skew_ms: int,
    clock: Callable[[], float],
    before_send: Callable[[ReceivedMark], None],
) -> RetrySender:
    """Make the product's own outbox over the topics in memory; `before_send` is told of each message."""
    connection = PulsarConnection("pulsar://nowhere", "http://nowhere")
    sender = _Outbox(connection, RETRY, DLQ, "worker", registry=_NoRegistry(), clock=clock)
    sender.before_send = before_send
    producers: Any = Producers(topics, faults, skew_ms)
    sender._producers = producers
    return sender


class _Outbox(RetrySender):
    """The product's own, watched."""

    before_send: Callable[[ReceivedMark], None]

    def _send(
        self,
        topic: str,
        received: ReceivedMark,
        properties: dict[str, str],
        reason: str,
        deliver_at: int | None = None,
    ) -> None:
        self.before_send(received)
        super()._send(topic, received, properties, reason, deliver_at)


class _NoRegistry(SchemaRegistry):
    """Never asked: no message here has a schema version."""

    def __init__(self) -> None:
        pass


class Sender:
    """Sends marks of phase one; a send may fail, or arrive all the same."""

    def __init__(self, topics: Topics, faults: Faults, skew_ms: int = 0) -> None:
        self._topics = topics
        self._faults = faults
        self._skew_ms = skew_ms

    def send_all(self, marks: Sequence[PendingDeletion]) -> list[str | None]:
        """Send each; None where it is confirmed."""
        if marks and self._faults.fails():
            raise PulsarUnavailableError("the deletion topic cannot be reached")
        return [self._send(mark) for mark in marks]

    def _send(self, mark: PendingDeletion) -> str | None:
        self._faults.step()
        fails = self._faults.fails()
        if not fails or self._faults.happens(0.5):
            send_mark(self._topics, mark, skew_ms=self._skew_ms, honest=True)
        return "no answer" if fails else None


def send_mark(
    topics: Topics,
    mark: PendingDeletion,
    *,
    topic: str = DELETION,
    properties: Mapping[str, str] | None = None,
    skew_ms: int = 0,
    change: Callable[[bytes], bytes] = bytes,
    honest: bool = False,
) -> None:
    """Send a mark as any producer may."""
    holder: Holder = mark.holder()
    topics.add(topic, change(_CODEC.encode(mark)), str(holder), properties or {}, skew_ms=skew_ms, honest=honest)
