"""The documented exit codes are those of the classes, and failures are one line."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from bookwarden import exit_codes
from bookwarden.cli.main import cli
from bookwarden.cli.shell.failures import TranslatingGroup
from bookwarden.cli.shell.invocation import Invocation
from bookwarden.cli.shell.late import LateCommand
from bookwarden.errors import BookwardenError, ConfigError, NotFoundError, StoreAccessError
from bookwarden.exit_codes import CLOSED_OUTPUT, INTERRUPTED, USAGE

DOCUMENT = Path(__file__).parents[3] / "docs" / "cli.md"


def documented() -> dict[int, set[str]]:
    section = DOCUMENT.read_text(encoding="utf-8").partition("## Exit codes")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| ([^|]*)\|", section, re.MULTILINE)
    return {int(code): {name.strip() for name in names.split(",") if name.strip()} for code, names in rows}


def classes(root: type[BookwardenError] = BookwardenError) -> Iterator[type[BookwardenError]]:
    yield root
    for child in root.__subclasses__():
        yield from classes(child)


def test_the_documented_table_is_that_of_the_error_classes() -> None:
    expected: dict[int, set[str]] = defaultdict(set, {0: set(), USAGE: set(), INTERRUPTED: set(), CLOSED_OUTPUT: set()})
    for error in classes():
        if error.__module__ == "bookwarden.errors" and "exit_code" in vars(error):
            expected[error.exit_code].add(error.__name__)
    assert documented() == expected


def test_each_number_of_the_table_has_one_name_and_is_documented() -> None:
    codes = [code for name, code in vars(exit_codes).items() if name.isupper()]
    assert len(set(codes)) == len(codes)
    text = DOCUMENT.read_text(encoding="utf-8")
    assert set(codes) | {0} == {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}


def failing(error: BaseException, invocation: Invocation) -> click.Group:
    @click.group(cls=TranslatingGroup)
    @click.pass_context
    def root(ctx: click.Context) -> None:
        ctx.obj = invocation

    @root.command()
    def fail() -> None:
        raise error

    return root


@pytest.mark.parametrize("error", [ConfigError("bad\nsetting"), StoreAccessError("no \x1b[2Jrights")])
def test_an_error_of_ours_is_one_line_without_a_trace(error: BookwardenError) -> None:
    result = CliRunner().invoke(failing(error, Invocation()), ["fail"])
    assert result.exit_code == error.exit_code
    assert result.stdout == ""
    assert result.stderr.startswith("bookwarden: ")
    assert result.stderr.count("\n") == 1
    assert "\x1b" not in result.stderr


def test_an_error_is_an_object_when_json_was_asked_for() -> None:
    result = CliRunner().invoke(failing(ConfigError("bad"), Invocation(output="json")), ["fail"])
    assert json.loads(result.stderr) == {"error": "bad", "exit_code": 3}


def test_debug_shows_the_trace() -> None:
    result = CliRunner().invoke(failing(ConfigError("bad"), Invocation(debug=True)), ["fail"])
    assert "Traceback" in result.stderr
    assert result.exit_code == ConfigError.exit_code


def test_an_interrupt_has_its_code() -> None:
    result = CliRunner().invoke(failing(KeyboardInterrupt(), Invocation()), ["fail"])
    assert (result.exit_code, result.stderr) == (INTERRUPTED, "bookwarden: interrupted\n")


@pytest.mark.parametrize(
    ("arguments", "exit_code", "text"),
    [
        (["--set", "nonsense", "init"], USAGE, "NAME=VALUE"),
        (["--set", "no.such=1", "init"], ConfigError.exit_code, "no.such"),
        (["--config", "/nonexistent.yaml", "init"], ConfigError.exit_code, "/nonexistent.yaml"),
        (["-o", "json", "mark", "trim"], USAGE, '"exit_code": 2'),
        (["mark", "trim", "t", "--force"], USAGE, "--store"),
        (["dlq", "drop"], USAGE, "--all"),
        (["dlq", "drop", "1:2:-1", "--all"], USAGE, "--all"),
        (["dlq", "replay", "1:2:-1", "--reason", "x"], USAGE, "--reason"),
        (["dlq", "replay", "1:2:-1", "--limit", "1"], USAGE, "--limit"),
        (["dlq", "list", "--group-by", "colour"], USAGE, "--group-by"),
        (["undo"], USAGE, "--list"),
        (["undo", "--list", "--ledger", "1"], USAGE, "--list"),
        (["undo", "--since", "yesterday"], USAGE, "--since"),
        (["--set", "sweep.journal=/nonexistent", "undo", "--ledger", "1"], NotFoundError.exit_code, "/nonexistent"),
        (["ledger", "explain", "-1"], USAGE, "-1"),
    ],
)
def test_wrong_usage_and_settings(arguments: list[str], exit_code: int, text: str) -> None:
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == exit_code
    assert text in result.stderr


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, command in group.commands.items():
        found = command.load() if isinstance(command, LateCommand) else command
        if isinstance(found, click.Group):
            yield from commands(found, (*path, name))
        else:
            yield (*path, name)


@pytest.mark.parametrize("path", list(commands(cli)))
def test_every_command_has_help_that_needs_no_settings(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cli, [*path, "--help"], terminal_width=80)
    assert result.exit_code == 0
    assert not re.search(r"^  \S+ .*\.\.\.$", result.stdout, re.MULTILINE), "a summary is cut"
