"""Entries of topics read from their brokers as they are, by Pulsar's binary protocol: nothing of them is believed.

The native client unpacks what it receives before anybody can look at it: an entry with wrong sizes ends its process,
one that it cannot unpack is dropped without a word, and none shows its deliver-at time (docs/findings.md). Here each
entry that the broker delivers comes in order, with its metadata, or with what is wrong with it.
"""

from __future__ import annotations

import contextlib
import itertools
import time
import uuid
from collections.abc import Iterator
from typing import Final, NamedTuple

from bookwarden.clusters.pulsar.connection import PulsarConnection, hosts_of
from bookwarden.clusters.pulsar.protocol import (
    CLOSE_CONSUMER,
    FLOW,
    MESSAGE,
    SUBSCRIBE,
    SUCCESS,
    Session,
    lookup,
)
from bookwarden.errors import ConfigError, FormatError, PulsarAccessError, PulsarError, PulsarUnavailableError
from bookwarden.ledgers.managed_ledger import Position
from bookwarden.wire.entry import open_entry
from bookwarden.wire.pb.pulsar_api_pb2 import BaseCommand, MessageMetadata

# In messages, as brokers count.
_PERMITS: Final = 2000
# More at once would overflow the broker's count.
_MOST_PERMITS: Final = 2**31 - 1
# A broker that hears nothing from a client for a minute or so ends its connection.
_IDLE_S: Final = 25.0
_LOOK_S: Final = 5.0


class TopicEntry(NamedTuple):
    """An entry as its broker delivered it; without ``metadata``, ``problem`` says what is wrong with its bytes."""

    position: Position
    metadata: MessageMetadata | None
    payload: bytes  #: As the producer sent it: compressed, encrypted, a batch.
    problem: str = ""


class _Owner(NamedTuple):
    """The address at which a topic is read, and the broker behind it if that is a proxy's."""

    url: str
    behind_proxy: str = ""


class EntryStream:
    """The entries of a topic from a position on, in order: what the broker passes over is never delivered later.

    Markers, messages of aborted transactions, and what the broker cannot read itself are passed over.
    """

    def __init__(self, session: Session, topic: str, first: Position, consumer: int, timeout_s: float) -> None:
        self._session = session
        self._topic = topic
        self._consumer = consumer
        self._owed = 0
        #: By this name the broker shows how far it has read.
        self.subscription = f"reader-{uuid.uuid4().hex[:10]}"
        asked = BaseCommand(type=SUBSCRIBE)
        subscribe = asked.subscribe
        subscribe.topic, subscribe.subscription = topic, self.subscription
        subscribe.subType, subscribe.consumer_id, subscribe.request_id = 0, consumer, consumer
        subscribe.durable, subscribe.force_topic_creation = False, False
        # A broker begins behind what it is given; -1 stands for the entry before the first, and is written unsigned.
        subscribe.start_message_id.ledgerId = first.ledger_id
        subscribe.start_message_id.entryId = (first.entry_id - 1) % 2**64
        session.send(asked)
        session.answer(SUCCESS, f"reading {topic}", timeout_s, request=consumer)
        self._permit(_PERMITS)

    def next(self, timeout_s: float) -> TopicEntry | None:
        """Return the next entry, None if none comes in time; raise PulsarUnavailableError when the broker ends it."""
        deadline = time.monotonic() + timeout_s
        while True:
            frame = self._session.receive(max(0.0, deadline - time.monotonic()))
            if frame is None:
                return None
            if frame.command.type == CLOSE_CONSUMER and frame.command.close_consumer.consumer_id == self._consumer:
                raise PulsarUnavailableError(f"{self._topic}: the broker closed the reader, as when a topic is moved")
            # Entries of a reader that was closed before may still be under way.
            if frame.command.type == MESSAGE and frame.command.message.consumer_id == self._consumer:
                return self._entry(frame.command, frame.rest)

    def close(self) -> None:
        """Ask the broker to end it; the next reader drops what is under way."""
        asked = BaseCommand(type=CLOSE_CONSUMER)
        asked.close_consumer.consumer_id = asked.close_consumer.request_id = self._consumer
        self._session.send(asked)

    def _entry(self, command: BaseCommand, rest: bytes) -> TopicEntry:
        found = command.message.message_id
        position = Position(found.ledgerId, found.entryId)
        try:
            metadata, payload = open_entry(rest)
        except FormatError as error:
            self._repay(1)
            return TopicEntry(position, None, b"", str(error))
        # The broker takes off what the producer claims, however large that is.
        self._repay(max(1, metadata.num_messages_in_batch))
        return TopicEntry(position, metadata, payload)

    def _repay(self, messages: int) -> None:
        self._owed += messages
        if self._owed >= _PERMITS // 2:
            self._permit(min(self._owed, _MOST_PERMITS))
            self._owed = 0

    def _permit(self, messages: int) -> None:
        flow = BaseCommand(type=FLOW)
        flow.flow.consumer_id, flow.flow.messagePermits = self._consumer, messages
        self._session.send(flow)


class TopicEntries:
    """Opens streams of entries, and keeps the connections to the topics' owners; for one thread, and no fork."""

    def __init__(self, connection: PulsarConnection) -> None:
        self._connection = connection
        self._sessions: dict[_Owner, tuple[Session, float]] = {}
        self._owners: dict[str, _Owner] = {}
        self._numbers = itertools.count(1)

    @contextlib.contextmanager
    def open(self, topic: str, first: Position, timeout_s: float) -> Iterator[EntryStream]:
        """Read a partition from `first` on, by a reader that leaves no trace.

        Raises PulsarUnavailableError when no broker serves it, PulsarAccessError where we may not read it. Any error
        in the body ends the connection too: the next stream begins with a new one.
        """
        owner = self._owners.pop(topic, None)
        try:
            try:
                owner = owner or self._look_up(topic, timeout_s)
                stream = EntryStream(self._session(owner, timeout_s), topic, first, next(self._numbers), timeout_s)
            except (PulsarAccessError, PulsarUnavailableError):
                raise
            except PulsarError as error:
                # A broker that is about to serve the topic, or no longer does, refuses a reader in many ways.
                raise PulsarUnavailableError(str(error)) from error
            yield stream
            stream.close()
        except BaseException:
            self._drop(owner)
            raise
        self._owners[topic] = owner
        self._sessions[owner] = self._sessions[owner][0], time.monotonic()

    def why_unreadable(self, topic: str, position: Position) -> str | None:
        """Return why nothing can be read from a position on, of a partition that has entries there; None if it can."""
        try:
            with self.open(topic, position, _LOOK_S) as stream:
                return None if stream.next(_LOOK_S) is not None else f"its broker sends nothing within {_LOOK_S:.0f} s"
        except (PulsarError, FormatError) as error:
            return str(error)

    def close(self) -> None:
        """Close the connections."""
        for owner in list(self._sessions):
            self._drop(owner)

    def _look_up(self, topic: str, timeout_s: float) -> _Owner:
        hosts = hosts_of(self._connection.service_url)
        for number, url in enumerate(hosts, 1):
            try:
                found = lookup(self._connection, url, topic, timeout_s)
            except PulsarUnavailableError:
                if number == len(hosts):
                    raise
            else:
                return _Owner(url, found.owner) if found.through_proxy else _Owner(found.owner)
        raise ConfigError(f"pulsar.service_url {self._connection.service_url} names no host")

    def _session(self, owner: _Owner, timeout_s: float) -> Session:
        session, used = self._sessions.get(owner, (None, 0.0))
        if session is not None and time.monotonic() - used < _IDLE_S:
            return session
        self._drop(owner)
        session = Session(self._connection, owner.url, timeout_s, proxied_to=owner.behind_proxy)
        self._sessions[owner] = session, time.monotonic()
        return session

    def _drop(self, owner: _Owner | None) -> None:
        session, _ = self._sessions.pop(owner, (None, 0.0)) if owner is not None else (None, 0.0)
        if session is not None:
            session.close()
