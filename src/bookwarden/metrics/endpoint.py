"""The HTTP endpoint of a stream: /metrics, /health and /ready."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from typing import Final

from prometheus_client import CollectorRegistry, MetricsHandler

from bookwarden.background import in_background
from bookwarden.errors import ConfigError

logger = logging.getLogger(__name__)
HEALTH: Final = "/health"
READY: Final = "/ready"


@contextmanager
def serving(host: str, port: int, registry: CollectorRegistry, why_unready: Callable[[], str]) -> Iterator[None]:
    """Keep the endpoint open for the body; raises ConfigError when the address is not available.

    /health answers 200 as long as the process does, and /ready 503 with what ``why_unready`` returns, unless that is
    empty. Every other path has the metrics.
    """
    handler = type("Handler", (_Handler,), {"registry": registry, "why_unready": staticmethod(why_unready)})
    try:
        server = _server(host, port, handler)
    except OSError as error:
        raise ConfigError(
            f"metrics endpoint {host}:{port} cannot be opened ({error.strerror}): set metrics.host and metrics.port"
        ) from error
    logger.info("metrics at http://%s:%d/metrics", host, port)
    with server, in_background(lambda _: server.serve_forever(), "metrics", end_seconds=5):
        try:
            yield
        finally:
            server.shutdown()


def _server(host: str, port: int, handler: type[MetricsHandler]) -> ThreadingHTTPServer:
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
    # Requests under way must not keep the process from its end.
    kind = type("Server", (ThreadingHTTPServer,), {"address_family": family, "daemon_threads": True})
    found: ThreadingHTTPServer = kind((host, port), handler)
    return found


class _Handler(MetricsHandler):
    why_unready: Callable[[], str]

    def do_GET(self) -> None:
        """Answer a probe, or with the metrics."""
        path = self.path.partition("?")[0]
        if path not in (HEALTH, READY):
            super().do_GET()
            return
        reason = type(self).why_unready() if path == READY else ""
        content = f"{reason or 'ok'}\n".encode()
        self.send_response(503 if reason else 200)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
