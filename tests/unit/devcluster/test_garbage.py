"""A bookie is asked to collect its garbage, and what it does not do is told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from bookwarden.errors import ServerError
from bookwarden_dev.demo.stage import GarbageOnDemand
from bookwarden_dev.devcluster.ports import free_ports


class Asked(HTTPServer):
    """Stands for a bookie; answers every request with ``status``, and notes it."""

    status = 200

    def __init__(self) -> None:
        self.requests: list[str] = []
        super().__init__(("127.0.0.1", 0), Handler)


class Handler(BaseHTTPRequestHandler):
    server: Asked

    def do_PUT(self) -> None:
        self.server.requests.append(self.path)
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def bookie() -> Iterator[Asked]:
    with Asked() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_bookie_is_asked_where_its_settings_let_it_listen(bookie: Asked) -> None:
    garbage = GarbageOnDemand(bookie.server_port)
    garbage.collect()
    assert bookie.requests == ["/api/v1/bookie/gc"]
    assert garbage.bookie_settings["httpServerPort"] == str(bookie.server_port)
    assert garbage.bookie_settings["httpServerEnabled"] == "true"


def test_a_bookie_that_refuses_is_told_of(bookie: Asked) -> None:
    bookie.status = 405
    with pytest.raises(ServerError, match="answered 405"):
        GarbageOnDemand(bookie.server_port).collect()


def test_a_bookie_that_does_not_answer_is_told_of() -> None:
    with pytest.raises(ServerError, match="cannot be asked"):
        GarbageOnDemand(*free_ports(1)).collect()
