"""Steps of something that is watched: live on a terminal, as lines for a log or a program elsewhere; progress bars."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Generic, Protocol, TypeVar

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from bookwarden.cli.shell.invocation import Invocation
from bookwarden.cli.shell.output import printable

_SAID_EVERY_S: Final = 10.0
_SAID_EVERY: Final = 250_000
#: What the stages of the scan and of the account of the disks are called.
_STAGES: Final = {
    "ledgers": "ledgers",
    "objects": "offloaded copies",
    "references": "references",
    "late_references": "references, again",
    "changes": "ledgers, again",
    "join": "comparing",
    "classes": "looking at what is left",
    "missing": "looking for missing ledgers",
    "plan": "writing the plan",
    "use": "adding up",
}


class SaidProgress:
    """Writes how far something is: at its begin, at its end, and from time to time with its rate and the time left.

    ``about`` says that the total is an estimate.
    """

    def __init__(self, invocation: Invocation, what: str, *, about: bool = False) -> None:
        self._invocation = invocation
        self._what = what
        self._about = "about " if about else ""
        self._began = self._said_at = time.monotonic()
        self._finished: bool | None = None

    def tell(self, done: int, total: int) -> None:
        """Write a line if it is time to."""
        finished, now = done >= total, time.monotonic()
        if finished == self._finished and (finished or now < self._said_at + _SAID_EVERY_S):
            return
        self._finished, self._said_at = finished, now
        pace = "" if finished else pace_text(done, total, now - self._began)
        self._invocation.say(f"{self._what}: {done:,} of {self._about}{total:,}{pace}")


def pace_text(done: int, total: int, seconds: float) -> str:
    """Format the rate, and the time that is left by it; "" where nothing is done yet."""
    if done <= 0 or seconds <= 0:
        return ""
    rate = done / seconds
    left = max(0, total - done) / rate
    shown = f"{left:,.0f} s" if left < 120 else f"{left / 60:,.0f} min" if left < 7200 else f"{left / 3600:,.1f} h"
    return f", {rate:,.0f}/s, about {shown} left"


class WatchStep(Protocol):
    """A step of what is watched."""

    @property
    def differs_from(self) -> tuple[object, ...]:
        """The part of it by which it differs from others."""

    @property
    def ending(self) -> object | None:
        """The way in which it is over; None while it goes on."""


StepT = TypeVar("StepT", bound=WatchStep)


class StepLines(Generic[StepT]):
    """Writes a step after a change, at the end, and from time to time."""

    def __init__(self, render: Callable[[StepT], str], every_s: float) -> None:
        self._render = render
        self._every_s = every_s
        self._last: tuple[object, ...] | None = None
        self._said_at = 0.0

    def tell(self, step: StepT) -> None:
        """Write the step if it is worth a line."""
        now = time.monotonic()
        if step.differs_from == self._last and step.ending is None and now < self._said_at + self._every_s:
            return
        self._last, self._said_at = step.differs_from, now
        sys.stdout.write(self._render(step))
        sys.stdout.flush()


@contextmanager
def telling(
    output: str,
    every_s: float,
    json_of: Callable[[StepT], str],
    lines_of: Callable[[StepT], Sequence[str]],
    live_of: Callable[[Console, StepT], RenderableType],
    end_of: Callable[[StepT], Sequence[str]],
) -> Iterator[Callable[[StepT], None]]:
    """Return what reports a step, by ``output`` and by whether this is a terminal.

    ``live_of`` makes what a terminal shows, and may print to it for good; ``end_of`` returns the last lines.
    """
    if output == "json":
        yield StepLines(json_of, every_s).tell
    elif sys.stdout.isatty():
        console = Console()
        ends: list[str] = []
        with Live(console=console, refresh_per_second=4) as live:

            def show(step: StepT) -> None:
                live.update(live_of(console, step))
                ends.extend(end_of(step))

            yield show
        for line in ends:
            console.print(Text(line))
    else:
        texts = StepLines[StepT](
            lambda step: "".join(f"{printable(line)}\n" for line in (*lines_of(step), *end_of(step))), every_s
        )
        yield texts.tell


@contextmanager
def node_progress(invocation: Invocation, what: str, done: str, unit: str = "nodes") -> Iterator[Callable[[int], None]]:
    """Show on a terminal how many nodes were done so far; elsewhere write a line from time to time.

    ``what`` is the first line elsewhere, ``done`` the participle after the number and its ``unit``.
    """
    if invocation.output != "json" and sys.stderr.isatty():
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn(f"{{task.completed:,}} {unit}"),
            TaskProgressColumn(show_speed=True),
        )
        with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as bars:
            # The total is not known before all were listed.
            task = bars.add_task(done, total=None)
            yield lambda nodes: bars.update(task, completed=nodes)
        return
    invocation.say(what)
    said, began = 0, time.monotonic()

    def say(nodes: int) -> None:
        nonlocal said
        if nodes >= said + _SAID_EVERY:
            said = nodes
            # How many there are is known at the end only, so not what time is left.
            rate = nodes / max(0.001, time.monotonic() - began)
            invocation.say(f"{nodes:,} {unit} {done}, {rate:,.0f}/s")

    yield say


@contextmanager
def stage_progress(invocation: Invocation) -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar for each stage on a terminal; elsewhere write a line when one begins and ends."""
    if invocation.output != "json" and sys.stderr.isatty():
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        ) as bars:
            tasks = {}

            def show(stage: str, done: int, total: int) -> None:
                if stage not in tasks:
                    tasks[stage] = bars.add_task(_STAGES.get(stage, stage), total=total)
                bars.update(tasks[stage], completed=done, total=total)

            yield show
        return
    stages: dict[str, SaidProgress] = {}

    def say(stage: str, done: int, total: int) -> None:
        if stage not in stages:
            stages[stage] = SaidProgress(invocation, _STAGES.get(stage, stage))
        stages[stage].tell(done, total)

    yield say
