"""A TCP proxy that can lose a server's answers while the server goes on doing what it is asked."""

from __future__ import annotations

import contextlib
import socket
import threading


class LossyProxy:
    """Passes bytes between clients and one server on this machine; `lose_answers` drops what comes back.

    ``server_port`` may be set before the first client comes.
    """

    def __init__(self, server_port: int = 0) -> None:
        self.server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._losing = threading.Event()
        self._cut = threading.Event()
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_answers(self) -> None:
        """Drop the server's answers from now on."""
        self._losing.set()

    def cut_off(self) -> None:
        """Close all connections, and let nobody through any more."""
        self._cut.set()
        self.break_connections()

    def let_through(self) -> None:
        """End `cut_off`."""
        self._cut.clear()

    def break_connections(self) -> None:
        """Close all connections, and pass both directions on later ones."""
        with self._lock:
            broken, self._sockets = self._sockets, []
        for end in broken:
            _shut(end)
        self._losing.clear()

    def close(self) -> None:
        # A thread that waits in accept gets one more.
        self._cut.set()
        self._listener.close()
        self.break_connections()

    def _passed(self, block: bytes, client: socket.socket, is_answer: bool) -> bytes:
        """Return what is passed on of what came from a client, or is an answer to it."""
        return b"" if is_answer and self._losing.is_set() else block

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.server_port))
            except OSError:
                # As if it had been refused here.
                _shut(client)
                continue
            with self._lock:
                is_cut = self._cut.is_set()
                if not is_cut:
                    self._sockets += [client, server]
            if is_cut:
                _shut(client)
                _shut(server)
                continue
            threading.Thread(target=self._pass, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._pass, args=(server, client, True), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        with contextlib.suppress(OSError):
            # Who sees one connection end must not get through on another that is about to be closed.
            while (block := source.recv(65536)) and not self._cut.is_set():
                if passed := self._passed(block, target if is_answer else source, is_answer):
                    target.sendall(passed)
        _shut(source)
        _shut(target)


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
