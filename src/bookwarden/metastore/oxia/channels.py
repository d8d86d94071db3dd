"""Connections to the servers of an Oxia, and the translation of their errors.

Format: the service OxiaClient of client.proto, common/constant/grpc_errors.go and common/rpc of Oxia 0.14. Its own
status codes are beyond gRPC's, which Python shows as UNKNOWN, so that errors are recognized by their text.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc

from bookwarden.errors import ConfigError, StoreAccessError, StoreError, StoreUnavailableError, StoreWedgedError
from bookwarden.metastore.tls_files import validate_tls_files
from bookwarden.wire.pb import oxia_client_pb2 as pb

# What servers take: common/constant of Oxia 0.14.
_MIN_SESSION_S: Final = 2.0
_MAX_SESSION_S: Final = 300.0
# The name that 0.14 and Pulsar 4.2's client have. Servers from 0.15 have both.
_SERVICE: Final = "/io.streamnative.oxia.proto.OxiaClient/"
_SERVICE_FROM_0_15: Final = "/io.oxia.proto.v1.OxiaClient/"
_OPTIONS: Final = (
    # The server sends parts of 2 MiB and more if a value is larger.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 2000),
    # As Oxia's own client does; its servers end connections that ask more often than every 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.enable_http_proxy", 0),
    # Otherwise the connections of a closed store live on for the next one.
    ("grpc.use_local_subchannel_pool", 1),
)
_LOST_CODES: Final = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.ABORTED,
)
_LOST_TEXTS: Final = (
    "not leader",
    "not a member",
    "shard not found",
    "wrong state",
    "invalid status",
    "invalid term",
    "already closed",
    "not initialized",
    "operation was cancelled",
    "EOF",
)
# A shard between two leaders names none. Calls to it fail at once here, as those to a server that is gone.
_NO_LEADER: Final = ""
_NOWHERE: Final = "127.0.0.1:0"
# The server asks whether it leads the shard, and gRPC whether there is a connection, before anything else.
_UNTOUCHED_TEXTS: Final = ("is not leader for shard", "failed to connect to all addresses")
_WEDGED_TEXT: Final = "can not immediately follow"
_REFUSED_CODES: Final = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


@dataclass(frozen=True, slots=True)
class OxiaConnection:
    """Options of a connection to Oxia, with times in seconds; picklable, so that it can travel to executors."""

    address: str  #: host:port of any of its servers.
    namespace: str = "default"  #: Without a slash.
    session_timeout_s: float = 30.0  #: 2 to 300.
    connect_timeout_s: float = 15.0  #: Limit of the wait for the first shard assignments.
    operation_timeout_s: float = 30.0  #: Longest time of a call without any progress, an outage included.
    token: str | None = field(default=None, repr=False)  #: Sent as a bearer token; None sends none.
    use_ssl: bool = False  #: TLS to all servers.
    ca: str | None = None  #: File with the authorities' certificates; None takes gRPC's.
    certfile: str | None = None  #: File of our own certificate, if the servers ask for one.
    keyfile: str | None = None  #: File of its key; goes with ``certfile``.
    batch_size: int = 500  #: Keys in a request.
    in_flight: int = 8  #: Requests under way, for each shard in writes.
    #: Bounds a value too: brokers' clients take no answer above gRPC's 4 MiB.
    max_request_bytes: int = 4 * 1024 * 1024 - 16 * 1024
    max_requests_per_second: float | None = None  #: Counts each key of a request; None is no limit.
    #: For deletes by what was read: each `sync` has every leader commit a write that changes nothing,
    #: so that none answers that was replaced without learning it.
    proves_leaders: bool = False

    def validate(self) -> None:
        """Raise ConfigError for what cannot work, before anything is connected."""
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdigit() or not self.namespace or "/" in self.namespace:
            raise ConfigError(
                f"metadata store URL oxia://{self.address}/{self.namespace}: expected oxia://host:port/namespace"
            )
        if not _MIN_SESSION_S <= self.session_timeout_s <= _MAX_SESSION_S:
            raise ConfigError(
                f"the metadata store's session timeout is {self.session_timeout_s:g} s; "
                f"Oxia takes {_MIN_SESSION_S:g} to {_MAX_SESSION_S:g} s"
            )
        validate_tls_files(ca=self.ca, certfile=self.certfile, keyfile=self.keyfile)


class ServerLost(Exception):
    """The server gave no answer, or does not lead the shard; ``untouched``: it certainly did nothing."""

    def __init__(self, text: str, *, untouched: bool = False) -> None:
        super().__init__(text)
        self.untouched = untouched


class SessionEnded(Exception):
    """The server no longer knows the session; its ephemeral nodes are gone."""


class OxiaChannel:
    """The calls to one server; they return and raise what gRPC does, which `meaning_of` translates."""

    def __init__(self, address: str, channel: grpc.Channel, token: str | None) -> None:
        self.address = address
        self._token = (("authorization", f"Bearer {token}"),) if token else ()
        self._assignments = _stream(channel, "GetShardAssignments", pb.ShardAssignments)
        self._assignments_from_0_15 = channel.unary_stream(
            f"{_SERVICE_FROM_0_15}GetShardAssignments", request_serializer=_serialized, response_deserializer=bytes
        )
        self._read = _stream(channel, "Read", pb.ReadResponse)
        self._list = _stream(channel, "List", pb.ListResponse)
        self._notifications = _stream(channel, "GetNotifications", pb.NotificationBatch)
        self._create_session = _single(channel, "CreateSession", pb.CreateSessionResponse)
        self._keep_alive = _single(channel, "KeepAlive", pb.KeepAliveResponse)
        self._close_session = _single(channel, "CloseSession", pb.CloseSessionResponse)
        self._write_stream = channel.stream_stream(
            f"{_SERVICE}WriteStream",
            request_serializer=pb.WriteRequest.SerializeToString,
            response_deserializer=pb.WriteResponse.FromString,
        )

    def assignments(self, namespace: str) -> Any:
        """Follow the assignments of leaders to shards."""
        return _invoke(self._assignments, pb.ShardAssignmentsRequest(namespace=namespace), metadata=self._token)

    def is_0_15(self, namespace: str, timeout: float) -> bool:
        """Return whether it is Oxia 0.15 or newer, which has the service under a second name."""
        request = pb.ShardAssignmentsRequest(namespace=namespace)
        call = _invoke(self._assignments_from_0_15, request, timeout=timeout, metadata=self._token)
        try:
            next(call, None)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                return False
            raise
        finally:
            call.cancel()
        return True

    def read(self, request: pb.ReadRequest, timeout: float) -> Any:
        """Send gets to a shard's leader."""
        return _invoke(self._read, request, timeout=timeout, metadata=self._token)

    def list_range(self, request: pb.ListRequest, timeout: float) -> Any:
        """Send a list to a shard's leader."""
        return _invoke(self._list, request, timeout=timeout, metadata=self._token)

    def notifications(self, shard: int) -> Any:
        """Follow the changes of a shard, from now on."""
        return _invoke(self._notifications, pb.NotificationsRequest(shard=shard), metadata=self._token)

    def write_stream(self, requests: Iterator[pb.WriteRequest], namespace: str, shard: int) -> Any:
        """Open the stream of writes of a shard."""
        return _invoke(
            self._write_stream, requests, metadata=(("namespace", namespace), ("shard-id", str(shard)), *self._token)
        )

    def create_session(self, shard: int, timeout_s: float, identity: str, timeout: float) -> int:
        """Begin a session on a shard; return its id."""
        request = pb.CreateSessionRequest(
            shard=shard, session_timeout_ms=int(timeout_s * 1000), client_identity=identity
        )
        answer: pb.CreateSessionResponse = _invoke(self._create_session, request, timeout=timeout, metadata=self._token)
        return answer.session_id

    def keep_alive(self, shard: int, session: int, timeout: float) -> None:
        """Keep a session alive."""
        _invoke(
            self._keep_alive,
            pb.SessionHeartbeat(shard=shard, session_id=session),
            timeout=timeout,
            metadata=self._token,
        )

    def close_session(self, shard: int, session: int, timeout: float) -> None:
        """End a session and its ephemeral nodes."""
        _invoke(
            self._close_session,
            pb.SessionHeartbeat(shard=shard, session_id=session),
            timeout=timeout,
            # A server that was restarted a moment ago is connected to first: else the nodes stay until the timeout.
            wait_for_ready=True,
            metadata=self._token,
        )


class Channels:
    """One channel for each server, opened when it is first needed; channels do not survive a fork."""

    def __init__(self, connection: OxiaConnection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._open: dict[str, tuple[grpc.Channel, OxiaChannel]] = {}
        self._closed = False

    def server(self, address: str) -> OxiaChannel:
        """Return the server at host:port; for a shard without a leader, one whose every call fails."""
        with self._lock:
            if self._closed:
                raise StoreUnavailableError("this metadata store was closed")
            if address not in self._open:
                channel = self._channel(address)
                self._open[address] = channel, OxiaChannel(address, channel, self._connection.token)
            return self._open[address][1]

    def close(self) -> None:
        """End all connections and the calls under way on them."""
        with self._lock:
            self._closed = True
            opened, self._open = self._open, {}
        for channel, _ in opened.values():
            channel.close()

    def _channel(self, address: str) -> grpc.Channel:
        settings = self._connection
        if not settings.use_ssl or address == _NO_LEADER:
            return grpc.insecure_channel(address or _NOWHERE, options=_OPTIONS)
        credentials = grpc.ssl_channel_credentials(
            root_certificates=_bytes_of(settings.ca),
            private_key=_bytes_of(settings.keyfile),
            certificate_chain=_bytes_of(settings.certfile),
        )
        return grpc.secure_channel(address, credentials, options=_OPTIONS)


def meaning_of(error: grpc.RpcError, address: str) -> ServerLost | SessionEnded | StoreError | ConfigError:
    """Translate a server's error; the address is empty for a shard without a leader."""
    if address == _NO_LEADER:
        return ServerLost("a shard has no leader", untouched=True)
    code, text = error.code(), error.details() or ""
    if _WEDGED_TEXT in text:
        return StoreWedgedError(
            f"a shard of the Oxia server {address} takes no more writes of any client ({text}): restart that server, "
            "then read back what was being written"
        )
    if code in _REFUSED_CODES:
        return StoreAccessError(f"Oxia {address} refuses our credentials ({text}): check the metadata store's token")
    if "namespace not found" in text:
        return ConfigError(f"Oxia {address} has no such namespace: check the last part of the metadata store's URL")
    if "session not found" in text:
        return SessionEnded(text)
    if "notifications not enabled" in text:
        return StoreError(f"Oxia {address} has notifications switched off in this namespace: nothing can be watched")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return StoreError(f"the server {address} does not speak the protocol of Oxia 0.14 ({text}): check its version")
    if code in _LOST_CODES or any(part in text for part in _LOST_TEXTS):
        return ServerLost(text, untouched=any(part in text for part in _UNTOUCHED_TEXTS))
    return StoreError(f"Oxia {address} answered {code.name}: {text}")


def _stream(channel: grpc.Channel, method: str, answer: Any) -> Any:
    return channel.unary_stream(
        _SERVICE + method, request_serializer=_serialized, response_deserializer=answer.FromString
    )


def _single(channel: grpc.Channel, method: str, answer: Any) -> Any:
    return channel.unary_unary(
        _SERVICE + method, request_serializer=_serialized, response_deserializer=answer.FromString
    )


def _invoke(call: Any, request: Any, **options: Any) -> Any:
    try:
        return call(request, **options)
    except ValueError as error:
        # This is what gRPC makes of a channel that was closed a moment ago.
        raise StoreUnavailableError("this metadata store was closed") from error


def _serialized(request: Any) -> bytes:
    data: bytes = request.SerializeToString()
    return data


def _bytes_of(file: str | None) -> bytes | None:
    return None if file is None else Path(file).read_bytes()
