"""The geometry of the report's charts: figures in, positions in a drawing out. The template draws them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_WIDTH: Final = 640
_ROW: Final = 26
_LABEL: Final = 250
_VALUE: Final = 96
_COLUMNS_HEIGHT: Final = 180
_LINE_WIDTH: Final = 1240
_LINE_HEIGHT: Final = 210
_LINE_LEFT: Final = 84
_LINE_SIDE: Final = 24
_LEAST: Final = 1.5
_MARGIN: Final = 28
_LONGEST_LABEL: Final = 32


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
    """Bars in a drawing of this width and height; ``label_x`` is where the labels of horizontal bars end."""

    width: int
    height: int
    bars: tuple[Bar, ...]
    label_x: float = 0.0


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a line, with the texts of its time and value."""

    x: float
    y: float
    label: str
    value: str
    tip: str


@dataclass(frozen=True, slots=True)
class LineChart:
    """A line through points."""

    width: int  #: Of the drawing.
    height: int  #: Of the drawing.
    points: tuple[Point, ...]  #: By growing time.
    ticks: tuple[tuple[float, str], ...]  #: At the left, as (y, text).
    left: float  #: Where the plot begins.
    base: float  #: The y of size 0.

    @property
    def line(self) -> str:
        """The points of the line, as in the attribute of an SVG polyline."""
        return " ".join(f"{point.x:.1f},{point.y:.1f}" for point in self.points)


@dataclass(frozen=True, slots=True)
class Figure:
    """A size to draw, with its texts: label, value and tooltip."""

    label: str
    size: float
    value: str
    tip: str


def lying_bars(figures: Sequence[Figure]) -> BarChart:
    """Draw horizontal bars, with the label before each and the value after it; the longest fills the width."""
    room = _WIDTH - _LABEL - _VALUE
    largest = max((figure.size for figure in figures), default=0)
    bars = tuple(
        Bar(
            x=_LABEL,
            y=number * _ROW + 4,
            width=_length(figure.size, largest, room),
            height=_ROW - 8,
            label=_shortened(figure.label),
            value=figure.value,
            tip=figure.tip,
        )
        for number, figure in enumerate(figures)
    )
    return BarChart(_WIDTH, max(1, len(figures)) * _ROW + 2, bars, _LABEL - 10)


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


def line(figures: Sequence[tuple[float, Figure]], ticks: Sequence[tuple[float, str]]) -> LineChart:
    """Draw figures over time, each with its time in any unit; ``ticks`` are the sizes to mark, ascending.

    The scale begins at 0, so that a small change looks small.
    """
    largest = max([figure.size for _, figure in figures] + [size for size, _ in ticks] + [1.0])
    times = [time for time, _ in figures]
    begin, span = min(times, default=0.0), (max(times, default=0.0) - min(times, default=0.0)) or 1.0
    base, room = _LINE_HEIGHT - _MARGIN, _LINE_HEIGHT - 2 * _MARGIN
    across = _LINE_WIDTH - _LINE_LEFT - 2 * _LINE_SIDE

    def height(size: float) -> float:
        return base - room * size / largest

    points = tuple(
        Point(
            _LINE_LEFT + _LINE_SIDE + across * (time - begin) / span,
            height(figure.size),
            figure.label,
            figure.value,
            figure.tip,
        )
        for time, figure in figures
    )
    marks = tuple((height(size), text) for size, text in ticks)
    return LineChart(_LINE_WIDTH, _LINE_HEIGHT, points, marks, _LINE_LEFT, base)


def _length(size: float, largest: float, room: float) -> float:
    """Return the length of a bar, long enough to be seen unless the size is 0."""
    return max(_LEAST, room * size / largest) if size > 0 and largest > 0 else 0.0


def _shortened(label: str) -> str:
    """Cut a long label in its middle: names differ at their ends."""
    if len(label) <= _LONGEST_LABEL:
        return label
    half = (_LONGEST_LABEL - 1) // 2
    return f"{label[:half]}…{label[-half:]}"
