"""Progress of reading a store's nodes, on a terminal and elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from bookwarden.cli.shell.invocation import Invocation

_SAID_EVERY: Final = 250_000


@contextmanager
def node_progress(invocation: Invocation, what: str, done: str, unit: str = "nodes") -> Iterator[Callable[[int], None]]:
    """Show on a terminal how many nodes were done so far; elsewhere write a line from time to time.

    ``what`` is the first line elsewhere, ``done`` the participle after the number and its ``unit``.
    """
    if invocation.output != "json" and sys.stderr.isatty():
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn(f"{{task.completed:,}} {unit}"))
        with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as bars:
            # The total is not known before all were listed.
            task = bars.add_task(done, total=None)
            yield lambda nodes: bars.update(task, completed=nodes)
        return
    invocation.say(what)
    said = 0

    def say(nodes: int) -> None:
        nonlocal said
        if nodes >= said + _SAID_EVERY:
            said = nodes
            invocation.say(f"{nodes:,} {unit} {done}")

    yield say
