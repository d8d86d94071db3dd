"""A real S3 server on this machine (moto), and a proxy before it that can answer as a store in trouble does."""

from __future__ import annotations

import http.client
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import urllib3
from botocore.config import Config

from bookwarden.devcluster.ports import free_ports
from bookwarden.devcluster.process import ServerProcess, ServerSpec

REGION = "us-east-1"
ACCESS_KEY, SECRET_KEY = "AKIDOFTESTS", "secret of tests"


class ObjectStore:
    """The server, and a client of its own for what a test has to arrange and to look at."""

    def __init__(self, home: Path) -> None:
        (self.port,) = free_ports(1)
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.process = ServerProcess(
            ServerSpec(
                name="object-store",
                command=lambda: [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)],
                log_file=home / "object-store.log",
                is_ready=lambda _start: self._answers(),
                working_folder=home,
            )
        )
        self.client: Any = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            config=Config(s3={"addressing_style": "path"}),
        )

    def keys(self, bucket: str) -> set[str]:
        """Name all objects of a bucket."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return {found["Key"] for page in pages for found in page.get("Contents", ())}

    def uploads(self, bucket: str) -> set[str]:
        """Name the keys of a bucket's unfinished uploads."""
        return {upload["Key"] for upload in self.client.list_multipart_uploads(Bucket=bucket).get("Uploads", ())}

    def close(self) -> None:
        self.client.close()
        self.process.kill()

    def _answers(self) -> bool:
        with urllib3.PoolManager(retries=False, timeout=2.0) as http_pool:
            try:
                return http_pool.request("GET", f"{self.endpoint}/moto-api/").status == 200
            except urllib3.exceptions.HTTPError:
                return False


@contextmanager
def running_object_store(home: Path) -> Iterator[ObjectStore]:
    """Run the server for the block."""
    store = ObjectStore(home)
    try:
        store.process.start()
        yield store
    finally:
        store.close()


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
