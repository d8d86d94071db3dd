"""What a benchmark found: printed as a table, and appended as JSON lines."""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

OUTPUT = Path(__file__).parent / "out" / "results.jsonl"

_console = Console(stderr=True, highlight=False)
_started = time.monotonic()


@dataclass(frozen=True, slots=True)
class Result:
    """One figure beside its peer's; `ratio` is ours / peer, and None where there is no peer.

    ``n`` is how much work one round was. ``target`` and ``note`` are for people and stay out of the file.
    """

    name: str
    unit: str
    ours: float
    peer: float | None
    n: int
    target: str = ""
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Ours / peer."""
        return self.ours / self.peer if self.peer else None


def compared(name: str, unit: str, ours: Sequence[float], peer: Sequence[float], n: int, target: str = "") -> Result:
    """Make the result of several rounds: medians, with the range of each side in the note."""
    note = f"{len(ours)} rounds; ours {ranged(ours)}, peer {ranged(peer)}"
    return Result(name, unit, statistics.median(ours), statistics.median(peer), n, target, note)


def say(line: str) -> None:
    """Tell people how far the benchmark is."""
    _console.print(f"[{time.monotonic() - _started:6.1f} s] {line}", markup=False, soft_wrap=True)


def publish(title: str, results: Sequence[Result]) -> None:
    """Print the table and append the JSON lines."""
    table = Table(title=title)
    for column in ("name", "unit"):
        table.add_column(column)
    for column in ("ours", "peer", "ratio", "n"):
        table.add_column(column, justify="right")
    table.add_column("target")
    table.add_column("note")
    for found in results:
        cells = (_figure(found.ours), _figure(found.peer), _figure(found.ratio), f"{found.n:,}")
        table.add_row(found.name, found.unit, *cells, found.target, found.note)
    Console(width=160 if not _console.is_terminal else None).print(table)
    _append(results)


def _append(results: Sequence[Result]) -> None:
    OUTPUT.parent.mkdir(exist_ok=True)
    with OUTPUT.open("a", encoding="utf-8") as file:
        for found in results:
            fields = {**dataclasses.asdict(found), "ratio": found.ratio}
            file.write(
                json.dumps({name: fields[name] for name in ("name", "unit", "ours", "peer", "ratio", "n")}) + "\n"
            )


def ranged(values: Sequence[float]) -> str:
    """Write the least and the most of a figure."""
    return f"{_figure(min(values))} to {_figure(max(values))}"


def quantile(values: Sequence[float], share: int) -> float:
    """Return the value that ``share`` percent of the values are below."""
    ordered = sorted(values)
    return ordered[min(len(ordered) * share // 100, len(ordered) - 1)]


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
