"""The HTTP server of a bookie for tests without servers: it answers as bookies of 4.17 do, and as it is told."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from bookwarden.metastore.interface import MetadataStore
from bookwarden.wire.pb.bookie_service_info_pb2 import BookieServiceInfoFormat

METRICS = """\
# TYPE bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES gauge
bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES{ledgerDir="/a",indexDir="/a"} 1000
bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES{ledgerDir="/b",indexDir="/b"} 1.5E3
# TYPE bookie_ACTIVE_ENTRY_LOG_TOTAL gauge
bookie_ACTIVE_ENTRY_LOG_TOTAL{ledgerDir="/a",indexDir="/a"} 3
bookie_ACTIVE_ENTRY_LOG_TOTAL{ledgerDir="/b",indexDir="/b"} 2
bookie_THREAD_RUNTIME_count{success="false",ledgerDir="/a",indexDir="/a"} 0
bookie_THREAD_RUNTIME_count{success="true",ledgerDir="/a",indexDir="/a"} 7
"""


class HttpBookie:
    """Answers on a port of this machine; close it after use. ``answers`` are by path, None for one that it lacks.

    A collection is under way for the first ``under_way`` questions, and for ``takes`` after it was asked for one;
    ``failures`` are so many questions for it that it does not answer. ``put`` is called with each request to collect.
    """

    def __init__(self) -> None:
        details = {"majorCompactionCounter": 1, "minorCompactionCounter": 5}
        self.answers: dict[str, Any] = {
            "/api/v1/bookie/state": {"readOnly": False, "availableForHighPriorityWrites": True},
            "/api/v1/bookie/info": {"freeSpace": 40, "totalSpace": 100},
            "/api/v1/bookie/gc/suspend_compaction": {"isMajorGcSuspended": "true", "isMinorGcSuspended": "false"},
            "/api/v1/bookie/gc_details": [
                {**details, "lastMajorCompactionTime": 100, "lastMinorCompactionTime": 300},
                {**details, "lastMajorCompactionTime": 200, "lastMinorCompactionTime": 150},
            ],
            "/api/v1/config/server_config": {"logSizeLimit": "1000", "tlsKeyStorePassword": "hunter2"},
            "/metrics": METRICS,
        }
        self.under_way, self.takes, self.failures = 0, 0, 0
        self.status = 200
        self.asked: list[dict[str, bool]] = []
        self.put: Callable[[], None] = lambda: None
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def register(self, store: MetadataStore, name: str, *, read_only: bool = False) -> None:
        """Register it as a bookie of that id."""
        register(store, name, read_only=read_only, http=("127.0.0.1", self._server.server_port))

    def collect(self, body: bytes) -> None:
        """Take a request to collect, unless one is under way: then a bookie answers just the same."""
        if not self.under_way:
            self.asked.append(json.loads(body))
            self.under_way = self.takes
        self.put()

    def is_collecting(self) -> bool:
        self.under_way -= 1 if self.under_way else 0
        return self.under_way > 0

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def register(
    store: MetadataStore,
    name: str,
    *,
    read_only: bool = False,
    http: tuple[str, int] | None = None,
    rpc: str = "b.example",
) -> None:
    """Register a bookie, with the HTTP server that it publishes."""
    info = BookieServiceInfoFormat()
    if http is not None:
        info.endpoints.add(id="httpserver", protocol="http", host=http[0], port=http[1])
    info.endpoints.add(id="bookie", protocol="bookie-rpc", host=rpc, port=3181)
    below = "/ledgers/available/readonly" if read_only else "/ledgers/available"
    store.create(f"{below}/{name}", info.SerializeToString(), make_parents=True)


def _handler_of(bookie: HttpBookie) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != "/api/v1/bookie/gc":
                self._send(bookie.answers.get(self.path))
            elif bookie.failures:
                bookie.failures -= 1
                self.close_connection = True
            else:
                self._send({"is_in_force_gc": str(bookie.is_collecting()).lower()})

        def do_PUT(self) -> None:
            bookie.collect(self.rfile.read(int(self.headers["Content-Length"])))
            self._send("Triggered GC on BookieServer: b1", bookie.status)

        def _send(self, answer: Any, status: int = 200) -> None:
            data = answer if self.path == "/metrics" else json.dumps(answer)
            self.send_response(404 if answer is None else status)
            self.end_headers()
            self.wfile.write(str(data).encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler
