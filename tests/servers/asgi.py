"""Requests handed to an application as its server does, without a server."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from fastapi import FastAPI


class Answer(NamedTuple):
    """The answer to a request; names of headers are in small letters."""

    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def text(self) -> str:
        return self.content.decode()


def request(app: FastAPI, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
    """Hand a request to the application; of a header's name _ stands for -."""
    answered: list[dict[str, Any]] = []
    named = {"host": "localhost", **headers}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        answered.append(dict(message))

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path.partition("?")[0],
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": path.partition("?")[2].encode(),
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in named.items()],
        "client": ("127.0.0.1", 4711),
        "server": ("localhost", 8089),
    }
    asyncio.run(app(scope, receive, send))
    first = answered[0]
    sent = {name.decode(): value.decode() for name, value in first["headers"]}
    return Answer(first["status"], sent, b"".join(message.get("body", b"") for message in answered))
