"""The HTTP server of a bookie, which tells of its garbage collection and starts one when asked.

It is off unless the bookie's settings have httpServerEnabled; one that is on is published in the registration.
Format: server.http.service.TriggerGCService, GCDetailsService and others of BookKeeper 4.16 to 4.18.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import urllib3

from bookwarden.clusters.bookkeeper.bookie_cluster import read_members
from bookwarden.clusters.bookkeeper.bookies.addresses import http_url_in
from bookwarden.clusters.bookkeeper.bookies.requests import BookieOptions
from bookwarden.errors import BookieError, BookieUnavailableError, FormatError
from bookwarden.ledgers.bookie_report import BookieReport, Compactions, RegisteredBookie
from bookwarden.metastore.interface import MetadataStore

_OFF: Final = (
    "its HTTP server is off: set httpServerEnabled=true and httpServerPort in its bookkeeper.conf, and restart it"
)
_ASKED_AT_ONCE: Final = 16
# BookKeeper's default of logSizeLimit.
_LOG_SIZE_LIMIT: Final = 2**31
_PREFIX: Final = "/api/v1/bookie"
# How long a bookie that collects may be silent, and how often it is asked.
_SILENT_S: Final = 60.0
_POLL_S: Final = (0.1, 5.0)
# Only numbers of these: other lines have labels with any text.
_METRIC: Final = re.compile(
    rb"^bookie_(?:gc_)?(ACTIVE_ENTRY_LOG_\w+|THREAD_RUNTIME_count)(?:\{[^\n]*\})? (\S+)$", re.MULTILINE
)


def read_registered(places: Callable[[], Iterable[tuple[MetadataStore, str]]]) -> list[RegisteredBookie]:
    """Read the bookies that are registered at these ledgers roots, by id."""
    found = list[RegisteredBookie]()
    for store, root in places():
        members = read_members(store, root)
        available = f"{root}/available"
        paths = {f"{available}/{name}": (name, False) for name in members.writable}
        paths |= {f"{available}/readonly/{name}": (name, True) for name in members.read_only}
        for (name, is_read_only), node in zip(paths.values(), store.get_many(list(paths)), strict=True):
            if node is None:
                continue
            try:
                url = http_url_in(name, node.value)
            except FormatError:
                url = ""
            found.append(RegisteredBookie(name, is_read_only, url))
    # One that changes right now may be in both.
    return list({one.name: one for one in sorted(found)}.values())


def read_reports(bookies: Sequence[RegisteredBookie], *, options: BookieOptions) -> dict[str, BookieReport]:
    """Ask the HTTP servers of bookies, many at once; the reports are by id, one without an answer has an ``error``."""

    def report(bookie: RegisteredBookie) -> BookieReport:
        server = BookieServer(bookie, options)
        try:
            return server.report()
        except BookieError as error:
            return BookieReport(bookie.http_url, error=str(error))
        finally:
            server.close()

    with ThreadPoolExecutor(_ASKED_AT_ONCE, thread_name_prefix="bookies") as pool:
        return dict(zip((one.name for one in bookies), pool.map(report, bookies), strict=True))


class BookieServer:
    """The HTTP server of one bookie, by its registration.

    All calls raise BookieUnavailableError where it is off or does not answer, BookieError for an answer that is not
    as expected; the text does not name the bookie.
    """

    def __init__(self, bookie: RegisteredBookie, options: BookieOptions) -> None:
        self._url = bookie.http_url
        timeout = urllib3.Timeout(connect=options.connect_timeout_s, read=options.request_timeout_s)
        self._pool = urllib3.PoolManager(retries=False, timeout=timeout)

    def report(self) -> BookieReport:
        """Ask for all that it tells."""
        is_collecting = self._is_collecting()
        state = self._get("/state") or {}
        suspended = self._get("/gc/suspend_compaction") or {}
        details = self._get("/gc_details") or []
        space = self._get("/info") or {}
        logs, live_bytes = self._entry_logs()
        # Of its settings this alone is taken: there are secrets among them.
        limit = (self._get("/api/v1/config/server_config") or {}).get("logSizeLimit", _LOG_SIZE_LIMIT)
        try:
            times = [max(one["lastMinorCompactionTime"], one["lastMajorCompactionTime"]) for one in details]
            return BookieReport(
                self._url,
                is_read_only=state.get("readOnly"),
                takes_urgent_writes=state.get("availableForHighPriorityWrites"),
                is_collecting=is_collecting,
                is_major_suspended=_flag(suspended, "isMajorGcSuspended"),
                is_minor_suspended=_flag(suspended, "isMinorGcSuspended"),
                compacted_ms=min(times, default=None),
                minor_compactions=sum(one["minorCompactionCounter"] for one in details) if details else None,
                major_compactions=sum(one["majorCompactionCounter"] for one in details) if details else None,
                entry_logs=logs,
                live_bytes=live_bytes,
                log_size_limit=int(limit),
                total=space.get("totalSpace"),
                free=space.get("freeSpace"),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise BookieError(f"{self._url} answers as no bookie that is known here does ({error!r})") from error

    def collect(self, asked: Compactions, pause: Callable[[float], None] = time.sleep) -> str:
        """Have it collect, wait until it has, and return what it said; one that is under way is waited for first.

        It goes on by itself when this is interrupted.
        """
        # It would not take the request while it is in one.
        self._wait(pause)
        # One that is left out is asked for, unless it is suspended.
        body = json.dumps({"forceMajor": asked.major, "forceMinor": asked.minor})
        answer = self._request("PUT", f"{_PREFIX}/gc", body)
        if answer.status != 200:
            raise BookieError(f"{self._url} answered {answer.status} when asked to collect: {_line(answer.data)}")
        try:
            self._wait(pause)
        except BookieUnavailableError as error:
            raise BookieUnavailableError(f"it was asked to collect, and is silent since: {error}") from error
        return _line(answer.data).strip('"')

    def close(self) -> None:
        """Close the connections."""
        self._pool.clear()

    def _wait(self, pause: Callable[[float], None]) -> None:
        """Wait until it is in no collection that was asked for; it may take hours."""
        delay, silent_s = _POLL_S[0], 0.0
        while True:
            try:
                if not self._is_collecting():
                    return
                silent_s = 0.0
            except BookieUnavailableError:
                silent_s += delay
                if silent_s > _SILENT_S:
                    raise
            pause(delay)
            delay = min(2 * delay, _POLL_S[1])

    def _is_collecting(self) -> bool:
        answer = self._get("/gc")
        if not isinstance(answer, dict) or "is_in_force_gc" not in answer:
            raise BookieError(f"{self._url} does not tell of its collection, as bookies do from BookKeeper 4.16 on")
        return bool(answer["is_in_force_gc"] == "true")

    def _entry_logs(self) -> tuple[int | None, int | None]:
        """Return how many closed entry logs it had at its last collection, and their live bytes, by its metrics."""
        found: dict[bytes, float] = {}
        answer = self._request("GET", "/metrics")
        for name, value in _METRIC.findall(answer.data) if answer.status == 200 else ():
            found[name] = found.get(name, 0.0) + float(value)
        if not found.get(b"THREAD_RUNTIME_count"):
            return None, None
        logs, size = (found.get(b"ACTIVE_ENTRY_LOG_" + name) for name in (b"TOTAL", b"SPACE_BYTES"))
        return (None, None) if logs is None or size is None else (int(logs), int(size))

    def _get(self, path: str) -> Any:
        """Return the decoded answer; None where it has no such endpoint."""
        answer = self._request("GET", path if path.startswith("/api") else _PREFIX + path)
        if answer.status == 404:
            return None
        if answer.status == 200:
            try:
                return answer.json()
            except ValueError:
                pass
        raise BookieError(f"{self._url} answered {answer.status} to GET {path}: {_line(answer.data)}")

    def _request(self, method: str, path: str, body: str | None = None) -> urllib3.BaseHTTPResponse:
        if not self._url:
            raise BookieUnavailableError(_OFF)
        try:
            return self._pool.request(method, self._url + path, body=body)
        except urllib3.exceptions.HTTPError as error:
            raise BookieUnavailableError(
                f"{self._url} does not answer ({type(error).__name__}): see that it runs, and that httpServerHost and "
                "firewalls let this machine in"
            ) from error


def _flag(told: Mapping[str, str], name: str) -> bool | None:
    return told[name] == "true" if name in told else None


def _line(answer: bytes) -> str:
    return " ".join(answer.decode("utf-8", "replace").split())[:300]
