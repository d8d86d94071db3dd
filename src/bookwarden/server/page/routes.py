"""The routes of the page: HTML, the same as JSON, the documents that it links to, its style and its script."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Final

from fastapi import APIRouter, Response

from bookwarden.errors import NotFoundError
from bookwarden.installed_docs import find_home, find_pages
from bookwarden.server.page.disk import DiskPlace, disk_json, render_disk
from bookwarden.server.page.moves import moves_json, render_moves
from bookwarden.server.page.overview import PARTS, overview_json, render_overview
from bookwarden.server.page.scan import render_scan, scan_json
from bookwarden.server.page.templates import page_file, render_runbook
from bookwarden.server.page.topic import render_topic, topic_json
from bookwarden.server.page.trash import render_trash, trash_json
from bookwarden.server.page.values import OVERVIEW, Overview, Reading, Wanted

#: The paths of HTML, besides those below /page and /runbook.
PAGES: Final = frozenset({"/", "/disk", "/moves", "/scan", "/topic", "/trash"})
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}
_HTML: Final = "text/html; charset=utf-8"
_JSON: Final = "application/json"
# Of tenants and namespaces: what clients ask for must not fill the memory.
_KEPT: Final = 64


class _Rendered:
    """Pages of the newest reading, as they were rendered; the same until a part of it changes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: tuple[object, ...] = ()
        self._kept: OrderedDict[object, bytes] = OrderedDict()

    def get(self, key: object, shown: Overview, render: Callable[[], bytes]) -> bytes:
        parts = (
            *(shown.queues, shown.store, shown.activity, shown.scans, shown.disk, shown.alarms),
            *(shown.moves, shown.clients),
        )
        of = tuple(_state(part) for part in parts)
        key = key, _state(shown.trash), _state(shown.topic)
        with self._lock:
            if of != self._of:
                self._of = of
                self._kept.clear()
            found = self._kept.get(key)
        if found is None:
            found = render()
            with self._lock:
                if of == self._of:
                    self._kept[key] = found
                    while len(self._kept) > _KEPT:
                        self._kept.popitem(last=False)
        return found


def _state(part: Reading[Any] | None) -> object:
    # A part is an object of its own for each reading; and a part that hangs has no other text from one second to the
    # next.
    return None if part is None else (id(part.value), part.read_ms, part.error, part.silent_since_ms)


def page_router(read: Callable[[Wanted], Overview]) -> APIRouter:
    """Make the routes of the page, which show what ``read`` returns; they change nothing."""
    router = APIRouter(include_in_schema=False)
    rendered = _Rendered()

    def answer(content: bytes, media_type: str = _HTML) -> Response:
        return Response(content, media_type=media_type, headers=_HEADERS)

    @router.get("/")
    def overview() -> Response:
        shown = read(OVERVIEW)
        return answer(rendered.get("/", shown, lambda: render_overview(shown).encode()))

    @router.get("/disk")
    def disk(tenant: str = "", namespace: str = "") -> Response:
        shown, place = read(OVERVIEW), DiskPlace("" if namespace else tenant, namespace)
        return answer(rendered.get(place, shown, lambda: render_disk(shown, place).encode()))

    @router.get("/scan")
    def scan(plan: str = "") -> Response:
        shown = read(OVERVIEW)
        return answer(rendered.get(f"scan {plan}", shown, lambda: render_scan(shown, plan).encode()))

    @router.get("/page/overview.json")
    def overview_data(part: str = "") -> Response:
        if part and part not in PARTS:
            raise NotFoundError(f"the overview has no part {part!r}: it has {', '.join(PARTS)}")
        shown = read(OVERVIEW)
        return answer(rendered.get(f"overview.json {part}", shown, lambda: overview_json(shown, part)), _JSON)

    @router.get("/page/disk.json")
    def disk_data() -> Response:
        shown = read(OVERVIEW)
        return answer(rendered.get("disk.json", shown, lambda: disk_json(shown)), _JSON)

    @router.get("/page/scan.json")
    def scan_data(plan: str = "") -> Response:
        shown = read(OVERVIEW)
        return answer(rendered.get(f"scan.json {plan}", shown, lambda: scan_json(shown, plan)), _JSON)

    @router.get("/topic")
    def topic(name: str = "") -> Response:
        name = name.strip()
        shown = read(Wanted(topic=name))
        return answer(rendered.get(("/topic", name), shown, lambda: render_topic(shown, name).encode()))

    @router.get("/page/topic.json")
    def topic_data(name: str = "") -> Response:
        shown = read(Wanted(topic=name.strip()))
        return answer(rendered.get(("topic.json", name), shown, lambda: topic_json(shown)), _JSON)

    @router.get("/moves")
    def moves() -> Response:
        shown = read(OVERVIEW)
        return answer(rendered.get("/moves", shown, lambda: render_moves(shown).encode()))

    @router.get("/page/moves.json")
    def moves_data() -> Response:
        shown = read(OVERVIEW)
        return answer(rendered.get("moves.json", shown, lambda: moves_json(shown)), _JSON)

    @router.get("/trash")
    def trash() -> Response:
        shown = read(Wanted(trash=True))
        return answer(rendered.get("/trash", shown, lambda: render_trash(shown).encode()))

    @router.get("/page/trash.json")
    def trash_data() -> Response:
        shown = read(Wanted(trash=True))
        return answer(rendered.get("trash.json", shown, lambda: trash_json(shown)), _JSON)

    @router.get("/page/page.css")
    def style() -> Response:
        return answer(page_file("page.css"), "text/css; charset=utf-8")

    @router.get("/page/page.js")
    def script() -> Response:
        return answer(page_file("page.js"), "text/javascript; charset=utf-8")

    @router.get("/runbook/{name:path}")
    def runbook(name: str) -> Response:
        return answer(_runbook(name))

    return router


def _runbook(name: str) -> bytes:
    pages = find_pages(find_home())
    path = pages.get(name)
    if path is None or path.suffix != ".md":
        raise NotFoundError(f"there is no page {name!r} of the documents: `bookwarden docs` lists all")
    lines = list(_sections(path.read_text(encoding="utf-8").splitlines()))
    title = next((text for anchor, text in lines if anchor), name)
    return render_runbook(title, lines).encode()


def _sections(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Yield headings with their anchors, as GitHub makes them, and the text between them."""
    text, fenced, found = list[str](), False, set[str]()
    for line in lines:
        fenced ^= line.lstrip().startswith("```")
        heading = None if fenced else re.fullmatch(r"#{1,6} (.+)", line)
        if heading is None:
            text.append(line)
            continue
        if any(text):
            yield "", "\n".join(text).strip("\n")
        text = []
        words = re.sub(r"[`*]", "", heading[1]).strip()
        anchor, number = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-"), 0
        while (name := f"{anchor}-{number}" if number else anchor) in found:
            number += 1
        found.add(name)
        yield name, words
    if any(text):
        yield "", "\n".join(text).strip("\n")
