"""A program that shows the help of every command, for an interpreter that a test chooses."""

from __future__ import annotations

# Prints a JSON object: the path of each command, and the exit code, the output and the exception of its --help.
EVERY_HELP = """
import json, sys
import click
from click.testing import CliRunner
from bookwarden.cli.shell.late import LateCommand
from bookwarden.cli.main import cli

def paths(group, path=()):
    yield path
    for name, command in group.commands.items():
        command = command.load() if isinstance(command, LateCommand) else command
        yield from paths(command, (*path, name)) if isinstance(command, click.Group) else [(*path, name)]

shown = {}
for path in paths(cli):
    result = CliRunner().invoke(cli, [*path, "--help"], prog_name="bookwarden")
    shown[" ".join(path)] = [result.exit_code, result.output, repr(result.exception)]
json.dump(shown, sys.stdout)
"""


def assert_every_command_helps(shown: dict[str, tuple[int, str, str]]) -> None:
    """Check what the program printed."""
    assert len(shown) > 30
    for path, (exit_code, output, exception) in shown.items():
        assert exit_code == 0, (path, exception)
        assert output.startswith(f"Usage: bookwarden {path}".rstrip()), path
