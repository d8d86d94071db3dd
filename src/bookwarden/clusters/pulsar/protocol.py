"""A connection to one broker or proxy by Pulsar's binary protocol, for what the native client does not do; lookups.

Format: frames of PulsarApi.proto: four bytes of size, four of the command's, the command, and of a message what is
behind it.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from contextlib import closing
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import urllib3

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.oauth2 import ClientCredentials
from bookwarden.errors import ConfigError, FormatError, PulsarAccessError, PulsarError, PulsarUnavailableError
from bookwarden.wire.pb.pulsar_api_pb2 import BaseCommand, CommandConnected, CommandLookupTopicResponse
from bookwarden.wire.protobuf import parse

# BaseCommand.Type
CONNECT, CONNECTED, SUBSCRIBE, MESSAGE, FLOW, SUCCESS, ERROR = 2, 3, 4, 9, 11, 13, 14
CLOSE_CONSUMER, PING, PONG, LOOKUP, LOOKED_UP = 16, 18, 19, 23, 24

# Old enough for every broker that can be a target, and so new that it answers with redirects.
_PROTOCOL: Final = 19
# ServerError: AuthenticationError, AuthorizationError.
_ACCESS: Final = (3, 4)
_HEAD: Final = struct.Struct(">II")
_LARGEST: Final = 5 * 1024 * 1024
# What may be around a message of the largest size: the command, and room for what later brokers add.
_AROUND: Final = 64 * 1024
_READ_AT_ONCE: Final = 256 * 1024
_OAUTH2_TIMEOUT_S: Final = 10.0
_TIMEOUT_S: Final = 10.0
_REDIRECTS: Final = 5


class Frame(NamedTuple):
    """A command of the server, and the bytes behind it: metadata and payload of a message."""

    command: BaseCommand
    rest: bytes


class Session:
    """A connection, introduced with our credentials; for one thread at a time.

    ``url`` names one host, ``proxied_to`` the broker behind it if it is a proxy. Raises PulsarUnavailableError without
    an answer in time, PulsarAccessError where the credentials are refused or the address may not have them, ConfigError
    for an address that is none, and FormatError for what does not speak the protocol.
    """

    def __init__(self, connection: PulsarConnection, url: str, timeout_s: float, *, proxied_to: str = "") -> None:
        self._url = url
        self._largest = _LARGEST
        self._buffer = bytearray()
        deadline = time.monotonic() + timeout_s
        connection.require_trusted(url)
        self._socket = _open(connection, url, timeout_s)
        try:
            answer = self._introduce(connection, proxied_to, deadline)
        except BaseException:
            self._socket.close()
            raise
        self.server: str = answer.server_version
        self._largest = max(_LARGEST, answer.max_message_size) + _AROUND

    def send(self, command: BaseCommand) -> None:
        """Send a command."""
        body = command.SerializeToString()
        try:
            self._socket.sendall(_HEAD.pack(len(body) + 4, len(body)) + body)
        except OSError as error:
            raise _unreachable(self._url, error) from error

    def receive(self, timeout_s: float) -> Frame | None:
        """Return the next command of the server, None if there is none in time; what asks for life is answered."""
        deadline = time.monotonic() + timeout_s
        while True:
            frame = self._whole_frame()
            if frame is None:
                if not self._fill(deadline):
                    return None
            elif frame.command.type == PING:
                pong = BaseCommand(type=PONG)
                pong.pong.SetInParent()
                self.send(pong)
            else:
                return frame

    def answer(self, kind: int, doing: str, timeout_s: float, *, request: int = 0) -> BaseCommand:
        """Return the answer of this kind, to this request if it is given; what comes before it is dropped.

        Raises PulsarError where the server refuses, PulsarUnavailableError if it does not answer in time.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            frame = self.receive(max(0.0, deadline - time.monotonic()))
            if frame is None:
                raise PulsarUnavailableError(f"{doing}: {self._url} gave no answer within {timeout_s:.0f} s")
            command = frame.command
            if command.type == ERROR and request in (0, command.error.request_id):
                raise refused(doing, command.error.error, command.error.message)
            if command.type == kind and request in (0, command.success.request_id):
                return command

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _introduce(self, connection: PulsarConnection, proxied_to: str, deadline: float) -> CommandConnected:
        hello = BaseCommand(type=CONNECT)
        hello.connect.client_version, hello.connect.protocol_version = "bookwarden", _PROTOCOL
        method, data = _credentials(connection)
        if method:
            hello.connect.auth_method_name, hello.connect.auth_data = method, data
        if proxied_to:
            hello.connect.proxy_to_broker_url = proxied_to.partition("://")[2]
        self.send(hello)
        left = max(0.0, deadline - time.monotonic())
        return self.answer(CONNECTED, f"connecting to {self._url}", left).connected

    def _whole_frame(self) -> Frame | None:
        buffer = self._buffer
        if len(buffer) < _HEAD.size:
            return None
        total, size = _HEAD.unpack_from(buffer)
        if not 4 <= size + 4 <= total <= self._largest:
            raise FormatError(f"{self._url} does not speak Pulsar's protocol: check the address, and its port")
        end = total + 4
        if len(buffer) < end:
            return None
        behind = _HEAD.size + size
        with memoryview(buffer) as view:
            body, rest = bytes(view[_HEAD.size : behind]), bytes(view[behind:end])
        del buffer[:end]
        return Frame(parse(BaseCommand(), body, f"an answer of {self._url}"), rest)

    def _fill(self, deadline: float) -> bool:
        """Read more bytes; return False if none come until then."""
        try:
            # A timeout of 0 would read without waiting, and answer what is there with an error of its own.
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            more = self._socket.recv(_READ_AT_ONCE)
        except TimeoutError:
            return False
        except OSError as error:
            raise _unreachable(self._url, error) from error
        if not more:
            raise PulsarUnavailableError(f"{self._url} closed the connection: check the address and our role")
        self._buffer += more
        return True


def refused(doing: str, code: int, message: str) -> PulsarError:
    """Return the error of a server that refuses, by its ServerError."""
    if code in _ACCESS:
        return PulsarAccessError(f"{doing}: refused: {message}; check the credentials and the rights of our role")
    return PulsarError(f"{doing}: refused: {message or f'error {code}'}")


def _open(connection: PulsarConnection, url: str, timeout_s: float) -> socket.socket:
    try:
        parts = urlsplit(url)
        port = parts.port or (6651 if parts.scheme == "pulsar+ssl" else 6650)
    except ValueError as error:
        raise ConfigError(f"{url} is no usable address: {error}") from None
    if parts.scheme not in ("pulsar", "pulsar+ssl") or not parts.hostname:
        raise ConfigError(f"{url} must look like pulsar://broker:6650 or pulsar+ssl://broker:6651")
    try:
        plain = socket.create_connection((parts.hostname, port), timeout_s)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if parts.scheme == "pulsar":
            return plain
        return _tls(connection).wrap_socket(plain, server_hostname=parts.hostname)
    except OSError as error:
        raise _unreachable(url, error) from error


def _tls(connection: PulsarConnection) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=connection.tls_trust_certs_file or None)
    context.check_hostname = connection.tls_validate_hostname and not connection.tls_allow_insecure
    if connection.tls_allow_insecure:
        context.verify_mode = ssl.CERT_NONE
    if connection.auth == "tls":
        context.load_cert_chain(*connection.client_certificate())
    return context


def _credentials(connection: PulsarConnection) -> tuple[str, bytes]:
    if connection.auth == "token":
        return "token", connection.current_token().encode()
    if connection.auth == "oauth2":
        with urllib3.PoolManager() as pool:
            return "token", ClientCredentials(connection.oauth2, pool, _OAUTH2_TIMEOUT_S).token().encode()
    return ("tls", b"") if connection.auth == "tls" else ("", b"")


def _unreachable(url: str, error: OSError) -> PulsarUnavailableError:
    reason = error.strerror or str(error) or type(error).__name__
    return PulsarUnavailableError(f"{url} is not reachable ({reason})")


class BrokerLookup(NamedTuple):
    """The answer: the owner's address of the kind that was asked for, and the version of the server that was reached.

    ``through_proxy`` says that clients stay with the address that they have.
    """

    owner: str
    server: str
    through_proxy: bool


def lookup(connection: PulsarConnection, url: str, topic: str, timeout_s: float = _TIMEOUT_S) -> BrokerLookup:
    """Look a topic up through this address, with the credentials of the connection; follow redirects.

    ``url`` names one host, and is of the settings. The topic need not exist, and does not afterwards. Raises
    PulsarUnavailableError without an answer, PulsarAccessError where the credentials are refused or a redirect leads to
    where they are not sent, PulsarError where the lookup is refused, ConfigError for an address that is none.
    """
    authoritative, connection = False, connection.trusting(url)
    for _ in range(_REDIRECTS):
        with closing(Session(connection, url, timeout_s)) as session:
            answer = _ask(session, connection, url, topic, timeout_s, authoritative=authoritative)
            owner = answer.brokerServiceUrlTls if url.startswith("pulsar+ssl:") else answer.brokerServiceUrl
            if answer.response == CommandLookupTopicResponse.Failed:
                raise refused(f"looking {topic} up through {url}", answer.error, answer.message)
            if not owner:
                raise PulsarError(f"{url} found {topic}, and named no address of the kind that was asked with")
            if answer.response == CommandLookupTopicResponse.Connect:
                return BrokerLookup(owner, session.server, answer.proxy_through_service_url)
            url, authoritative = owner, answer.authoritative
    raise PulsarUnavailableError(f"looking {topic} up was redirected more than {_REDIRECTS} times; try again later")


def look_up(connection: PulsarConnection, url: str, topic: str) -> tuple[str, str]:
    """Look a topic up as `lookup` does; return its owner's address, and the version of the server."""
    found = lookup(connection, url, topic)
    return found.owner, found.server


def _ask(
    session: Session, connection: PulsarConnection, url: str, topic: str, timeout_s: float, *, authoritative: bool
) -> CommandLookupTopicResponse:
    asked = BaseCommand(type=LOOKUP)
    asked.lookupTopic.topic, asked.lookupTopic.request_id = topic, 1
    asked.lookupTopic.authoritative = authoritative
    if connection.client_options.get("listener_name"):
        asked.lookupTopic.advertised_listener_name = str(connection.client_options["listener_name"])
    session.send(asked)
    return session.answer(LOOKED_UP, f"looking {topic} up through {url}", timeout_s).lookupTopicResponse
