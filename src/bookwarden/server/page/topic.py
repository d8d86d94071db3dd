"""The page of a topic as HTML and JSON: its ledgers along time by their places, its cursors, and what holds them."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Final, NamedTuple
from urllib.parse import urlencode

from bookwarden.errors import FormatError
from bookwarden.findings import size_text
from bookwarden.ledgers.managed_ledger import Position
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.pins import CursorState, held_text
from bookwarden.server.page.problems import LOST_PLACES, age_text
from bookwarden.server.page.templates import Card, encode_json, moment, plain, reading_fields, render, state_text
from bookwarden.server.page.values import LedgerPlace, Overview, Topic, TopicLedger, TopicPart

#: Of the drawings.
WIDTH: Final = 1000.0
# Ledgers that are narrower are drawn together.
_NARROW: Final = WIDTH / 240
_CURSORS: Final = 40
_ROWS: Final = 25
_OFFLOAD: Final = "offload#when-bookkeepers-copy-of-an-offloaded-ledger-is-deleted"
_HOLDS: Final = "disk#what-holds-a-topics-oldest-ledger"
#: Their classes in page.css.
CLASSES: Final[Mapping[LedgerPlace, str]] = {
    LedgerPlace.BOOKIES: "named",
    LedgerPlace.FORMER: "former",
    LedgerPlace.BOTH: "both",
    LedgerPlace.OFFLOADED: "offloaded",
    LedgerPlace.TRIMMED: "foreign",
    LedgerPlace.UNSEEN: "unexplained",
    LedgerPlace.UNREADABLE: "foreign",
    LedgerPlace.ORPHAN: "unnamed",
    LedgerPlace.MISSING: "lost",
    LedgerPlace.GAP: "gap",
}
# Of ledgers that are drawn together the last of these counts.
_BY_WEIGHT: Final = list(LedgerPlace)


class Segment(NamedTuple):
    """Ledgers that are drawn as one; lengths in units of the drawing."""

    x: float
    width: float
    css: str
    tip: str


class CursorRow(NamedTuple):
    """A cursor on the strip."""

    name: str
    x: float  #: Of its position, in units of the drawing.
    position: str  #: As text.
    detail: str  #: What it has not acknowledged, and who reads it.
    holds: bool  #: Whether it holds the oldest ledger.


class LedgerRow(NamedTuple):
    """A ledger that is not as it should be."""

    ledger_id: int
    place: str
    size: str
    command: str


class PinView(NamedTuple):
    """Something that holds ledgers."""

    title: str  #: Its kind and name.
    holds: str  #: The ledgers that it holds.
    what: str  #: Why.
    todo: str  #: What to do about it.
    command: str  #: That does it; "" where there is none.
    is_first: bool  #: Whether it holds the oldest ledger.


class PartView(NamedTuple):
    """A topic without partitions, or a partition, as it is drawn."""

    name: str  #: Its full name.
    facts: str  #: What it has, in one line.
    segments: tuple[Segment, ...]  #: Its ledgers, in the order in which they are drawn.
    key: tuple[tuple[str, str], ...]  #: Classes and texts of the places that it has.
    cursors: tuple[CursorRow, ...]  #: Those first that hold the oldest ledger.
    cursors_left_out: int  #: Further ones.
    begins: str  #: The time at the left of the drawing.
    middle: str  #: In its middle.
    ends: str  #: At its right.
    pins: tuple[PinView, ...]  #: Those first that hold the oldest ledger.
    outlook: str  #: What becomes of the oldest ledger where nothing holds it.
    odd: tuple[LedgerRow, ...]  #: The first ledgers that are not as they should be.
    odd_left_out: int  #: Further ones.
    unseen: tuple[str, ...]  #: What could not be seen of it.


def topic_link(name: str) -> str:
    """Return the path of the page of a topic."""
    return f"/topic?{urlencode({'name': name})}"


def topic_of(managed_ledger: str) -> str:
    """Return the full name of its topic; "" where it is no managed ledger's name."""
    try:
        return str(TopicName.of_managed_ledger(managed_ledger))
    except FormatError:
        return ""


def _source(name: str) -> str:
    return f"/page/topic.json?{urlencode({'name': name})}"


def render_topic(shown: Overview, name: str) -> str:
    """Render the page `/topic` of the topic that a client named; without a name the form, and the largest topics."""
    topic = shown.topic.value if shown.topic is not None else None
    return render(
        "topic",
        shown,
        name=topic.name if topic is not None and topic.name else name,
        topic=topic,
        source=_source(name),
        cards=_cards(shown, topic, name) if topic is not None and topic.parts else [],
        parts=[_part(one, shown.now_ms) for one in topic.parts] if topic is not None else [],
        others=[(one, topic_link(one)) for one in topic.others] if topic is not None else [],
        plan=f"{topic.plan}, of {moment(topic.plan_ms)}" if topic is not None and topic.plan else "",
        largest=[] if name else _largest(shown),
        width=WIDTH,
    )


def topic_json(shown: Overview) -> bytes:
    """Return what the page `/topic` shows."""
    if shown.topic is None:
        return encode_json({"value": None})
    value = shown.topic.value
    return encode_json({**reading_fields(shown.topic), "value": None if value is None else plain(value)})


def _largest(shown: Overview) -> list[tuple[str, str, str]]:
    """List the largest topics, by the last account of disk use: name, link and bytes."""
    summary = shown.disk.value.summary if shown.disk.value is not None else None
    named = [(topic_of(use.name), use) for use in (summary.topics[:_ROWS] if summary is not None else ())]
    return [(name, topic_link(name), size_text(use.disk_bytes)) for name, use in named if name]


def _cards(shown: Overview, topic: Topic, name: str) -> list[Card]:
    source = _source(name)
    pins = [part.pins for part in topic.parts]
    oldest = min((one.closed_ms for one in pins if one.closed_ms), default=0)
    holding = [pin for one in pins for pin in one.holding]
    offloaded = [one for part in topic.parts for one in part.ledgers if one.place is LedgerPlace.OFFLOADED]
    lost = [one for part in topic.parts for one in part.ledgers if one.place in LOST_PLACES]
    orphans = [one for part in topic.parts for one in part.ledgers if one.place is LedgerPlace.ORPHAN]
    held = "nothing", ""
    if holding:
        more = f" and {len(holding) - 1:,} more" if len(holding) > 1 else ""
        held = holding[0].kind.value, f"{holding[0].name}{more}"
    cards = [
        Card(
            "In BookKeeper",
            size_text(sum(one.bytes for one in pins)),
            f"{sum(len(one.ledgers) for one in pins):,} ledgers, each entry once",
            _HOLDS,
            source,
        ),
        Card(
            "Oldest ledger",
            age_text(shown.now_ms - oldest) if oldest else "-",
            f"closed {moment(oldest)}" if oldest else "none is closed",
            _HOLDS,
            source,
        ),
        Card("Oldest held by", *held, _HOLDS, source),
        Card(
            "Offloaded",
            size_text(sum(one.size for one in offloaded)),
            "in no bookie",
            _OFFLOAD,
            source,
        ),
        Card(
            "Missing or lost",
            f"{len(lost):,}",
            "ledgers",
            "orphans#missing-ledgers",
            source,
            bool(lost),
        ),
        Card("Orphans", f"{len(orphans):,}", "by the newest plan", "orphans#where-orphans-come-from", source),
    ]
    if topic.parts and state_text(shown.topic or shown.store):
        return [one._replace(detail=f"{one.detail}; older") for one in cards]
    return cards


def _part(part: TopicPart, now_ms: int) -> PartView:
    spans = _spans(part.ledgers, now_ms)
    begin_ms = min((begin for begin, _ in spans.values() if begin), default=now_ms)
    scale = WIDTH / max(1, now_ms - begin_ms)
    holding = {pin.name for pin in part.pins.holding}

    def x_of(at_ms: float) -> float:
        return round(min(WIDTH, max(0.0, (at_ms - begin_ms) * scale)), 2)

    segments = _segments(part.ledgers, {key: (x_of(begin), x_of(end)) for key, (begin, end) in spans.items()})
    durable = sorted(
        (one for one in part.cursors if one.durable),
        key=lambda one: (one.name not in holding, one.position or Position(-1, -1), one.name),
    )
    odd = [one for one in part.ledgers if one.place in LOST_PLACES | {LedgerPlace.UNREADABLE}]
    pins = part.pins
    loaded = {True: "loaded by a broker", False: "loaded by no broker", None: "not known whether it is loaded"}
    return PartView(
        pins.topic,
        f"{len(part.ledgers):,} ledgers, {len(durable):,} cursors, {loaded[pins.loaded]}",
        tuple(segments),
        tuple(
            {
                CLASSES[place]: place.value for place in LedgerPlace if any(one.place is place for one in part.ledgers)
            }.items()
        ),
        tuple(
            _cursor(one, x_of(_at_ms(one, part.ledgers, spans, now_ms)), one.name in holding)
            for one in durable[:_CURSORS]
        ),
        max(0, len(durable) - _CURSORS),
        _time(begin_ms),
        _time((begin_ms + now_ms) // 2),
        "now",
        tuple(
            PinView(pin.title, held_text(pins, pin), pin.what, pin.todo, pin.command, pin in pins.holding)
            for pin in pins.pins
        ),
        pins.outlook,
        tuple(
            LedgerRow(one.ledger_id, one.place.value, size_text(one.size), f"bookwarden ledger explain {one.ledger_id}")
            for one in odd[:_ROWS]
        ),
        max(0, len(odd) - _ROWS),
        pins.unseen,
    )


def _spans(ledgers: Sequence[TopicLedger], now_ms: int) -> dict[int, tuple[int, int]]:
    """Return by ledger id from when to when a ledger was written, as far as it and its neighbours tell."""
    ends, next_ms = dict[int, int](), now_ms
    for one in reversed(ledgers):
        ends[one.ledger_id] = one.closed_ms or next_ms
        next_ms = one.begun_ms or next_ms
    found, before = dict[int, tuple[int, int]](), 0
    for one in ledgers:
        end = ends[one.ledger_id]
        found[one.ledger_id] = min(one.begun_ms or before or end, end), end
        before = end
    return found


def _segments(ledgers: Sequence[TopicLedger], places: Mapping[int, tuple[float, float]]) -> list[Segment]:
    """Draw each ledger, or narrow neighbours together; what is lost is drawn last, and never too narrow to be seen."""
    groups: list[list[TopicLedger]] = []
    begins = -WIDTH
    for one in ledgers:
        x, end = places[one.ledger_id]
        joins = groups and end - begins <= _NARROW
        if not joins:
            groups.append([])
            begins = x
        groups[-1].append(one)
    segments = []
    for group in groups:
        x = min(places[one.ledger_id][0] for one in group)
        width = max(places[one.ledger_id][1] for one in group) - x
        place = max((one.place for one in group), key=_BY_WEIGHT.index)
        least = _NARROW if place in LOST_PLACES or place is LedgerPlace.ORPHAN else _NARROW / 2
        width = max(width, least)
        segments.append(Segment(round(min(x, WIDTH - width), 2), round(width, 2), CLASSES[place], _tip(group)))
    weights = {css: number for number, css in enumerate(CLASSES[place] for place in _BY_WEIGHT)}
    return sorted(segments, key=lambda one: weights[one.css])


def _tip(group: Sequence[TopicLedger]) -> str:
    size = size_text(sum(one.size for one in group))
    first = group[0]
    if len(group) > 1:
        counts = Counter(one.place.value for one in group)
        places = "; ".join(f"{number:,} {place}" for place, number in counts.items())
        return f"ledgers {first.ledger_id} to {group[-1].ledger_id}, {size}: {places}"
    entries = f"{first.entries:,} entries, {size}" if first.entries else "length not known"
    clusters = f" ({', '.join(first.clusters)})" if first.clusters else ""
    closed = f", closed {moment(first.closed_ms)}" if first.closed_ms else ""
    return f"ledger {first.ledger_id}: {first.place.value}{clusters}, {entries}{closed}"


def _at_ms(
    cursor: CursorState, ledgers: Sequence[TopicLedger], spans: Mapping[int, tuple[int, int]], now_ms: int
) -> float:
    """Return when the entry at a cursor's position was written, as if entries came at an even pace."""
    if cursor.position is None:
        return 0.0
    at = bisect_left(ledgers, cursor.position.ledger_id, key=lambda one: one.ledger_id)
    if at == len(ledgers):
        return now_ms
    one = ledgers[at]
    begin, end = spans[one.ledger_id]
    if one.ledger_id != cursor.position.ledger_id:
        return begin
    share = (cursor.position.entry_id + 1) / one.entries if one.entries else 0.0
    return begin + (end - begin) * min(1.0, share)


def _cursor(cursor: CursorState, x: float, holds: bool) -> CursorRow:
    texts = []
    if cursor.behind is not None:
        texts.append("nothing behind it" if not cursor.behind else f"{cursor.behind:,} behind it")
    if cursor.consumers is not None:
        texts.append("no consumer" if not cursor.consumers else f"{cursor.consumers:,} consumers")
    if cursor.inexact:
        texts.append("may be further")
    position = "not known" if cursor.position is None else str(cursor.position)
    return CursorRow(cursor.name, x, position, ", ".join(texts), holds)


def _time(milliseconds: int) -> str:
    try:
        return datetime.fromtimestamp(milliseconds / 1000, timezone.utc).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, ValueError, OSError):
        return ""
