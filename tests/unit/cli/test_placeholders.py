"""Help and completion without the modules that only a command that runs needs: the same text, and no command runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bookwarden.cli.shell.placeholders import PlaceholderError, are_used, only_helps, placeholders
from servers.help_pages import EVERY_HELP

PROGRAM = [sys.executable, "-m", "bookwarden.cli"]
# Each command in one process, each group's modules imported once; what falls back is named.
EVERY_HELP_ON_PLACEHOLDERS = (
    "import sys\nfrom bookwarden.cli.shell import placeholders\nimport bookwarden.cli.main\n"
    "import click.testing\nimport importlib, rich\nwith placeholders.placeholders():\n"
    + "\n".join(f"    {line}" for line in EVERY_HELP.strip().splitlines())
)


def ran(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})


def test_the_help_of_every_command_is_what_it_is_with_its_modules() -> None:
    whole = ran(sys.executable, "-c", EVERY_HELP)
    quick = ran(sys.executable, "-c", EVERY_HELP_ON_PLACEHOLDERS)
    assert (quick.returncode, quick.stderr) == (0, "")
    assert json.loads(quick.stdout) == json.loads(whole.stdout)


@pytest.mark.parametrize("path", ["undo", "mark topic", "dev up", "cluster-migration watch", "orphans scan"])
def test_help_imports_nothing_that_works(path: str) -> None:
    done = ran(*PROGRAM[:1], "-X", "importtime", *PROGRAM[1:], *path.split(), "--help")
    assert done.stdout.startswith(f"Usage: bookwarden {path} ")
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert not imported & {"pulsar", "pydantic", "urllib3", "kazoo", "google.protobuf"}


def test_completion_is_the_same_too() -> None:
    words = {"COMP_WORDS": "bookwarden orphans scan --", "COMP_CWORD": "3", "_BOOKWARDEN_COMPLETE": "bash_complete"}
    completed = ran(*PROGRAM, **words).stdout.splitlines()
    assert {"plain,--resume", "plain,--from"} <= set(completed)


def test_a_value_that_looks_like_a_question_for_help_runs_the_command_with_its_modules(tmp_path: Path) -> None:
    done = ran(*PROGRAM, "-o", "json", "undo", "--run", "--help", BOOKWARDEN_SWEEP__JOURNAL=str(tmp_path))
    assert (done.returncode, "Usage" in done.stdout) == (4, False)
    assert "no such deletion" in json.loads(done.stderr)["error"]


def test_only_help_and_completion_get_placeholders() -> None:
    assert only_helps(["mark", "topic", "--help"], {})
    assert only_helps([], {"_BOOKWARDEN_COMPLETE": "zsh_complete"})
    assert not only_helps(["mark", "topic"], {})


def test_a_module_that_needs_more_than_names_is_imported_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "placeholder_user.py").write_text(
        "from bookwarden.nothing import CHOICES, Kind\n"
        "class Sub(Kind):\n    pass\n"
        "ALIAS = Kind | None\n"
        "LISTED: dict[str, Kind[int]] = {}\n",
        encoding="utf-8",
    )
    (tmp_path / "placeholder_reader.py").write_text(
        "from bookwarden.nothing import CHOICES\nNAMES = [one.value for one in CHOICES]\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with placeholders():
        assert are_used()
        __import__("placeholder_user")
    with pytest.raises(PlaceholderError), placeholders():
        __import__("placeholder_reader")
    assert not are_used()
    assert "bookwarden.nothing" not in sys.modules
