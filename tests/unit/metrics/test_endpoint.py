"""The endpoint of streams: metrics, and probes."""

from __future__ import annotations

import socket
import threading

import pytest
import urllib3

from bookwarden.config import MetricsSettings
from bookwarden.errors import ConfigError
from bookwarden.pipelines.metrics import SweepMetrics


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def ask(port: int, path: str) -> tuple[int, str]:
    answer = urllib3.request("GET", f"http://127.0.0.1:{port}{path}", timeout=5.0, retries=False)
    return answer.status, answer.data.decode()


def test_a_stream_is_ready_once_its_checks_are_through_and_not_while_batches_fail() -> None:
    metrics, port = SweepMetrics(), free_port()
    with metrics.serving(MetricsSettings(port=port)):
        assert ask(port, "/health") == (200, "ok\n")
        assert ask(port, "/ready") == (503, "the checks before the first batch are not through\n")
        metrics.show_ready()
        assert ask(port, "/ready?verbose") == (200, "ok\n")
        metrics.count_failures(2)
        assert ask(port, "/ready") == (503, "2 failures of the query in a row: the log says why\n")
        assert ask(port, "/health") == (200, "ok\n")
        metrics.count_failures(0)
        assert ask(port, "/ready") == (200, "ok\n")
        # As before there were other paths: what scrapes the root goes on.
        for path in ("/metrics", "/"):
            status, text = ask(port, path)
            assert status == 200
            assert "\nbookwarden_query_restarts_total 1.0\n" in text
    with pytest.raises(urllib3.exceptions.HTTPError):
        ask(port, "/health")


def test_an_address_that_is_taken_is_named_and_none_is_opened_without_a_port() -> None:
    metrics = SweepMetrics()
    with metrics.serving(MetricsSettings()):
        assert "metrics" not in {thread.name for thread in threading.enumerate()}
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        settings = MetricsSettings(port=port)
        with (
            pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{port}.*set metrics\.host and metrics\.port"),
            metrics.serving(settings),
        ):
            pytest.fail("it was opened")
