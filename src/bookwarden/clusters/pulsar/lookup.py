"""A topic looked up as clients do it: through one address, by Pulsar's binary protocol, without creating anything.

Format: frames of PulsarApi.proto without a payload: four bytes of size, four of the command's, then the command.
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
from bookwarden.wire.pb.pulsar_lookup_pb2 import BaseCommand, CommandLookupTopicResponse
from bookwarden.wire.protobuf import parse

_TIMEOUT_S: Final = 10.0
_LARGEST: Final = 5 * 1024 * 1024
_REDIRECTS: Final = 5
# BaseCommand.Type
_CONNECT, _CONNECTED, _ERROR, _PING, _PONG, _LOOKUP, _LOOKED_UP = 2, 3, 14, 18, 19, 23, 24
# Old enough for every broker that can be a target, and so new that it answers with redirects.
_PROTOCOL: Final = 19
# ServerError: AuthenticationError, AuthorizationError.
_ACCESS: Final = (3, 4)


class LookedUp(NamedTuple):
    """The answer: the owner's address of the kind that was asked for, and the version of the server that was reached.

    ``through_proxy`` says that clients stay with the address that they have.
    """

    owner: str
    server: str
    through_proxy: bool


def lookup(connection: PulsarConnection, url: str, topic: str, timeout_s: float = _TIMEOUT_S) -> LookedUp:
    """Look a topic up through this address, with the credentials of the connection; follow redirects.

    ``url`` names one host. The topic need not exist, and does not afterwards. Raises PulsarUnavailableError without
    an answer, PulsarAccessError where the credentials are refused, PulsarError where the lookup is, ConfigError for an
    address that is none.
    """
    authoritative = False
    for _ in range(_REDIRECTS):
        with closing(_Session(connection, url, time.monotonic() + timeout_s)) as session:
            answer = session.look_up(topic, authoritative=authoritative)
            owner = answer.brokerServiceUrlTls if url.startswith("pulsar+ssl:") else answer.brokerServiceUrl
            if answer.response == CommandLookupTopicResponse.Failed:
                raise _refused(f"looking {topic} up through {url}", answer.error, answer.message)
            if not owner:
                raise PulsarError(f"{url} found {topic}, and named no address of the kind that was asked with")
            if answer.response == CommandLookupTopicResponse.Connect:
                return LookedUp(owner, session.server, answer.proxy_through_service_url)
            url, authoritative = owner, answer.authoritative
    raise PulsarUnavailableError(f"looking {topic} up was redirected more than {_REDIRECTS} times; try again later")


def look_up(connection: PulsarConnection, url: str, topic: str) -> tuple[str, str]:
    """Look a topic up as `lookup` does; return its owner's address, and the version of the server."""
    found = lookup(connection, url, topic)
    return found.owner, found.server


class _Session:
    """A connection to one broker or proxy, introduced."""

    def __init__(self, connection: PulsarConnection, url: str, deadline: float) -> None:
        self._url = url
        self._deadline = deadline
        self._socket = _open(connection, url, self._left())
        try:
            self.server = self._introduce(connection)
        except BaseException:
            self._socket.close()
            raise

    def look_up(self, topic: str, *, authoritative: bool) -> CommandLookupTopicResponse:
        """Ask for the topic's owner."""
        asked = BaseCommand(type=_LOOKUP)
        asked.lookupTopic.topic, asked.lookupTopic.request_id = topic, 1
        asked.lookupTopic.authoritative = authoritative
        self._send(asked)
        return self._receive(_LOOKED_UP).lookupTopicResponse

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _introduce(self, connection: PulsarConnection) -> str:
        hello = BaseCommand(type=_CONNECT)
        hello.connect.client_version, hello.connect.protocol_version = "bookwarden", _PROTOCOL
        method, data = _credentials(connection)
        if method:
            hello.connect.auth_method_name, hello.connect.auth_data = method, data
        self._send(hello)
        return self._receive(_CONNECTED).connected.server_version

    def _send(self, command: BaseCommand) -> None:
        body = command.SerializeToString()
        try:
            self._socket.settimeout(self._left())
            self._socket.sendall(struct.pack(">II", len(body) + 4, len(body)) + body)
        except OSError as error:
            raise _unreachable(self._url, error) from error

    def _receive(self, kind: int) -> BaseCommand:
        while True:
            total, size = struct.unpack(">II", self._read(8))
            if not 4 <= size + 4 <= total <= _LARGEST:
                raise FormatError(f"{self._url} does not speak Pulsar's protocol: check the address, and its port")
            command = parse(BaseCommand(), self._read(total - 4)[:size], f"an answer of {self._url}")
            if command.type == kind:
                return command
            if command.type == _ERROR:
                raise _refused(f"connecting to {self._url}", command.error.error, command.error.message)
            if command.type == _PING:
                pong = BaseCommand(type=_PONG)
                pong.pong.SetInParent()
                self._send(pong)

    def _read(self, count: int) -> bytes:
        found = b""
        try:
            while len(found) < count:
                self._socket.settimeout(self._left())
                more = self._socket.recv(count - len(found))
                if not more:
                    raise PulsarUnavailableError(f"{self._url} closed the connection: check the address and our role")
                found += more
        except OSError as error:
            raise _unreachable(self._url, error) from error
        return found

    def _left(self) -> float:
        return max(0.001, self._deadline - time.monotonic())


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
            return "token", ClientCredentials(connection.oauth2, pool, _TIMEOUT_S).token().encode()
    return ("tls", b"") if connection.auth == "tls" else ("", b"")


def _refused(doing: str, code: int, message: str) -> PulsarError:
    if code in _ACCESS:
        return PulsarAccessError(f"{doing}: refused: {message}; check the credentials and the rights of our role")
    return PulsarError(f"{doing}: refused: {message or f'error {code}'}")


def _unreachable(url: str, error: OSError) -> PulsarUnavailableError:
    reason = error.strerror or str(error) or type(error).__name__
    return PulsarUnavailableError(f"{url} is not reachable ({reason})")
