"""Progress of reading a store's nodes, on a terminal and elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from bookwarden.cli.shell.invocation import Invocation

_SAID_EVERY: Final = 250_000


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
