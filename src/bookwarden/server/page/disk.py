"""The page of disk use as HTML and JSON: who uses the disks, bookies, growth."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from bookwarden.findings import size_text
from bookwarden.ledgers.bookie_report import NEARLY_FULL
from bookwarden.ledgers.disk_growth import Forecast
from bookwarden.ledgers.disk_use import BookieUse, Use
from bookwarden.ledgers.names import TopicName
from bookwarden.pipelines.disk.summary import DiskSummary
from bookwarden.server.page.charts import BarChart, Figure, Tile, TrendChart, shortened, stacked_bar, treemap, trend
from bookwarden.server.page.problems import age_text
from bookwarden.server.page.templates import Card, encode_json, moment, reading_fields, render
from bookwarden.server.page.topic import topic_link, topic_of
from bookwarden.server.page.values import Overview

_MAP_HEADER: Final = 20.0
_LETTER: Final = 6.6
_EDGE: Final = 12.0
_FEWEST_LETTERS: Final = 6
_TENANT_TILES: Final = 12
_ROWS: Final = 25
# Of a treemap: what its other members have together.
_OTHERS: Final = "others"
# The parts of a bookie's bar, in their order: names and classes.
_BOOKIE_PARTS: Final = (
    ("nodes name", "named"),
    ("trash", "trashed"),
    ("no node names", "unnamed"),
    ("not Pulsar's", "foreign"),
    ("unexplained", "unexplained"),
)


class MapTile(NamedTuple):
    """A tile of the treemap: x and width in percent of its drawing, y and height in pixels."""

    x: float  #: From the left, in percent.
    y: float  #: From the top, in pixels.
    width: float  #: In percent.
    height: float  #: In pixels.
    name: str  #: Of the tenant, namespace or topic, shortened.
    size: str  #: Its bytes, as text.
    tip: str  #: Its tooltip.
    link: str  #: "" where there is nothing to go into.
    unnamed: float  #: The part of it that no node names, in pixels of its height.
    trashed: float  #: The part that the trash keeps.
    label: str  #: The class of its name, by where it fits; "" where it does not.
    size_label: str  #: Likewise of its size.
    tiles: tuple[Any, ...] = ()  #: Those in it.


class Drawing(NamedTuple):
    """A treemap's size: it is as wide as the page, and of one height."""

    name: str  #: Its class.
    width: float  #: Nominal, in pixels; the tiles are laid out for it.
    height: float  #: In pixels.
    tiles: int  #: Most of them.
    least: float  #: The part of the nominal width that the narrowest page with this drawing has.
    usual: float  #: Likewise from where page.css shows the class "roomy".


_DRAWINGS: Final = (Drawing("broad", 1_200.0, 420.0, 24, 0.5, 0.78), Drawing("slim", 350.0, 520.0, 16, 0.93, 0.93))


class BookieRow(NamedTuple):
    """The bar of a bookie."""

    name: str  #: Its id.
    chart: BarChart  #: The parts of what is on its disks.
    used: str  #: The used part of its disks, as text.
    of: str  #: Their size; "" where it did not tell.
    full: bool  #: Whether more is used than it should be.
    error: str  #: Why it did not tell; "" if it did.


class UseRow(NamedTuple):
    """A row of the table of uses."""

    name: str  #: Of the tenant, namespace or topic.
    link: str  #: To what is in it; "" without.
    size: str  #: Bytes on disks.
    share: str  #: Their part of the place that is shown.
    ledgers: str  #: Number of ledgers.
    trashed: str  #: Bytes in the trash.
    unnamed: str  #: Bytes that no node names.
    offloaded: str  #: Bytes in stores of offloaded copies.


class DiskPlace(NamedTuple):
    """The part of the disks that is shown: all of it, a tenant or a namespace."""

    tenant: str = ""
    namespace: str = ""


def render_disk(shown: Overview, place: DiskPlace) -> str:
    """Render the page `/disk`, of all or of one tenant or namespace."""
    summary = shown.disk.value.summary if shown.disk.value else None
    uses, whole, left_out = _uses(summary, place) if summary else ([], Use(""), 0)
    return render(
        "disk",
        shown,
        location=shown.disk.value.location if shown.disk.value else "",
        summary=summary,
        place=place,
        crumbs=_crumbs(place),
        cards=_disk_cards(summary, whole, place, shown.now_ms) if summary else [],
        maps=[(one, _map(one, summary, place, uses, whole)) for one in _DRAWINGS] if summary else [],
        header=_MAP_HEADER,
        rows=[_row(use, whole, place) for use in uses[:_ROWS]],
        rows_left_out=max(0, len(uses) - _ROWS) + left_out,
        of="topic" if place.namespace else "namespace" if place.tenant else "tenant",
        bookies=[_bookie(one) for one in summary.bookies] if summary else [],
        full=f"{100 * NEARLY_FULL:.0f} %",
        full_x=100 * NEARLY_FULL,
        growth=_growth(summary) if summary else None,
    )


def disk_json(shown: Overview) -> bytes:
    """Return what the page `/disk` shows."""
    fields = reading_fields(shown.disk)
    value = shown.disk.value
    fields["location"] = "" if value is None else value.location
    fields["summary"] = None if value is None or value.summary is None else value.summary.fields()
    return encode_json(fields)


def _uses(summary: DiskSummary, place: DiskPlace) -> tuple[list[Use], Use, int]:
    """Return the uses of a place, what they are of, and how many further ones there are."""
    if place.namespace:
        of = f"{place.namespace}/"
        topics = [use for use in summary.topics if use.name.startswith(of)]
        whole = next((use for use in summary.namespaces if use.name == place.namespace), Use(place.namespace))
        return topics, whole, summary.topics_left_out
    if place.tenant:
        of = f"{place.tenant}/"
        found = [use for use in summary.namespaces if use.name.startswith(of) or use.name == place.tenant]
        whole = next((use for use in summary.tenants if use.name == place.tenant), Use(place.tenant))
        return found, whole, summary.namespaces_left_out
    return list(summary.tenants), summary.total, summary.tenants_left_out


def _crumbs(place: DiskPlace) -> list[tuple[str, str]]:
    """List the texts and links from all of the disks to this place."""
    tenant = place.tenant or place.namespace.partition("/")[0]
    crumbs = [("All", "/disk")]
    if tenant:
        crumbs.append((tenant, _link(tenant=tenant)))
    if place.namespace:
        crumbs.append((place.namespace.partition("/")[2] or place.namespace, _link(namespace=place.namespace)))
    return crumbs


def _link(**place: str) -> str:
    return f"/disk?{urlencode(place)}"


def _disk_cards(summary: DiskSummary, whole: Use, place: DiskPlace, now_ms: int) -> list[Card]:
    counted, growth = "disk#what-is-counted", "disk#growth-and-when-the-disks-are-full"
    figures = [
        ("On disks", size_text(whole.disk_bytes), f"{whole.ledgers:,} ledgers, every copy counted", counted),
        ("Written", size_text(whole.logical_bytes), "each entry once", counted),
        ("No node names", size_text(whole.unnamed_bytes), "new, or orphans", "orphans#where-orphans-come-from"),
        ("In the trash", size_text(whole.trashed_bytes), "kept for a time", "trash#when-nothing-more-is-kept"),
        ("Offloaded", size_text(whole.offloaded_bytes), "apart from the disks", counted),
    ]
    if place == DiskPlace():
        figures.append(("Disks full", *_full_text(summary.forecast), growth))
    figures.append(("Measured", f"{age_text(now_ms - summary.measured_ms)} ago", moment(summary.measured_ms), counted))
    return [Card(*figure, "/page/disk.json") for figure in figures]


def _full_text(forecast: Forecast | None) -> tuple[str, str]:
    if forecast is None:
        return "-", "too few days to tell"
    if forecast.full is None:
        return "not in sight", "they do not fill"
    return forecast.full, _per_day(forecast.bytes_per_day)


def _per_day(size: int) -> str:
    return f"{'-' if size < 0 else ''}{size_text(abs(size))} a day"


def _map(drawing: Drawing, summary: DiskSummary, place: DiskPlace, uses: Sequence[Use], whole: Use) -> list[MapTile]:
    """Lay out the treemap of a place."""
    width, height = drawing.width, drawing.height
    if place != DiskPlace():
        return _tiles(drawing, _with_others(uses, whole, drawing.tiles), width, height, 0.0, place)
    found = []
    shown = _with_others(uses, whole, _TENANT_TILES)
    for use, tile in zip(shown, treemap([one.disk_bytes for one in shown], width, height), strict=True):
        link = "" if use.name == _OTHERS else _link(tenant=use.name)
        inner_height = tile.height - _MAP_HEADER
        inner: tuple[MapTile, ...] = ()
        if inner_height > 14 and link:
            tenant = DiskPlace(tenant=use.name)
            own, _, _ = _uses(summary, tenant)
            most = round(drawing.tiles * use.disk_bytes / max(1, whole.disk_bytes)) + 2
            inner = tuple(_tiles(drawing, _with_others(own, use, most), tile.width, inner_height, _MAP_HEADER, tenant))
        found.append(_tile(drawing, use, tile, 0.0, width, use.name, link, heads=bool(inner))._replace(tiles=inner))
    return found


def _tiles(
    drawing: Drawing, uses: Sequence[Use], width: float, height: float, top: float, place: DiskPlace
) -> list[MapTile]:
    found = []
    for use, tile in zip(uses, treemap([use.disk_bytes for use in uses], width, height), strict=True):
        leads = not place.namespace and use.name != _OTHERS and "/" in use.name
        link = _link(namespace=use.name) if leads else ""
        if place.namespace:
            link = _topic_link(use.name)
        found.append(_tile(drawing, use, tile, top, width, _name_in(use.name, place), link))
    return [one for one in found if one.width > 0 and one.height > 0]


def _tile(
    drawing: Drawing, use: Use, tile: Tile, top: float, width: float, name: str, link: str, *, heads: bool = False
) -> MapTile:
    share = tile.height / use.disk_bytes if use.disk_bytes else 0.0
    # Nothing measures texts on the server: letters are taken to be as wide as most are, and what is wider is cut off.
    most = int((tile.width * drawing.usual - _EDGE) / _LETTER)
    name = shortened(name, most) if most >= _FEWEST_LETTERS else name
    size = size_text(use.disk_bytes)
    label = _label(drawing, name, tile)
    return MapTile(
        round(100 * tile.x / width, 3),
        round(tile.y + top, 1),
        round(100 * tile.width / width, 3),
        round(tile.height, 1),
        name,
        size,
        f"{use.name}: {size}, {use.ledgers:,} ledgers; "
        f"no node names {size_text(use.unnamed_bytes)}, trash {size_text(use.trashed_bytes)}",
        link,
        round(share * use.unnamed_bytes, 1),
        round(share * use.trashed_bytes, 1),
        label,
        # No size without its name.
        _label(drawing, f"{name} {size}" if heads else max(name, size, key=len), tile) if label else "",
    )


def _label(drawing: Drawing, text: str, tile: Tile) -> str:
    """Return the class of a text by where it fits into a tile; "" where it does not."""
    need = _EDGE + _LETTER * len(text)
    if tile.height < 18 or tile.width * drawing.usual < need:
        return ""
    return "any" if tile.width * drawing.least >= need else "roomy"


def _with_others(uses: Sequence[Use], whole: Use, most: int) -> list[Use]:
    """Keep the largest, and take together what the whole has besides."""
    kept = [use for use in uses[:most] if use.disk_bytes > 0]

    def rest(name: str) -> int:
        left: int = getattr(whole, name) - sum(getattr(use, name) for use in kept)
        return max(0, left)

    others = Use(
        _OTHERS,
        rest("ledgers"),
        disk_bytes=rest("disk_bytes"),
        trashed_bytes=rest("trashed_bytes"),
        unnamed_bytes=rest("unnamed_bytes"),
    )
    return [*kept, others] if others.disk_bytes > 0 else kept


def _name_in(name: str, place: DiskPlace) -> str:
    """Return the name within its place."""
    if name == _OTHERS:
        return name
    if place.namespace:
        return _topic(name).removeprefix(f"persistent://{place.namespace}/") or "(none)"
    return name.removeprefix(f"{place.tenant}/")


def _topic(name: str) -> str:
    """Return the topic of a managed ledger; a name that is none as it is."""
    if not name:
        return "not Pulsar's"
    return str(TopicName.of_managed_ledger(name)) if name.count("/") >= 3 else name


def _topic_link(name: str) -> str:
    topic = topic_of(name)
    return topic_link(topic) if topic else ""


def _row(use: Use, whole: Use, place: DiskPlace) -> UseRow:
    if place.namespace:
        name, link = _topic(use.name), _topic_link(use.name)
    elif place.tenant:
        name, link = use.name, _link(namespace=use.name) if "/" in use.name else ""
    else:
        name, link = use.name, _link(tenant=use.name)
    share = f"{100 * use.disk_bytes / whole.disk_bytes:.1f} %" if whole.disk_bytes else "-"
    return UseRow(
        name,
        link,
        size_text(use.disk_bytes),
        share,
        f"{use.ledgers:,}",
        size_text(use.trashed_bytes),
        size_text(use.unnamed_bytes),
        size_text(use.offloaded_bytes),
    )


def _bookie(one: BookieUse) -> BookieRow:
    sizes = (
        *(one.named_bytes, one.trashed_bytes, one.unnamed_bytes, one.foreign_bytes),
        max(0, one.unexplained_bytes or 0),
    )
    figures = [
        Figure(css, size, size_text(size), f"{one.name}, {name}: {size_text(size)}")
        for (name, css), size in zip(_BOOKIE_PARTS, sizes, strict=True)
    ]
    share = one.used_share
    whole = one.total or sum(sizes)
    return BookieRow(
        one.name,
        stacked_bar(figures, whole),
        "?" if share is None else f"{100 * share:.0f} %",
        "" if one.total is None else size_text(one.total),
        share is not None and share >= NEARLY_FULL,
        one.error,
    )


class GrowthView(NamedTuple):
    """The chart of growth with its texts."""

    chart: TrendChart  #: Its lines.
    begins: str  #: The first day.
    today: str  #: The last day.
    ends: str  #: "" without a forecast.
    now: str  #: Used bytes on the last day.
    limit: str  #: Bytes of all disks.
    text: str  #: The growth in words.


def _growth(summary: DiskSummary) -> GrowthView | None:
    """Draw what the disks had on each day that all bookies told, and what is expected; None without two days."""
    days = [one for one in summary.days if one.total is not None and one.free is not None and _ordinal(one.day)]
    if len(days) < 2:
        return None
    sizes = [(float(_ordinal(one.day)), float((one.total or 0) - (one.free or 0))) for one in days]
    limit, forecast = float(days[-1].total or 0), summary.forecast
    span = sizes[-1][0] - sizes[0][0]
    until, ends = sizes[-1][0], ""
    if forecast is not None:
        full = _ordinal(forecast.full or "") or until + span
        # Beyond four times of what was seen, what was seen would be too small to be seen.
        until = min(max(full, until + 1), until + max(4 * span, 7.0))
        ends = date.fromordinal(int(until)).isoformat()
    chart = trend(
        sizes,
        limit,
        None if forecast is None else float(forecast.bytes_per_day),
        0.0 if forecast is None else float(forecast.error_per_day),
        until,
    )
    return GrowthView(
        chart,
        days[0].day,
        days[-1].day,
        ends,
        size_text(int(sizes[-1][1])),
        size_text(int(limit)),
        _growth_text(summary),
    )


def _growth_text(summary: DiskSummary) -> str:
    growth, forecast = summary.growth, summary.forecast
    texts = []
    if growth is not None:
        more = "more" if growth.disk_bytes >= 0 else "less"
        texts.append(f"{size_text(abs(growth.disk_bytes))} {more} than on {growth.since}")
    if forecast is None:
        texts.append("a forecast needs three days, the first of them a week ago")
    elif forecast.full is None:
        texts.append("the disks do not fill")
    else:
        latest = f"{forecast.latest} at the latest" if forecast.latest else "or never"
        texts.append(
            f"{_per_day(forecast.bytes_per_day)}, give or take {size_text(forecast.error_per_day)}: full on "
            f"{forecast.full} ({forecast.earliest} at the earliest, {latest})"
        )
    return "; ".join(texts)


def _ordinal(day: str) -> int:
    """Return the number of a day; 0 for a text that is none."""
    try:
        return date.fromisoformat(day).toordinal()
    except ValueError:
        return 0
