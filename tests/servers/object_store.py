"""A real S3 server on this machine (moto), and a proxy before it that can answer as a store in trouble does."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from bookwarden_dev.devcluster.servers.object_store import ACCESS_KEY, REGION, SECRET_KEY, ObjectStore

#: Where the shared broker that offloads does so.
OFFLOAD_BUCKET = "pulsar-offload"

__all__ = [
    "ACCESS_KEY",
    "OFFLOAD_BUCKET",
    "REGION",
    "SECRET_KEY",
    "ObjectStore",
    "TroubledStore",
    "running_object_store",
]


@contextmanager
def running_object_store(home: Path) -> Iterator[ObjectStore]:
    """Run the server for the block, ready from its beginning."""
    with ObjectStore(home) as store:
        store.process.wait_until_ready()
        yield store


class TroubledStore:
    """Passes requests on to an S3 server, but answers the next ``refusals`` with an error of its own."""

    def __init__(self, port: int) -> None:
        self.refusals = 0
        self._status, self._body, self._only = 503, b"", ""
        self.requests: list[str] = []
        self.headers: list[dict[str, str]] = []
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _handle(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                refused = outer._take(f"{self.command} {self.path}", dict(self.headers))
                status, headers, answer = outer._refusal() if refused else self._pass_on(body)
                self.send_response(status)
                for name, value in headers.items():
                    if name.lower() not in ("content-length", "connection", "transfer-encoding", "server", "date"):
                        self.send_header(name, value)
                self.send_header("Content-Length", headers.get("Content-Length") or str(len(answer)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(answer)

            def _pass_on(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                try:
                    connection.request(self.command, self.path, body, dict(self.headers))
                    answer = connection.getresponse()
                    return answer.status, dict(answer.getheaders()), answer.read()
                finally:
                    connection.close()

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def refuse(self, count: int, status: int, code: str, message: str, only: str = "") -> None:
        """Answer the next requests so; with ``only`` those that have this in method, path and query."""
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"
        self.answer(count, status, body, only)

    def answer(self, count: int, status: int, body: str, only: str = "") -> None:
        """Answer the next requests with this XML."""
        self.refusals, self._status, self._body, self._only = count, status, body.encode(), only

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _take(self, request: str, headers: dict[str, str]) -> bool:
        with self._lock:
            self.requests.append(request)
            self.headers.append(headers)
            if self.refusals and self._only in request:
                self.refusals -= 1
                return True
            return False

    def _refusal(self) -> tuple[int, dict[str, str], bytes]:
        return self._status, {"Content-Type": "application/xml"}, self._body
