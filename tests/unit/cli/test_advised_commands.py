"""Every command that an error, a line of a check or a document names exists, with the options that it names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click

from bookwarden.cli.main import cli
from bookwarden.cli.shell.late import LateCommand, does_something

ROOT = Path(__file__).parents[3]
SOURCES = sorted((ROOT / "src" / "bookwarden").rglob("*.py"))
DOCUMENTS = sorted((ROOT / "docs").rglob("*.md"))
COMMAND = re.compile(r"`(?:bookwarden )?((?:bookie-clusters|metadata-migration|orphans|mark|ledger) (?!ids)[^`]+)`")
#: In tables about bookie clusters the group is left out.
SHORT = re.compile(
    r"`((?:register|unregister|set-uri|upgrade|raise-ids|registry|switch|move|drain|cleanup|build) [^`]+)`"
)


def texts_of(source: Path) -> Iterator[str]:
    """Yield the texts of a module; what is put into one is NAME."""
    tree = ast.parse(source.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "NAME" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def problem_of(text: str) -> str | None:
    """Return what is wrong with a command; None if there is one with these options."""
    command: click.Command = cli
    words = text.split()
    while words and isinstance(command, click.Group) and not (words[0].startswith("-") and does_something(command)):
        name = words.pop(0)
        if name not in command.commands:
            return f"there is no {name}"
        command = command.commands[name]
        if isinstance(command, LateCommand):
            command = command.load()
    # What the help shows: flags that a release still accepts are advised nowhere.
    context = click.Context(command)
    records = [record for one in command.params if (record := one.get_help_record(context)) is not None]
    options = {name for record in records for name in re.findall(r"--[\w-]+", record[0])}
    asked = {word.partition("=")[0] for word in words if word.startswith("--")}
    unknown = sorted(asked - options)
    return f"there is no {', '.join(unknown)}" if unknown else None


def test_the_commands_that_errors_name_exist_with_their_options() -> None:
    found = {
        f"{source.relative_to(ROOT)}: {text}": problem_of(text)
        for source in SOURCES
        for whole in texts_of(source)
        for text in COMMAND.findall(whole)
    }
    assert len(found) > 60
    assert {where: problem for where, problem in found.items() if problem is not None} == {}


def test_those_that_documents_name_exist_too() -> None:
    found = {}
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        named = COMMAND.findall(text)
        if "bookie-cluster" in document.name or document.name == "moving-ledgers.md":
            named += [f"bookie-clusters {one}" for one in SHORT.findall(text)]
        found |= {f"{document.relative_to(ROOT)}: {one}": problem_of(one) for one in named}
    assert len(found) > 150
    assert {where: problem for where, problem in found.items() if problem is not None} == {}
