"""Commands that are imported when they are called, so that each call of the program loads one command only."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

import click

from bookwarden.cli.shell.invocation import output_option
from bookwarden.cli.shell.placeholders import PlaceholderError, are_used
from bookwarden.errors import NotFoundError

#: Of commands that are not of this package.
COMMANDS_GROUP: Final = "bookwarden.commands"
_ENTRY_POINT: Final = "entry point "


class LateCommand(click.Command):
    """The name and summary of a command; the command itself is imported when it is called.

    ``place`` is "module:name" of the command, or "entry point NAME" of the group `COMMANDS_GROUP` for one that another
    package has. ``summary`` is the first sentence of its help, which lists of commands
    and shell completion show without an import.
    """

    def __init__(self, name: str, place: str, summary: str) -> None:
        super().__init__(name, short_help=summary)
        self._place = place

    def load(self) -> click.Command:
        """Import the command; NotFoundError where no package has that entry point."""
        if self._place.startswith(_ENTRY_POINT):
            # Imported late: most commands are no entry points.
            from importlib.metadata import entry_points

            name = self._place.removeprefix(_ENTRY_POINT)
            points = tuple(entry_points(group=COMMANDS_GROUP, name=name))
            if not points:
                raise NotFoundError(f"no installed package has the command {name}: install bookwarden again")
            found = points[0].load()
        else:
            module, _, name = self._place.partition(":")
            found = getattr(import_module(module), name)
        if not isinstance(found, click.Command):
            raise TypeError(f"{self._place} is no command")
        add_output_option(found)
        if are_used():
            _let_none_run(found)
        return found

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse the arguments as the command itself does; the context runs the command itself."""
        return self.load().make_context(info_name, args, parent, **extra)


def add_output_option(command: click.Command) -> None:
    """Have each command take -o, which is a global option too."""
    if isinstance(command, click.Group):
        for each in command.commands.values():
            add_output_option(each)
    if does_something(command) and not any("--output" in one.opts for one in command.params):
        output_option(command)


def does_something(command: click.Command) -> bool:
    """Return whether it is a command that was loaded, and no group, or one that also does something by itself."""
    if isinstance(command, click.Group):
        return command.invoke_without_command
    return not isinstance(command, LateCommand)


def _let_none_run(command: click.Command) -> None:
    """Have no command run on placeholders: an option's value may look as if help was asked for."""
    if isinstance(command, click.Group):
        for each in command.commands.values():
            _let_none_run(each)
    if does_something(command):
        command.callback = _refuse


def _refuse(*_: object, **__: object) -> None:
    # A group is called before the command below it, which may be asked for its help.
    if click.get_current_context().invoked_subcommand is None:
        raise PlaceholderError
