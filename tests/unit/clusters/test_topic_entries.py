"""Entries of a topic over a socket: order, permits, brokers that move a topic, and servers that are none."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from bookwarden.clusters.pulsar.connection import PulsarConnection, hosts_of
from bookwarden.clusters.pulsar.entries import TopicEntries
from bookwarden.clusters.pulsar.protocol import (
    CLOSE_CONSUMER,
    CONNECT,
    CONNECTED,
    ERROR,
    FLOW,
    LOOKED_UP,
    LOOKUP,
    MESSAGE,
    PING,
    PONG,
    SUBSCRIBE,
    SUCCESS,
)
from bookwarden.errors import DataGoneError, PulsarAccessError, PulsarUnavailableError
from bookwarden.ledgers.managed_ledger import Position
from bookwarden.wire.pb.pulsar_api_pb2 import BaseCommand, CommandLookupTopicResponse
from servers.pulsar_topics import raw_entry
from servers.waiting import eventually

TOPIC = "persistent://t/n/a-partition-0"
GOOD = raw_entry(b"good")


class Broker:
    """Owns the topic, and sends each reader the entries from its start on; counts what it hears."""

    def __init__(self, *entries: bytes, through_proxy: bool = False) -> None:
        self.entries = list(entries)
        self.heard: list[BaseCommand] = []
        self.connections = 0
        self.subscribed: Callable[[BaseCommand], list[BaseCommand]] = lambda _: []
        self._through_proxy = through_proxy
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"pulsar://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def of(self, kind: int) -> list[BaseCommand]:
        return [one for one in self.heard if one.type == kind]

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        starts: dict[int, int] = {}
        # A reader that closes its connection before it has read all resets it.
        with connection, suppress(ConnectionError):
            while len(head := connection.recv(8, socket.MSG_WAITALL)) == 8:
                asked = BaseCommand.FromString(connection.recv(struct.unpack(">II", head)[1], socket.MSG_WAITALL))
                self.heard.append(asked)
                for answer, behind in self._answers(asked, starts):
                    body = answer.SerializeToString()
                    connection.sendall(struct.pack(">II", len(body) + 4 + len(behind), len(body)) + body + behind)
                    if answer.type == CLOSE_CONSUMER:
                        return

    def _answers(self, asked: BaseCommand, starts: dict[int, int]) -> Iterator[tuple[BaseCommand, bytes]]:
        made = BaseCommand()
        if asked.type == CONNECT:
            made.type, made.connected.server_version, made.connected.max_message_size = CONNECTED, "Pulsar 9", 1 << 20
            yield made, b""
        elif asked.type == LOOKUP:
            found = made.lookupTopicResponse
            made.type, found.response, found.request_id = LOOKED_UP, CommandLookupTopicResponse.Connect, 1
            found.brokerServiceUrl = "pulsar://owner:1" if self._through_proxy else self.url
            found.proxy_through_service_url = self._through_proxy
            yield made, b""
        elif asked.type == SUBSCRIBE:
            answers = self.subscribed(asked)
            if not answers:
                # The position before the first entry that is wanted.
                starts[asked.subscribe.consumer_id] = (asked.subscribe.start_message_id.entryId + 1) % 2**64
                made.type, made.success.request_id = SUCCESS, asked.subscribe.request_id
                answers = [made]
            yield from ((answer, b"") for answer in answers)
        elif asked.type == FLOW and asked.flow.consumer_id in starts:
            for number in range(starts.pop(asked.flow.consumer_id), len(self.entries)):
                yield self.message(asked.flow.consumer_id, number), self.entries[number]

    def message(self, consumer: int, number: int) -> BaseCommand:
        made = BaseCommand(type=MESSAGE)
        made.message.consumer_id, made.message.message_id.ledgerId = consumer, 7
        made.message.message_id.entryId = number
        return made


@contextmanager
def serving(*entries: bytes, through_proxy: bool = False) -> Iterator[tuple[Broker, TopicEntries]]:
    broker = Broker(*entries, through_proxy=through_proxy)
    connection = PulsarConnection(broker.url, "http://unused:1", client_options={"listener_name": "inside"})
    topic_entries = TopicEntries(connection)
    try:
        yield broker, topic_entries
    finally:
        topic_entries.close()
        broker.close()


def read(entries: TopicEntries, first: int, count: int) -> list[tuple[int, bytes, str]]:
    with entries.open(TOPIC, Position(7, first), 5) as stream:
        found = [stream.next(5) for _ in range(count)]
    return [(entry.position.entry_id, entry.payload, entry.problem) for entry in found if entry is not None]


def test_entries_come_in_order_from_the_first_on_over_one_connection() -> None:
    with serving(*(raw_entry(b"%d" % number) for number in range(5))) as (broker, entries):
        assert read(entries, 0, 5) == [(number, b"%d" % number, "") for number in range(5)]
        assert read(entries, 3, 1) == [(3, b"3", "")]
        # What the first reader asked for and did not read, the second does not take for its own.
        assert read(entries, 2, 3) == [(number, b"%d" % number, "") for number in (2, 3, 4)]
        eventually(lambda: len(broker.of(CLOSE_CONSUMER)) == 3, 10)
        assert broker.connections == 2
    assert (len(broker.of(LOOKUP)), len(broker.of(SUBSCRIBE))) == (1, 3)
    assert broker.of(LOOKUP)[0].lookupTopic.advertised_listener_name == "inside"
    subscribe = broker.of(SUBSCRIBE)[0].subscribe
    assert (subscribe.topic, subscribe.durable, subscribe.force_topic_creation) == (TOPIC, False, False)


def test_nothing_in_time_is_none_and_the_stream_goes_on() -> None:
    with serving(GOOD) as (_, entries), entries.open(TOPIC, Position(7, 0), 5) as stream:
        first = stream.next(5)
        assert first is not None
        assert first.position == Position(7, 0)
        assert stream.next(0.01) is None


def test_an_entry_that_is_damaged_is_told_and_those_behind_it_come() -> None:
    with serving(raw_entry(b"x", checksum=1), b"", GOOD) as (_, entries):
        found = read(entries, 0, 3)
    assert [(number, payload) for number, payload, _ in found] == [(0, b""), (1, b""), (2, b"good")]
    assert ["checksum" in found[0][2], "ends after" in found[1][2], found[2][2]] == [True, True, ""]


@pytest.mark.parametrize(("claimed", "repaid"), [(10**9, 10**9), (2**31 - 1, 2**31 - 1), (0, None), (-5, None)])
def test_the_broker_gets_back_what_it_takes_off_for_an_entry(claimed: int, repaid: int | None) -> None:
    with serving(raw_entry(b"", num_messages_in_batch=claimed), GOOD) as (broker, entries):
        assert len(read(entries, 0, 2)) == 2
        eventually(lambda: bool(broker.of(CLOSE_CONSUMER)), 10)
        permits = [one.flow.messagePermits for one in broker.of(FLOW)]
    assert permits[1:] == ([] if repaid is None else [repaid])


def test_a_reader_that_the_broker_closes_is_unavailable_and_the_next_begins_anew() -> None:
    with serving(GOOD) as (broker, entries):
        closed = BaseCommand(type=CLOSE_CONSUMER)

        def close(asked: BaseCommand) -> list[BaseCommand]:
            success = BaseCommand(type=SUCCESS)
            success.success.request_id = asked.subscribe.request_id
            closed.close_consumer.consumer_id = asked.subscribe.consumer_id
            closed.close_consumer.request_id = 1
            return [success, closed]

        broker.subscribed = close
        with pytest.raises(PulsarUnavailableError, match="closed the reader"):
            read(entries, 0, 1)
        broker.subscribed = lambda _: []
        assert read(entries, 0, 1) == [(0, b"good", "")]
    assert len(broker.of(LOOKUP)) == 2


@pytest.mark.parametrize(("code", "error"), [(4, PulsarAccessError), (6, PulsarUnavailableError)])
def test_a_broker_that_refuses_a_reader_is_no_broker_of_it(code: int, error: type[Exception]) -> None:
    with serving(GOOD) as (broker, entries):

        def refuse(asked: BaseCommand) -> list[BaseCommand]:
            made = BaseCommand(type=ERROR)
            made.error.request_id, made.error.error, made.error.message = asked.subscribe.request_id, code, "not now"
            return [made]

        broker.subscribed = refuse
        with pytest.raises(error, match="not now"):
            read(entries, 0, 1)
        assert entries.why_unreadable(TOPIC, Position(7, 0)) is not None
        broker.subscribed = lambda _: []
        assert entries.why_unreadable(TOPIC, Position(7, 0)) is None


def test_an_error_of_whoever_reads_is_its_own_and_ends_the_connection() -> None:
    with serving(GOOD) as (broker, entries):
        with pytest.raises(DataGoneError), entries.open(TOPIC, Position(7, 0), 5):
            raise DataGoneError("trimmed")
        assert read(entries, 0, 1) == [(0, b"good", "")]
    assert len(broker.of(LOOKUP)) == 2


def test_what_asks_for_life_is_answered_between_entries() -> None:
    with serving(GOOD) as (broker, entries):
        ping = BaseCommand(type=PING)
        ping.ping.SetInParent()

        def ask(asked: BaseCommand) -> list[BaseCommand]:
            success = BaseCommand(type=SUCCESS)
            success.success.request_id = asked.subscribe.request_id
            return [ping, success, ping]

        broker.subscribed = ask
        with entries.open(TOPIC, Position(7, 0), 5) as stream:
            assert stream.next(0.1) is None
        eventually(lambda: len(broker.of(PONG)) == 2, 10)


def test_behind_a_proxy_the_owner_is_named_to_it() -> None:
    with serving(GOOD, through_proxy=True) as (broker, entries):
        assert read(entries, 0, 1) == [(0, b"good", "")]
    assert [one.connect.proxy_to_broker_url for one in broker.of(CONNECT)] == ["", "owner:1"]


def test_of_several_hosts_any_may_be_asked() -> None:
    assert hosts_of("pulsar+ssl://a:1, b/") == ["pulsar+ssl://a:1", "pulsar+ssl://b"]
    with serving(GOOD) as (broker, _):
        both = TopicEntries(PulsarConnection(f"pulsar://127.0.0.1:1,{broker.url[9:]}", "http://unused:1"))
        assert read(both, 0, 1) == [(0, b"good", "")]
        both.close()
    nobody = TopicEntries(PulsarConnection("pulsar://127.0.0.1:1", "http://unused:1"))
    with pytest.raises(PulsarUnavailableError, match="not reachable"):
        read(nobody, 0, 1)
