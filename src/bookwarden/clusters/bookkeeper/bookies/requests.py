"""Requests to several bookies at once; failures are among the answers, since a silent bookie is to be expected."""

from __future__ import annotations

import contextlib
import selectors
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Final, NamedTuple

from bookwarden.clusters.bookkeeper.bookies.addresses import BookieAddresses
from bookwarden.clusters.bookkeeper.bookies.connection import BookieConnection
from bookwarden.clusters.bookkeeper.bookies.protocol import Request, Response
from bookwarden.clusters.bookkeeper.bookies.tls import BookieTls
from bookwarden.errors import BookieError, FormatError

# Seconds in which other bookies are asked first after one did not answer.
_AVOIDED_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class BookieOptions:
    """Options of connections to bookies, and the limits of requests under way.

    A bookie that owes a response and sends nothing at all for ``request_timeout_s`` is taken to be down.
    ``reads_in_flight`` is in entries, ``bytes_in_flight`` in bytes, for each reader over all bookies together.
    """

    connect_timeout_s: float = 5.0
    request_timeout_s: float = 10.0
    reads_in_flight: int = 500
    bytes_in_flight: int = 32 * 1024 * 1024
    tls: BookieTls | None = None


class Answer(NamedTuple):
    """The result of one request: a response, or the reason in ``failure``."""

    bookie_id: str
    request: Request
    response: Response | None
    failure: str = ""


class Bookies:
    """Connections to bookies, opened as they are needed and kept until closed.

    For one thread, and one exchange at a time.
    """

    def __init__(self, addresses: BookieAddresses, options: BookieOptions | None = None) -> None:
        self.options = options or BookieOptions()
        self._addresses = addresses
        self._connections: dict[str, BookieConnection] = {}
        self._selector = selectors.DefaultSelector()
        self._failed: list[Answer] = []
        self._avoided: dict[str, float] = {}
        self._busy = False

    @contextlib.contextmanager
    def exchange(self) -> Iterator[None]:
        """Own all requests and answers meanwhile; requests without an answer at the end are forgotten."""
        if self._busy:
            raise RuntimeError("an exchange with these bookies is under way: end it, or make other Bookies")
        self._busy = True
        try:
            yield
        finally:
            self._busy = False
            self._failed.clear()
            for connection in self._connections.values():
                connection.forget()

    def ask(self, bookie_id: str, request: Request) -> None:
        """Ask a bookie, with the next `send` or `answers`; the answer, or its failure, comes from `answers`."""
        try:
            self._connection(bookie_id).ask(request)
        except (BookieError, FormatError) as error:
            self._fail(bookie_id, [request], error)

    def send(self) -> None:
        """Send the requests, as far as the sockets take them, without waiting."""
        for bookie_id, connection in list(self._connections.items()):
            self._send(bookie_id, connection)

    def answers(self) -> list[Answer]:
        """Wait for answers and return those that are here; each request gets one in the end. Empty if none is due."""
        while True:
            self.send()
            if self._failed:
                failed, self._failed = self._failed, []
                return failed
            limit = self._next_timeout()
            if limit is None:
                return []
            found = self._receive(max(0.0, limit - time.monotonic()))
            if found:
                return found

    def is_avoided(self, bookie_id: str) -> bool:
        """Return whether the bookie did not answer lately, so that others should be asked first."""
        if bookie_id not in self._avoided:
            return False
        if time.monotonic() > self._avoided[bookie_id]:
            del self._avoided[bookie_id]
            return False
        return True

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._selector.close()

    def __enter__(self) -> Bookies:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _connection(self, bookie_id: str) -> BookieConnection:
        connection = self._connections.get(bookie_id)
        if connection is not None and connection.has_hung_up():
            self._remove(bookie_id, connection)
            connection = None
        if connection is None:
            address = self._addresses.find(bookie_id)
            connection = BookieConnection(bookie_id, address, self.options.connect_timeout_s, self.options.tls)
            self._connections[bookie_id] = connection
            self._selector.register(connection, selectors.EVENT_READ, bookie_id)
        return connection

    def _send(self, bookie_id: str, connection: BookieConnection) -> None:
        if not connection.has_unsent:
            return
        try:
            connection.send()
        except BookieError as error:
            self._drop(bookie_id, connection, error)
            return
        writing = selectors.EVENT_WRITE if connection.has_unsent else 0
        if self._selector.get_key(connection).events != selectors.EVENT_READ | writing:
            self._selector.modify(connection, selectors.EVENT_READ | writing, bookie_id)

    def _receive(self, seconds: float) -> list[Answer]:
        found: list[Answer] = []
        ready = self._selector.select(seconds)
        for key, _ in ready:
            bookie_id, connection = key.data, self._connections[key.data]
            try:
                found += [Answer(bookie_id, *answered) for answered in connection.receive()]
            except (BookieError, FormatError) as error:
                self._drop(bookie_id, connection, error)
        if not ready:
            # Only now, since answers may have waited in the sockets while the caller was busy.
            self._drop_silent()
        return found

    def _next_timeout(self) -> float | None:
        since = [moment for found in self._connections.values() if (moment := found.silent_since()) is not None]
        return min(since) + self.options.request_timeout_s if since else None

    def _drop_silent(self) -> None:
        limit = self.options.request_timeout_s
        for bookie_id, connection in list(self._connections.items()):
            since = connection.silent_since()
            if since is not None and time.monotonic() - since >= limit:
                silence = BookieError(f"bookie {bookie_id} did not answer within {limit:g} s")
                self._drop(bookie_id, connection, silence)

    def _drop(self, bookie_id: str, connection: BookieConnection, error: Exception) -> None:
        self._remove(bookie_id, connection)
        self._fail(bookie_id, connection.waiting, error)

    def _remove(self, bookie_id: str, connection: BookieConnection) -> None:
        self._selector.unregister(connection)
        connection.close()
        del self._connections[bookie_id]

    def _fail(self, bookie_id: str, requests: list[Request], error: Exception) -> None:
        self._avoided[bookie_id] = time.monotonic() + _AVOIDED_SECONDS
        self._failed += [Answer(bookie_id, request, None, str(error)) for request in requests]
