"""One connection to one bookie: requests go out without waiting, responses come in matched to their requests.

Connecting and the TLS handshake block, for at most a timeout; then nothing does. The connection's owner waits until it
is readable (see requests.py), so that one thread can have many requests under way at several bookies.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections import deque
from typing import Final

from bookwarden.clusters.bookkeeper.bookies.addresses import Address
from bookwarden.clusters.bookkeeper.bookies.protocol import (
    OK,
    FrameSplitter,
    Request,
    RequestEncoder,
    Response,
    StartTls,
    decode_response,
    frame_length,
    status_name,
)
from bookwarden.clusters.bookkeeper.bookies.tls import BookieTls
from bookwarden.errors import BookieUnavailableError, FormatError

_BLOCK_BYTES: Final = 256 * 1024
# So that one busy bookie does not keep the others waiting.
_BYTES_AT_ONCE: Final = 1024 * 1024


class BookieConnection:
    """A connection that is open from the start; for one thread. Every method may raise BookieUnavailableError."""

    def __init__(self, bookie_id: str, address: Address, connect_timeout_s: float, tls: BookieTls | None) -> None:
        self._name = f"bookie {bookie_id}"
        self._encoder = RequestEncoder()
        self._splitter = FrameSplitter()
        self._transaction = 0
        self._waiting: dict[int, Request] = {}
        self._outgoing: deque[bytearray] = deque()
        self._failure: BookieUnavailableError | FormatError | None = None
        try:
            self._socket: socket.socket = socket.create_connection(address, connect_timeout_s)
        except OSError as error:
            raise self._no_answer(error) from error
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                self._socket = self._encrypted(address[0], tls.context)
            self._socket.setblocking(False)
        except OSError as error:
            self._socket.close()
            raise self._no_answer(error) from error
        except BaseException:
            self._socket.close()
            raise
        self._progress = time.monotonic()

    def fileno(self) -> int:
        """The socket, for a selector."""
        return self._socket.fileno()

    @property
    def waiting(self) -> list[Request]:
        """The requests that have no response yet."""
        return list(self._waiting.values())

    @property
    def has_unsent(self) -> bool:
        """Whether some of the requests have not been sent yet, for lack of room in the socket."""
        return bool(self._outgoing)

    def silent_since(self) -> float | None:
        """Return since when (time.monotonic) the bookie owes a response and nothing moved; None if it owes nothing."""
        return self._progress if self._waiting else None

    def ask(self, request: Request) -> None:
        """Queue a request for sending."""
        if not self._waiting:
            self._progress = time.monotonic()
        self._transaction += 1
        self._waiting[self._transaction] = request
        frame = self._encoder.frame(self._transaction, request)
        # In blocks: bytes that are appended to, and taken from at their begin, are copied as a whole again and again.
        if self._outgoing and len(self._outgoing[-1]) < _BLOCK_BYTES:
            self._outgoing[-1] += frame
        else:
            self._outgoing.append(bytearray(frame))

    def send(self) -> None:
        """Send as much as the socket takes now."""
        try:
            while self._outgoing:
                block = self._outgoing[0]
                del block[: self._socket.send(block)]
                self._progress = time.monotonic()
                if not block:
                    self._outgoing.popleft()
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            pass
        except OSError as error:
            raise self._no_answer(error) from error

    def receive(self) -> list[tuple[Request, Response]]:
        """Take the responses that are here; an empty list if there are none yet.

        May raise FormatError too. Responses from before a failure are returned first; the next call raises.
        """
        if self._failure is not None:
            raise self._failure
        answered: list[tuple[Request, Response]] = []
        try:
            self._receive_into(answered)
        except (BookieUnavailableError, FormatError) as error:
            if not answered:
                raise
            self._failure = error
        return answered

    def has_hung_up(self) -> bool:
        """Return whether the bookie closed the connection while it owed nothing."""
        if self._waiting:
            return False
        try:
            self.receive()
        except (BookieUnavailableError, FormatError):
            return True
        return False

    def forget(self) -> None:
        """Drop all requests; their responses, if they still come, are dropped too."""
        self._waiting.clear()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _receive_into(self, answered: list[tuple[Request, Response]]) -> None:
        received = 0
        while received < _BYTES_AT_ONCE and (count := self._received()):
            received += count
            self._progress = time.monotonic()
            for frame in self._splitter.received(count):
                transaction, response = decode_response(frame)
                request = self._waiting.pop(transaction, None)
                # The request of a response may have been forgotten meanwhile.
                if request is not None:
                    answered.append((request, response))

    def _received(self) -> int:
        """Receive the bytes that are here; return their number. BookieUnavailableError if the bookie has hung up."""
        try:
            count = self._socket.recv_into(self._splitter.room())
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0
        except OSError as error:
            raise self._no_answer(error) from error
        if not count:
            raise BookieUnavailableError(f"{self._name} closed the connection")
        return count

    def _encrypted(self, host: str, context: ssl.SSLContext) -> ssl.SSLSocket:
        self._socket.sendall(self._encoder.frame(0, StartTls()))
        _, response = decode_response(self._exactly(frame_length(self._exactly(4))))
        if response.status != OK:
            status = status_name(response.status)
            raise BookieUnavailableError(f"{self._name} has no TLS ({status}): set bookkeeper.tls to false")
        return context.wrap_socket(self._socket, server_hostname=host)

    def _exactly(self, count: int) -> bytes:
        """Receive `size` bytes and none of those after them, which are the handshake's."""
        received = bytearray()
        while len(received) < count:
            part = self._socket.recv(count - len(received))
            if not part:
                raise ConnectionResetError("it closed the connection")
            received += part
        return bytes(received)

    def _no_answer(self, error: OSError) -> BookieUnavailableError:
        return BookieUnavailableError(f"{self._name} does not answer: {error}")
