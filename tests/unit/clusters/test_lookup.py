"""A topic looked up through an address: redirects, pings, refusals and what is no broker, over a socket."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pytest

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.protocol import BrokerLookup, lookup
from bookwarden.errors import (
    BookwardenError,
    ConfigError,
    FormatError,
    PulsarAccessError,
    PulsarError,
    PulsarUnavailableError,
)
from bookwarden.wire.pb.pulsar_api_pb2 import BaseCommand, CommandLookupTopicResponse

TOPIC = "persistent://pulsar/system/any"
SECRET = "not to be told"
CONNECTION = PulsarConnection("pulsar://unused:1", "http://unused:1", auth="token", token=SECRET)
CONNECT, CONNECTED, ERROR, PING, PONG, LOOKUP, LOOKED_UP = 2, 3, 14, 18, 19, 23, 24

Answer = Callable[[BaseCommand], Sequence[BaseCommand | bytes]]


def hello(_: BaseCommand) -> list[BaseCommand]:
    found = BaseCommand(type=CONNECTED)
    found.connected.server_version = "Pulsar 9"
    return [found]


def found_at(url: str, kind: int = CommandLookupTopicResponse.Connect) -> Answer:
    def answer(asked: BaseCommand) -> list[BaseCommand]:
        found = BaseCommand(type=LOOKED_UP)
        found.lookupTopicResponse.brokerServiceUrl = url
        found.lookupTopicResponse.response = kind
        found.lookupTopicResponse.request_id = asked.lookupTopic.request_id
        return [found]

    return answer


def refused(code: int) -> Answer:
    def answer(_: BaseCommand) -> list[BaseCommand]:
        found = BaseCommand(type=ERROR)
        found.error.request_id, found.error.error, found.error.message = 0, code, "no"
        return [found]

    return answer


def read(connection: socket.socket) -> BaseCommand | None:
    head = connection.recv(8, socket.MSG_WAITALL)
    if len(head) < 8:
        return None
    size = struct.unpack(">II", head)[1]
    return BaseCommand.FromString(connection.recv(size, socket.MSG_WAITALL))


def frame(command: BaseCommand | bytes) -> bytes:
    if isinstance(command, bytes):
        return command
    body = command.SerializeToString()
    return struct.pack(">II", len(body) + 4, len(body)) + body


@contextmanager
def broker(*answers: Answer) -> Iterator[tuple[str, list[BaseCommand]]]:
    """Serve one connection after the other; each answers its commands in this order, then closes."""
    heard: list[BaseCommand] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    for answer in answers:
                        asked = read(connection)
                        if asked is None:
                            break
                        heard.append(asked)
                        connection.sendall(b"".join(map(frame, answer(asked))))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"pulsar://127.0.0.1:{server.getsockname()[1]}", heard
        server.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def test_the_owner_is_found_with_our_credentials() -> None:
    with broker(hello, found_at("pulsar://owner:1")) as (url, heard):
        assert lookup(CONNECTION, url, TOPIC) == BrokerLookup("pulsar://owner:1", "Pulsar 9", False)
    assert (heard[0].type, heard[1].type) == (CONNECT, LOOKUP)
    assert (heard[0].connect.auth_method_name, heard[0].connect.auth_data) == ("token", SECRET.encode())
    assert heard[1].lookupTopic.topic == TOPIC


def test_a_redirect_is_followed_to_its_end() -> None:
    with broker(hello, found_at("pulsar://owner:1")) as (second, _):
        redirect = found_at(second, CommandLookupTopicResponse.Redirect)
        with broker(hello, redirect) as (first, _):
            assert lookup(CONNECTION, first, TOPIC).owner == "pulsar://owner:1"


def test_a_redirect_to_a_host_that_the_settings_do_not_name_gets_no_token() -> None:
    with broker(hello, found_at("pulsar://owner:1")) as (second, heard):
        elsewhere = second.replace("127.0.0.1", "localhost")
        with broker(hello, found_at(elsewhere, CommandLookupTopicResponse.Redirect)) as (first, _):
            with pytest.raises(PulsarAccessError, match=r"pulsar\.trusted_hosts"):
                lookup(CONNECTION, first, TOPIC)
            assert heard == []
            trusting = replace(CONNECTION, trusted_hosts=("localhost",))
            assert lookup(trusting, first, TOPIC).owner == "pulsar://owner:1"


def test_redirects_in_a_circle_end() -> None:
    places: list[str] = []

    def back(asked: BaseCommand) -> Sequence[BaseCommand | bytes]:
        return found_at(places[0], CommandLookupTopicResponse.Redirect)(asked)

    with broker(hello, back) as (url, _):
        places.append(url)
        with pytest.raises(PulsarUnavailableError, match="redirected"):
            lookup(CONNECTION, url, TOPIC)


def test_a_ping_is_answered_on_the_way() -> None:
    ping = BaseCommand(type=PING)
    ping.ping.SetInParent()
    answers = (lambda _: [ping], hello, found_at("pulsar://owner:1"))
    with broker(*answers) as (url, heard):
        assert lookup(CONNECTION, url, TOPIC).owner == "pulsar://owner:1"
    assert [one.type for one in heard] == [CONNECT, PONG, LOOKUP]


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ((refused(3),), PulsarAccessError),
        ((refused(11),), PulsarError),
        ((hello, found_at("", CommandLookupTopicResponse.Failed)), PulsarError),
        ((hello, found_at("")), PulsarError),
        ((lambda _: [b"HTTP/1.1 400 Bad Request\r\n\r\n"],), FormatError),
        ((lambda _: [struct.pack(">II", 8, 4) + b"\xff\xff\xff\xff"],), FormatError),
        ((lambda _: [],), PulsarUnavailableError),
    ],
    ids=["credentials", "refused", "failed", "no owner", "a web server", "garbage", "closed"],
)
def test_what_is_no_answer_is_told_without_the_secret(answers: Sequence[Answer], error: type[BookwardenError]) -> None:
    with broker(*answers) as (url, _), pytest.raises(error) as told:
        lookup(CONNECTION, url, TOPIC)
    assert SECRET not in str(told.value)


def test_who_does_not_answer_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"pulsar://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(PulsarUnavailableError):
            lookup(CONNECTION, url, TOPIC, timeout_s=0.2)


@pytest.mark.parametrize("url", ["http://a:1", "pulsar://", "pulsar://a:port"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        lookup(CONNECTION, url, TOPIC)
