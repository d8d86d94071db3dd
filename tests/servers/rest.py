"""`bookwarden serve` as a process of its own, and requests to it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any

import urllib3

from bookwarden_dev.devcluster.ports import free_ports
from servers.waiting import eventually


class Server:
    """The process, and requests to it."""

    def __init__(self, port: int, token: str | None) -> None:
        self.address = f"http://127.0.0.1:{port}"
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        all_headers = {**self._headers, "Content-Type": "application/json", **(headers or {})}
        with urllib3.PoolManager(retries=False, timeout=60.0) as http:
            answer = http.request(method, self.address + path, json=body, headers=all_headers)
        return answer.status, json.loads(answer.data) if answer.data.startswith((b"{", b"[")) else answer.data


@contextmanager
def serving(overrides: Mapping[str, str], *, token: str | None = None) -> Iterator[Server]:
    (port,) = free_ports(1)
    sets = [part for name, value in overrides.items() for part in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "bookwarden.cli", *sets, "--set", f"serve.port={port}", "serve"]
    environment = dict(os.environ) if token is None else {**os.environ, "BOOKWARDEN_SERVE__TOKEN": token}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, env=environment, stderr=log)
        try:
            eventually(lambda: process.poll() is not None or _listens(port), timeout=120)
            assert process.poll() is None, _text(log)
            yield Server(port, token)
            process.send_signal(signal.SIGTERM)
            process.wait(60)
            assert "Application shutdown complete" in _text(log)
            assert "Traceback" not in _text(log)
            assert token is None or token not in _text(log)
        finally:
            process.kill()
            process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def _text(log: IO[bytes]) -> str:
    log.seek(0)
    return log.read().decode()
