"""Commands that are imported when they are called, so that each call of the program loads one command only."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click


class LateCommand(click.Command):
    """The name and summary of a command; the command itself is imported when it is called.

    ``place`` is "module:name" of the command. ``summary`` is the first sentence of its help, which lists of commands
    and shell completion show without an import.
    """

    def __init__(self, name: str, place: str, summary: str) -> None:
        super().__init__(name, short_help=summary)
        self._place = place

    def load(self) -> click.Command:
        """Import the command."""
        module, _, name = self._place.partition(":")
        found = getattr(import_module(module), name)
        if not isinstance(found, click.Command):
            raise TypeError(f"{self._place} is no command")
        return found

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse the arguments as the command itself does; the context runs the command itself."""
        return self.load().make_context(info_name, args, parent, **extra)
