"""A bookie for tests without servers: it speaks the wire protocol, and answers, fails and keeps silent as told."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Mapping

from bookwarden.wire.pb import bookie_protocol_pb2 as pb


class ScriptedBookie:
    """Serves the packets of ``entries``, by ledger and entry id, on a port of this machine; close it after use.

    ``status`` is the answer to every read, if set; ``last_confirmed`` answers reads of the last confirmed entry with
    an entry's packet and an explicit one. ``silent`` reads requests and answers none; ``hang_up_after`` so many
    answers it closes the connection. ``tls`` is served on request.
    It answers while ``gate`` is set, and ``answers_before_gate`` so many before that.
    It takes what is added, ``added`` in that order, unless ``add_status`` is another answer to all of them; ledgers of
    ``fenced``, which a fencing read adds to unless it ``refuses_fencing``, are added to by recovery alone, and
    while it is ``read_only`` all are by urgent recovery alone. It gives the ``damaged`` entries with a wrong digest.
    """

    def __init__(self, entries: Mapping[tuple[int, int], bytes] | None = None) -> None:
        self.entries = dict(entries or {})
        self.status: int | None = None
        self.add_status: int = pb.EOK
        self.added: list[tuple[int, int]] = []
        self.master_keys: set[bytes] = set()
        self.fenced: set[int] = set()
        self.fencing: list[tuple[int, int]] = []
        self.refuses_fencing = False
        self.read_only = False
        self.damaged: set[tuple[int, int]] = set()
        self.last_confirmed: tuple[bytes, bytes] | None = None
        self.silent = False
        self.hang_up_after: int | None = None
        self.tls: ssl.SSLContext | None = None
        self.asked: list[tuple[int, int]] = []
        self.answered = 0
        self.connections = 0
        self.ended = 0
        self.answers_before_gate = 0
        self.gate = threading.Event()
        self.gate.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def bookie_id(self) -> str:
        return f"127.0.0.1:{self.port}"

    def drop_connections(self) -> None:
        """Close what is open, as a bookie that is started again does."""
        with self._lock:
            dropped, self._open = self._open, []
        for connection in dropped:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.gate.set()
        # Closing alone would not wake the thread that accepts.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop_connections()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> ScriptedBookie:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self.connections += 1
                self._open.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        self._converse(connection)
        with self._lock:
            self.ended += 1

    def _converse(self, connection: socket.socket) -> None:
        answered = 0
        with contextlib.suppress(OSError), contextlib.ExitStack() as open_sockets:
            open_sockets.enter_context(connection)
            while head := _exactly(connection, 4):
                request = pb.Request.FromString(_exactly(connection, int.from_bytes(head, "big")))
                if self.silent:
                    continue
                if answered == self.hang_up_after:
                    return
                if self.answered >= self.answers_before_gate:
                    self.gate.wait()
                content = self._answer(request).SerializeToString()
                connection.sendall(len(content).to_bytes(4, "big") + content)
                answered += 1
                with self._lock:
                    self.answered += 1
                if request.header.operation == pb.START_TLS and self.tls is not None:
                    connection = open_sockets.enter_context(self.tls.wrap_socket(connection, server_side=True))

    def _answer(self, request: pb.Request) -> pb.Response:
        operation = request.header.operation
        if operation == pb.START_TLS:
            return pb.Response(header=request.header, status=pb.EBADREQ if self.tls is None else pb.EOK)
        if self.status == pb.EUA:
            return pb.Response(header=request.header, status=pb.EUA)
        if operation == pb.READ_LAC:
            return self._last_confirmed(request)
        if operation == pb.ADD_ENTRY:
            return self._add(request)
        key = (request.readRequest.ledgerId, request.readRequest.entryId)
        self.asked.append(key)
        if request.readRequest.flag == pb.ReadRequest.FENCE_LEDGER and request.readRequest.HasField("flag"):
            if self.refuses_fencing:
                return pb.Response(header=request.header, status=pb.EUA)
            self.fenced.add(key[0])
            self.fencing.append(key)
            self.master_keys.add(request.readRequest.masterKey)
        if key[1] == -1:
            key = max((one for one in self.entries.copy() if one[0] == key[0]), default=key)
        body = bytes(64) if key in self.damaged else self.entries.get(key, b"")
        known = pb.ENOENTRY if any(ledger == key[0] for ledger, _ in self.entries.copy()) else pb.ENOLEDGER
        status = self.status if self.status is not None else pb.EOK if body else known
        read = pb.ReadResponse(status=status, ledgerId=key[0], entryId=key[1])
        if status == pb.EOK:
            read.body = body
        return pb.Response(header=request.header, status=status, readResponse=read)

    def _add(self, request: pb.Request) -> pb.Response:
        added = request.addRequest
        key = (added.ledgerId, added.entryId)
        with self._lock:
            self.added.append(key)
            self.master_keys.add(added.masterKey)
            recovery = added.HasField("flag") and added.flag == pb.AddRequest.RECOVERY_ADD
            status = pb.EFENCED if key[0] in self.fenced and not recovery else self.add_status
            if self.read_only and not (recovery and request.header.priority):
                status = pb.EREADONLY
            if status == pb.EOK:
                self.entries[key] = added.body
        return pb.Response(header=request.header, status=pb.StatusCode.ValueType(status))

    def _last_confirmed(self, request: pb.Request) -> pb.Response:
        ledger_id = request.readLacRequest.ledgerId
        status = self.status if self.status is not None else pb.EOK if self.last_confirmed else pb.ENOENTRY
        found = pb.ReadLacResponse(status=status, ledgerId=ledger_id)
        if self.last_confirmed and status == pb.EOK:
            found.lastEntryBody, found.lacBody = self.last_confirmed
        return pb.Response(header=request.header, status=status, readLacResponse=found)


def _exactly(connection: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        part = connection.recv(count - len(received))
        if not part:
            return b""
        received += part
    return received
