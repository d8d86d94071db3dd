"""The geometry of the charts: figures in, positions in a drawing out. The template draws them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bookwarden.findings import size_text

_WIDTH: Final = 640
_COLUMNS_HEIGHT: Final = 180
_LEAST: Final = 1.5
_MARGIN: Final = 28


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a chart; lengths in units of the drawing."""

    x: float  #: Of its upper left corner.
    y: float  #: Of its upper left corner, from the top.
    width: float  #: To the right of (x, y).
    height: float  #: Downwards from (x, y).
    label: str  #: Its heading, such as a namespace.
    value: str  #: Its size, as text.
    tip: str  #: Its tooltip.


@dataclass(frozen=True, slots=True)
class BarChart:
    """Bars in a drawing of this width and height."""

    width: int
    height: int
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """A size to draw, with its texts: label, value and tooltip."""

    label: str
    size: float
    value: str
    tip: str


def standing_bars(figures: Sequence[Figure]) -> BarChart:
    """Draw vertical bars, as of a histogram, with the label below each and the value on top."""
    largest = max((figure.size for figure in figures), default=0)
    step = _WIDTH / max(1, len(figures))
    room = _COLUMNS_HEIGHT - 2 * _MARGIN
    bars = []
    for number, figure in enumerate(figures):
        height = _length(figure.size, largest, room)
        x, y = number * step + step * 0.12, _COLUMNS_HEIGHT - _MARGIN - height
        bars.append(Bar(x, y, step * 0.76, height, figure.label, figure.value, figure.tip))
    return BarChart(_WIDTH, _COLUMNS_HEIGHT, tuple(bars))


@dataclass(frozen=True, slots=True)
class Tile:
    """A rectangle of a treemap, in units of its drawing."""

    x: float  #: Of its upper left corner.
    y: float  #: Of its upper left corner, from the top.
    width: float  #: To the right of (x, y).
    height: float  #: Downwards from (x, y).


def treemap(sizes: Sequence[float], width: float, height: float) -> list[Tile]:
    """Divide a drawing among sizes, the largest first, in tiles as square as may be; a size of 0 has no area.

    The rows are those of the squarified treemap of Bruls, Huizing and van Wijk.
    """
    whole = sum(sizes)
    areas = [size * width * height / whole if whole > 0 else 0.0 for size in sizes]
    tiles: list[Tile] = []
    x = y = 0.0
    while len(tiles) < len(areas):
        rest = areas[len(tiles) :]
        side = max(1e-9, min(width - x, height - y))
        count = 1
        while count < len(rest) and _worst(rest[: count + 1], side) <= _worst(rest[:count], side):
            count += 1
        row = rest[:count]
        # Where next to nothing is left in one direction, rounding must not lead out of the drawing in the other.
        thickness = min(sum(row) / side, max(0.0, width - x, height - y))
        along = 0.0
        stands = width - x >= height - y
        for area in row:
            length = area / thickness if thickness > 0 else 0.0
            tiles.append(Tile(x, y + along, thickness, length) if stands else Tile(x + along, y, length, thickness))
            along += length
        x, y = (x + thickness, y) if stands else (x, y + thickness)
    return tiles


def _worst(areas: Sequence[float], side: float) -> float:
    """Return the largest ratio of sides in a row of tiles along a side of this length."""
    total, largest, least = sum(areas), max(areas), min(areas)
    if least <= 0:
        return float("inf")
    return max(side * side * largest / total**2, total**2 / (side * side * least))


def stacked_bar(figures: Sequence[Figure], whole: float) -> BarChart:
    """Draw one bar whose parts lie one after the other; its width is 100 for ``whole``."""
    bars = list[Bar]()
    x = 0.0
    for figure in figures:
        width = min(100 - x, 100 * figure.size / whole) if whole > 0 else 0.0
        bars.append(Bar(x, 0.0, width, 10.0, figure.label, figure.value, figure.tip))
        x += width
    return BarChart(100, 10, tuple(bars))


def strips(counts: Sequence[tuple[str, int, int]]) -> list[Bar]:
    """Draw a bar of its own for each name with its ledgers and their bytes; the longest has a width of 100."""
    most = max((size for _, _, size in counts), default=0)
    return [
        Bar(0.0, 0.0, _length(size, most, 100), 10.0, name, f"{size_text(size)} in {ledgers:,}", "")
        for name, ledgers, size in counts
    ]


@dataclass(frozen=True, slots=True)
class TrendChart:
    """Sizes over time, what they are expected to be, and the size that they must not reach."""

    width: int  #: Of the drawing.
    height: int  #: Of the drawing.
    line: str  #: Of what was, as in the attribute of an SVG polyline.
    forecast: str  #: Of what is expected; "" without a forecast.
    band: str  #: The corners of the area within its error; "" without one.
    limit: float  #: The y of the size that they must not reach.
    today: float  #: The x of the last size.


def trend(
    sizes: Sequence[tuple[float, float]], limit: float, slope: float | None, error: float, until: float
) -> TrendChart:
    """Draw sizes by their times; ``slope`` goes on to the time ``until``, None without a forecast."""
    width, height = 1_000, 200
    begin, last = sizes[0][0], sizes[-1]
    span = (max(until, last[0]) - begin) or 1.0
    top = max([limit, *(size for _, size in sizes)]) * 1.05 or 1.0

    def at(time: float, size: float) -> str:
        return f"{width * (time - begin) / span:.1f},{height - height * min(max(size, 0.0), top) / top:.1f}"

    expected = band = ""
    if slope is not None and until > last[0]:
        days = until - last[0]
        expected = f"{at(*last)} {at(until, last[1] + slope * days)}"
        edges = [at(until, last[1] + (slope + one) * days) for one in (error, -error)]
        band = f"{at(*last)} {' '.join(edges)}"
    return TrendChart(
        width,
        height,
        " ".join(at(*one) for one in sizes),
        expected,
        band,
        height - height * limit / top,
        width * (last[0] - begin) / span,
    )


def _length(size: float, largest: float, room: float) -> float:
    """Return the length of a bar, long enough to be seen unless the size is 0."""
    return max(_LEAST, room * size / largest) if size > 0 and largest > 0 else 0.0


def shortened(label: str, most: int) -> str:
    """Cut a long label in its middle, to this number of letters at most: names differ at their ends."""
    if len(label) <= most:
        return label
    half = (most - 1) // 2
    return f"{label[:half]}…{label[-half:]}"
