"""The application that `bookwarden serve` runs: its routes, who may call them, and failures as status codes."""

from __future__ import annotations

import base64
import binascii
import hmac
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from fastapi import FastAPI, Request, Response
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.trustedhost import TrustedHostMiddleware
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from bookwarden import errors
from bookwarden.bookie_clusters.documents import read_overview
from bookwarden.config import Settings
from bookwarden.metadata_migration.watching import read_phases
from bookwarden.metrics.endpoint import HEALTH, READY
from bookwarden.server.bookie_clusters import bookie_clusters_router
from bookwarden.server.metrics import metrics_text, migration_metrics
from bookwarden.server.page.reading import PageReader
from bookwarden.server.page.routes import PAGES, page_router
from bookwarden.wiring.bookie_clusters import SwitchOperations
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.metadata_migration import movable_stores_of

_LOG = logging.getLogger(__name__)

# The first class that an error is of; any other is 500.
_STATUSES: Final[tuple[tuple[type[errors.BookwardenError], int], ...]] = (
    (errors.ConfigError, 400),
    (errors.NotFoundError, 404),
    (errors.RefusedError, 409),
    (errors.LostRaceError, 409),
    (errors.PulsarConflictError, 409),
    (errors.StoreAccessError, 502),
    (errors.PulsarAccessError, 502),
    (errors.BookieAccessError, 502),
    (errors.StoreUnavailableError, 503),
    (errors.OutcomeUnknownError, 503),
    (errors.PulsarUnavailableError, 503),
    (errors.BookieUnavailableError, 503),
    (errors.MissingExtraError, 501),
)

# These methods change nothing.
_ASKING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
# Both say that the process answers: while a store is silent, its page says so, and must be reachable for that.
_PROBES: Final = (HEALTH, READY)
_OPEN: Final = frozenset({"/openapi.json", *_PROBES})


def listen(host: str, port: int) -> socket.socket:
    """Take the address; raise ServerError where another process has it, or this machine does not."""
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        # Python adds the address.
        reason = str(error.strerror).partition(" (")[0]
        raise errors.ServerError(
            f"{host} port {port} cannot be listened on: {reason}; choose serve.host and serve.port"
        ) from error
    # Each connection inherits it. asyncio sets it only on sockets that name their protocol, which this one does not;
    # without it the body of an answer waits 40 ms until the client acknowledges the head.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def make_app(settings: Settings, token: str | None) -> FastAPI:
    """Make the application; with a token, each request but probes and that for the OpenAPI document has to carry it."""
    reader = PageReader(settings)

    @asynccontextmanager
    async def closing_page(_: FastAPI) -> AsyncIterator[None]:
        yield
        reader.close()

    # The pages that FastAPI offers next to the document load scripts from elsewhere.
    app = FastAPI(title="bookwarden", version="v2", docs_url=None, redoc_url=None, lifespan=closing_page)
    app.include_router(bookie_clusters_router(settings))
    app.include_router(page_router(reader.read))
    app.get("/metrics", include_in_schema=False)(lambda: _metrics(settings))
    for path in _PROBES:
        app.get(path, include_in_schema=False)(lambda: PlainTextResponse("ok\n"))
    app.add_exception_handler(errors.BookwardenError, _failed)
    app.add_exception_handler(HTTPException, _not_served)
    app.add_exception_handler(RequestValidationError, _misshapen)
    # The last added is the first asked.
    if token is not None:
        app.middleware("http")(_take_as_json)
        app.middleware("http")(_Bearer(token))
    else:
        # A page that a browser here shows must not get here by a name of its own for this address.
        app.middleware("http")(_require_json)
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=["localhost", "127.0.0.1", "[::1]"])
    return app


def status_of(error: errors.BookwardenError) -> int:
    """Return the status code that this error is answered with."""
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)


def _metrics(settings: Settings) -> Response:
    with Cluster(settings) as cluster:
        phases = read_phases(movable_stores_of(settings.metadata_store))
        found = metrics_text(read_overview(SwitchOperations(cluster).switch), phases)
    return Response(found + migration_metrics(settings), media_type=CONTENT_TYPE_LATEST)


async def _failed(_: Request, error: Exception) -> Response:
    if not isinstance(error, errors.BookwardenError):
        raise error
    status = status_of(error)
    if status >= 500:
        _LOG.error("%s", error)
    # As Pulsar's own REST names it.
    return JSONResponse({"reason": str(error)}, status)


async def _not_served(_: Request, error: Exception) -> Response:
    """Answer where there is no such path or method."""
    if not isinstance(error, HTTPException):
        raise error
    return JSONResponse({"reason": str(error.detail)}, error.status_code, error.headers)


async def _misshapen(_: Request, error: Exception) -> Response:
    """Answer a request with fields that are missing, unknown or of another type; ``detail`` is as FastAPI has it."""
    if not isinstance(error, RequestValidationError):
        raise error
    faults = [_fault(one["loc"], one["type"], one["msg"]) for one in error.errors()]
    return JSONResponse({"reason": "; ".join(faults), "detail": jsonable_encoder(error.errors())}, 422)


def _fault(location: Sequence[int | str], kind: str, said: str) -> str:
    """Describe what is wrong with a field of a request; ``said`` is pydantic's text, for what has no better one."""
    where, *names = map(str, location)
    name = ".".join(names)
    if kind == "json_invalid":
        return "the body is no JSON"
    if kind == "missing":
        return f"{name} is missing: the {where} must name it" if name else "the body is missing: a JSON object"
    if kind == "extra_forbidden":
        return f"there is no field {name!r}: /openapi.json has all of this request"
    must = _MUST_BE.get(kind)
    if must is not None:
        return f"{name or 'the ' + where} must be {must}"
    return f"{name or where}: {said}"


_MUST_BE: Final = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dict_type": "a JSON object",
    "float_parsing": "a number",
    "float_type": "a number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "model_attributes_type": "a JSON object",
    "model_type": "a JSON object",
    "string_type": "text",
    "tuple_type": "a list",
}


async def _require_json(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
    """Let requests through that only ask, and others that a page of another origin could not send.

    A browser sends a request of this content type for such a page only after it asked here whether it may. With a token
    this is not needed: no page can add that.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if request.method not in _ASKING and media_type != "application/json":
        reason = f"{request.method} needs the header Content-Type: application/json, without a body too"
        return JSONResponse({"reason": reason}, 415)
    return await answer(request)


async def _take_as_json(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
    """Read any body as JSON, whatever the request calls it: `curl -d` says that it is a form."""
    headers = [(name, value) for name, value in request.scope["headers"] if name != b"content-type"]
    request.scope["headers"] = [*headers, (b"content-type", b"application/json")]
    return await answer(request)


class _Bearer:
    """Lets requests through that carry the token.

    A browser cannot be told to send a bearer's header: for the page, which changes nothing, it may send the token as a
    password. It would send that for pages of other origins too, so nothing else takes it.
    """

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    async def __call__(self, request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        path = request.url.path
        is_page = request.method in _ASKING and (path in PAGES or path.startswith(("/page/", "/runbook/")))
        if path not in _OPEN and not self._carries(request.headers.get("authorization", ""), is_page):
            reason = "this needs the header Authorization: Bearer TOKEN, with the token of serve.token_file"
            challenge = 'Basic realm="bookwarden: the token is the password", charset="UTF-8"' if is_page else "Bearer"
            return JSONResponse({"reason": reason}, 401, {"WWW-Authenticate": challenge})
        return await answer(request)

    def _carries(self, header: str, is_page: bool) -> bool:
        kind, _, given = header.partition(" ")
        if kind == "Bearer":
            return hmac.compare_digest(given.encode(), self._token)
        if kind != "Basic" or not is_page:
            return False
        try:
            password = base64.b64decode(given, validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return False
        return hmac.compare_digest(password, self._token)
