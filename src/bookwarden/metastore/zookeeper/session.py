"""A session with ZooKeeper: its options, sending and waiting, and the translation of kazoo's errors.

kazoo keeps the session: it connects, fails over between servers, authenticates, and opens a new session when the
old one expired. Added here: deadlines, whether a change was sent, and reads that stay fresh across an expired
session, whose successor may begin on a server that lags behind.
"""

from __future__ import annotations

import functools
import logging
import math
import select
import threading
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from socket import socket
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionLoss,
    InvalidACLError,
    KazooException,
    NoAuthError,
    OperationTimeoutError,
    RequestTimeoutError,
    SessionClosedRequireSaslError,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.serialization import Auth, Exists, Sync, Watch
from kazoo.protocol.states import KazooState, KeeperState

from bookwarden.errors import ConfigError, StoreAccessError, StoreError, StoreUnavailableError
from bookwarden.metastore.deadline import Deadline
from bookwarden.metastore.pacing import Pace, Turn
from bookwarden.metastore.tls_files import validate_tls_files

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter

_LOG = logging.getLogger(__name__)
_LOG.addHandler(logging.NullHandler())

_REPLY_LOST = (
    ConnectionLoss,
    ConnectionClosedError,
    SessionExpiredError,
    SessionMovedError,
    OperationTimeoutError,
    RequestTimeoutError,
    KazooTimeoutError,
)
_ACCESS_REFUSED = (NoAuthError, AuthFailedError, InvalidACLError, SessionClosedRequireSaslError)

# While a server is away kazoo doubles its pauses up to this many seconds: a sweep should notice its return.
_MAX_RECONNECT_PAUSE_S = 2.0

# A server that is just starting can accept a connection and never answer on it. kazoo waits for the answer as
# long as a session lives, divided by the number of hosts; each host is therefore named so often that it is this.
_HANDSHAKE_S = 3.0

# A read that has to come from one session is restarted this often before it is given up.
_SESSIONS_PER_READ = 10

T = TypeVar("T")


class Request(Protocol):
    """A request for kazoo's connection; one for several nodes has their number as ``nodes``."""

    type: int

    def serialize(self) -> bytes: ...


class ReplyLost(Exception):
    """The connection ended, or time ran out, before the reply came."""


class ServerRefusal(StoreError):
    """ZooKeeper answered the whole request with an error code."""

    def __init__(self, code: int, name: str) -> None:
        super().__init__(f"ZooKeeper refused a request: {name} ({code})")
        self.code = code


@dataclass(frozen=True, slots=True)
class ZooKeeperConnection:
    """Options of a connection to ZooKeeper, with times in seconds; picklable, so that it can travel to executors.

    A server that answers reads alone, since it has lost its ensemble, is never used; an observer is, and a `sync` goes
    through it to the leader.
    """

    hosts: str  #: ``host:port,host:port``.
    chroot: str = ""  #: Every path is below it; empty for the root.
    session_timeout_s: float = 30.0  #: As the servers allow it.
    connect_timeout_s: float = 15.0  #: Limit of the wait for the first connection.
    operation_timeout_s: float = 30.0  #: Longest time of a call without any progress, an outage included.
    digest: tuple[str, str] | None = field(default=None, repr=False)  #: User and password.
    #: Who may use the nodes that we create: ``open`` (as Pulsar's own are, whose brokers and bookies must reach ours),
    #: ``creator`` (only our credentials), ``creator-read-open`` (all may read), or ``as-pulsar``: open, but those below
    #: /bookwarden for us and for whom the topics' node lets in.
    acl: str = "open"
    use_ssl: bool = False  #: TLS to all servers.
    ca: str | None = None  #: File with the authorities' certificates; None takes the system's.
    certfile: str | None = None  #: File of our own certificate, if the servers ask for one.
    keyfile: str | None = None  #: File of its key; goes with ``certfile``.
    keyfile_password: str | None = field(default=None, repr=False)  #: Of an encrypted key; else None.
    verify: bool = True  #: Check the servers' certificates.
    check_hostname: bool = False  #: Check the host names in them too.
    batch_size: int = 100  #: Nodes in a request, but for small ones.
    in_flight: int = 8  #: Requests under way.
    max_request_bytes: int = 1_048_575  #: The servers' jute.maxbuffer.
    multi_read: bool = True  #: False for servers before 3.6, which lack it.
    max_requests_per_second: float | None = None  #: Counts each node of a request (pacing.Rate); None is no limit.
    #: With slower answers fewer requests are in flight (pacing.LatencyWindow); None is no limit.
    max_latency_s: float | None = None

    def validate(self) -> None:
        """Raise ConfigError for what cannot work, before anything is connected."""
        if not self.hosts.strip():
            raise ConfigError(
                "the metadata store's URL names no ZooKeeper host; expected zk:host:port,host:port/chroot"
            )
        validate_tls_files(ca=self.ca, certfile=self.certfile, keyfile=self.keyfile)
        if self.digest is not None and (not all(self.digest) or ":" in self.digest[0]):
            raise ConfigError("the metadata store's digest needs a user without a colon, and a password")


_SHOWN = (int, str, float, Watch, Exception)


def _without_value(message: object) -> str:
    path = getattr(message, "path", None)
    return type(message).__name__ + ("" if path is None else f" {path}")


class _SessionLog(_Adapter):
    """kazoo's log without credentials (authentication requests, the session's password), values and repetitions.

    The value of a ledger's node has the ledger's password, so neither requests nor answers are shown with what is in
    them.
    """

    last_warning = ""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if level < logging.DEBUG or any(isinstance(arg, Auth) for arg in args):
            return
        if level == logging.DEBUG:
            # The number of a request, and the path of an event, are all that there is besides requests and answers.
            args = tuple(arg if arg is None or isinstance(arg, _SHOWN) else _without_value(arg) for arg in args)
        if level >= logging.WARNING and isinstance(msg, str):
            text = msg % args if args else msg
            # An outage repeats the same line with every attempt to connect.
            level = logging.DEBUG if text == self.last_warning else level
            self.last_warning = text
        super().log(level, msg, *args, **kwargs)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, kwargs


@dataclass(frozen=True, slots=True)
class PendingReply:
    """A request under way."""

    result: Any
    deadline: Deadline

    def get(self) -> Any:
        """Wait for the reply; raise ReplyLost, StoreAccessError or, for other errors, ServerRefusal."""
        try:
            return self.result.get(timeout=self.deadline.left())
        except _REPLY_LOST as error:
            raise ReplyLost(type(error).__name__) from error
        except _ACCESS_REFUSED as error:
            raise StoreAccessError(ACCESS_REFUSED_TEXT) from error
        except KazooException as error:
            raise ServerRefusal(getattr(error, "code", 0), type(error).__name__) from error


ACCESS_REFUSED_TEXT = "ZooKeeper refuses our credentials: check the metadata store's digest user and password, and ACLs"


class ZooKeeperSession:
    """Requests over one kazoo client, connected at the first of them; safe to use from several threads.

    Does not survive a fork: make it in the process that uses it. Making one starts nothing.
    """

    def __init__(self, connection: ZooKeeperConnection) -> None:
        connection.validate()
        self.connection = connection
        self.pace = Pace(connection.in_flight, connection.max_requests_per_second, connection.max_latency_s)
        self._lock = threading.Lock()
        self._log = _SessionLog(_LOG, {})
        self._client: Any = None
        self._up = threading.Event()
        self._dead = False
        self._closed = False
        self._lost_sessions = 0
        self._synced_in: int | None = None
        self._breaks = 0
        self._listeners: tuple[Callable[[str], None], ...] = ()

    def deadline(self) -> Deadline:
        """Begin the time that a call has without progress."""
        return Deadline(self.connection.operation_timeout_s)

    def send(self, request: Request, deadline: Deadline) -> PendingReply:
        """Send the request; raise StoreUnavailableError when there is no connection in time."""
        client = self._connected(deadline)
        turn = self._turn(request, deadline) if self.pace.is_limited else None
        result = client.handler.async_result()
        if turn is not None:
            result.rawlink(lambda reply: self.pace.done(turn, answered=not isinstance(reply.exception, _REPLY_LOST)))
        client._call(request, result)
        return PendingReply(result, deadline)

    def _turn(self, request: Request, deadline: Deadline) -> Turn:
        turn = self.pace.turn(getattr(request, "nodes", 1), deadline.left())
        if turn is None:
            raise self._unavailable(f"left earlier requests without an answer for {self._timeout}")
        deadline.extend(turn.held_s)
        return turn

    def read(self, request: Request, deadline: Deadline) -> Any:
        """Repeat a request that changes nothing until a reply comes; raise StoreUnavailableError at the deadline."""
        while True:
            try:
                reply = self.send(request, deadline).get()
            except ReplyLost as lost:
                self.require_time(deadline, lost)
            else:
                deadline.progress()
                return reply

    def sync(self, deadline: Deadline) -> None:
        """Make later reads see everything committed before; a later session repeats it before its first read."""
        while True:
            session = self._lost_sessions
            self.read(Sync(self.absolute("/")), deadline)
            if session == self._lost_sessions:
                self._synced_in = session
                return

    def read_fresh(self, reader: Callable[[], T], deadline: Deadline) -> T:
        """Call the reader, again if need be, until all its reads come from one session that has synced."""
        for _ in range(_SESSIONS_PER_READ):
            session = self._lost_sessions
            if self._synced_in is not None and self._synced_in != session:
                self.sync(deadline)
                session = self._lost_sessions
            value = reader()
            if self._synced_in is None or self._synced_in == session == self._lost_sessions:
                return value
        raise self._unavailable(f"ended {_SESSIONS_PER_READ} sessions during one read")

    def watch_next(self, path: str, fired: Callable[[Any], None], deadline: Deadline) -> None:
        """Call `fired` once: at the node's next change, or when the connection is lost."""
        self.read(Exists(self.absolute(path), fired), deadline)

    def listen(self, changed: Callable[[str], None]) -> None:
        """Call `changed` with the path of each event of a watch, in the connection's own thread: it must not wait."""
        self._listeners = (*self._listeners, changed)

    def forget(self, changed: Callable[[str], None]) -> None:
        """End the calls of a listener."""
        self._listeners = tuple(other for other in self._listeners if other != changed)

    @property
    def breaks(self) -> int:
        """The number of times that a connection ended, and with it its watches."""
        return self._breaks

    def absolute(self, path: str) -> str:
        """Put the chroot before the path."""
        chroot = self.connection.chroot.rstrip("/")
        return (chroot if path == "/" else chroot + path) or "/"

    def absolute_many(self, paths: Sequence[str]) -> Sequence[str]:
        """Put the chroot before each path."""
        return [self.absolute(path) for path in paths] if self.connection.chroot.rstrip("/") else paths

    def require_time(self, deadline: Deadline, lost: ReplyLost) -> None:
        """Raise StoreUnavailableError when the deadline is over."""
        if deadline.left() <= 0:
            raise self._unavailable(f"gave no answer within {self._timeout}") from lost

    @property
    def sessions_lost(self) -> int:
        """The number of sessions that ended, and with them their ephemeral nodes."""
        return self._lost_sessions

    @property
    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """End the session, and with it our ephemeral nodes."""
        with self._lock:
            self._closed = True
            client, self._client = self._client, None
        self._up.set()
        self.pace.forget()
        if client is not None:
            _stop(client)

    @property
    def _timeout(self) -> str:
        return f"{self.connection.operation_timeout_s:g} s"

    def _connected(self, deadline: Deadline) -> Any:
        client = self._started(deadline)
        if not self._up.wait(deadline.left()):
            raise self._unavailable("cannot be reached")
        if self._closed:
            raise StoreUnavailableError("this metadata store was closed")
        return client

    def _started(self, deadline: Deadline) -> Any:
        with self._lock:
            if self._closed:
                raise StoreUnavailableError("this metadata store was closed")
            if self._dead and self._client is not None:
                _stop(self._client)
                self._client = None
            if self._client is None:
                self._client = self._open(deadline)
            return self._client

    def _open(self, deadline: Deadline) -> Any:
        self._dead = False
        self._up.clear()
        # The answers to an earlier client's requests are not counted any more.
        self.pace.forget()
        client = self._new_client()
        listener = functools.partial(self._state_changed, client)
        client.add_listener(listener)
        client.start_async()
        connected = self._up.wait(min(self.connection.connect_timeout_s, deadline.left()))
        try:
            if not connected:
                raise self._unavailable("cannot be reached")
            self._require_chroot(client)
        except BaseException:
            client.remove_listener(listener)
            _stop(client)
            raise
        deadline.progress()
        return client

    def _new_client(self) -> Any:
        settings = self.connection
        auth = [("digest", ":".join(settings.digest))] if settings.digest else None
        client = KazooClient(
            hosts=",".join([settings.hosts] * _repeats(settings)),
            timeout=settings.session_timeout_s,
            auth_data=auth,
            connection_retry={"max_tries": -1, "max_delay": _MAX_RECONNECT_PAUSE_S},
            logger=self._log,
            handler=polling_handler(),
            **_tls_options(settings),
        )
        self._tell_listeners(client)
        return client

    def _tell_listeners(self, client: Any) -> None:
        """Pass on the events of watches that kazoo does not know: it looks for a watcher of exactly their path."""
        connection = client._connection
        known = connection._read_watch_event
        chroot = self.connection.chroot.rstrip("/")

        def read(buffer: bytes, offset: int) -> None:
            event, _ = Watch.deserialize(buffer, offset)
            if event.path.startswith(f"{chroot}/"):
                for changed in self._listeners:
                    changed(event.path[len(chroot) :])
            known(buffer, offset)

        connection._read_watch_event = read

    def _require_chroot(self, client: Any) -> None:
        # Below a chroot that does not exist every ledger and every reference would look absent.
        if not self.connection.chroot.strip("/"):
            return
        result = client.exists_async(self.absolute("/"))
        try:
            found = PendingReply(result, self.deadline()).get()
        except ReplyLost as lost:
            raise self._unavailable("broke the connection") from lost
        if found is None:
            raise ConfigError(
                f"ZooKeeper {self.connection.hosts} has no node {self.connection.chroot}: "
                "check the part after the host in the metadata store's URL"
            )

    def _state_changed(self, client: Any, state: str) -> None:
        if state == KazooState.CONNECTED and client.client_state == KeeperState.CONNECTED_RO:
            # It has lost its ensemble, so its data is old. Reads that began before are restarted.
            self._log.last_warning = "the server answers reads alone, from what it knew before it lost the others"
            self._lost_sessions += 1
            return
        if state == KazooState.CONNECTED:
            self._log.last_warning = ""
            self._up.set()
            return
        self._breaks += 1
        if state == KazooState.LOST:
            self._lost_sessions += 1
            # kazoo's thread is gone for good after a protocol error or refused credentials.
            self._dead = client.client_state in (KeeperState.CLOSED, KeeperState.AUTH_FAILED)
        if not (self._dead or self._closed):
            self._up.clear()

    def _unavailable(self, what: str) -> StoreUnavailableError:
        hint = f" ({self._log.last_warning})" if self._log.last_warning else ""
        # OpenSSL's words, whether we refuse the certificate or the server does.
        is_about_tls = "certificate" in hint.lower()
        advice = "check the TLS certificates, ours and the servers'" if is_about_tls else "check that it runs"
        return StoreUnavailableError(f"ZooKeeper {self.connection.hosts} {what}{hint}: {advice}, then retry")


def _repeats(settings: ZooKeeperConnection) -> int:
    return max(1, round(settings.session_timeout_s / _HANDSHAKE_S / len(settings.hosts.split(","))))


def _tls_options(settings: ZooKeeperConnection) -> Mapping[str, Any]:
    if not settings.use_ssl:
        return {}
    return {
        "use_ssl": True,
        "ca": settings.ca,
        "certfile": settings.certfile,
        "keyfile": settings.keyfile,
        "keyfile_password": settings.keyfile_password,
        "verify_certs": settings.verify,
        "check_hostname": settings.check_hostname,
    }


def _stop(client: Any) -> None:
    client.stop()
    client.close()


def polling_handler() -> Any:
    """Make a handler for one KazooClient."""
    handler = SequentialThreadingHandler()
    handler.select = select_by_poll
    return handler


# Fast path of select.select, must equal it: tests/unit/metastore/test_zookeeper_polling.py
def select_by_poll(
    readers: Sequence[socket], writers: Sequence[socket], _: Sequence[socket], timeout: float | None = None
) -> tuple[list[socket], list[socket], list[socket]]:
    """Do what select.select does, for file descriptors above 1,023 too; ``timeout`` is in seconds, None without end.

    A broken connection counts as ready: its next read or write raises the error. No socket may be in both lists.
    """
    poll = select.poll()
    for reader in readers:
        poll.register(reader, select.POLLIN)
    for writer in writers:
        poll.register(writer, select.POLLOUT)
    events = poll.poll(None if timeout is None else math.ceil(max(timeout, 0) * 1000))
    ready = {number for number, _ in events}
    return [one for one in readers if one.fileno() in ready], [one for one in writers if one.fileno() in ready], []
