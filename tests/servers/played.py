"""Played commands: files that a person can read, of command lines and what each prints, and how they are played.

A line of a file is a comment (``# ...``), a command (``$ ...``, for a shell in an empty folder), a line of its standard
output (behind ``| `` where it could be taken for another), one of its standard error (``! ...``), or its exit code
where that is not 0 (``= 4``). What differs from run to run is masked: ``<time>``, ``<host>``, and what the test that
plays them names.
"""

from __future__ import annotations

import difflib
import os
import re
import socket
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from servers.installed import FOREIGN

FOLDER: Final = Path(__file__).parents[1] / "data" / "played"
#: Set to anything, the files are written anew.
UPDATE: Final = "UPDATE_PLAYED"
_COMMAND, _ERROR, _CODE, _COMMENT, _BEHIND = "$ ", "! ", "= ", "# ", "| "
_SECONDS: Final = 300
# In this order.
_MASKS: Final = (
    (r"\d{8}T\d{6}Z-[0-9a-f]{8}", "<id>"),
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "<uuid>"),
    (r"\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}(:\d{2}([.,]\d+)?)?(Z|\+00:00)?", "<time>"),
    (r"\b\d{13}\b", "<ms>"),
    (r"\b\d+(\.\d+)? s\b", "<n> s"),
    (r"\bprocess \d+", "process <pid>"),
    (r"(?<=server process )\[\d+\]", "[<pid>]"),
    (r"(?<=ready)( +)\d+", r"\1<pid>"),
    (r"\b\d+ nodes\b", "<n> nodes"),
    (r"\b\d+ of \d+ ledgers\b", "<n> of <n> ledgers"),
    (r"Python \d+\.\d+\.\d+", "Python <version>"),
    (r"\bport \d+", "port <port>"),
    (r"127\.0\.0\.1:\d{2,}", "127.0.0.1:<port>"),
    (r"(?m)(?<=  )\d+:\d+$", "<position>"),
    (r"(\d+:){2,}-?\d+", "<position>"),
    (r"\d+(\.\d+)? GiB free", "<n> GiB free"),
    (r"(?m)^bookies +(ok .* GiB free|warning .* GB free .*)$", "bookies  <ok, or a warning on a full disk>"),
    (r"can be read, and /ledgers/\S+", "can be read, and <ledger>"),
    (r"Everything answers; \d+ warnings?", "Everything answers; <n> warnings"),
    (r"ServletContainer-[0-9a-f]+", "ServletContainer-<id>"),
)


@dataclass(frozen=True)
class Stage:
    """Where commands are played: a program, an empty folder, variables for command lines, and patterns to mask."""

    bin_folder: Path
    folder: Path
    variables: Mapping[str, str]
    masks: tuple[tuple[str, str], ...] = ()

    def play(self, script: str) -> str:
        """Play the commands of a file; return the file as it is now."""
        return "".join(f"{line}\n" for line in self._lines(script))

    def _lines(self, script: str) -> Iterator[str]:
        for line in script.splitlines():
            if line.startswith(_COMMENT) or line == "":
                yield line
            elif line.startswith(_COMMAND):
                yield line
                yield from self._output(line.removeprefix(_COMMAND))

    def _output(self, command: str) -> Iterator[str]:
        done = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {command}"],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            env=self._environment(),
            timeout=_SECONDS,
        )
        yield from map(_distinct, self._masked(done.stdout).splitlines())
        yield from (f"{_ERROR}{line}".rstrip() for line in self._masked(done.stderr).splitlines())
        if done.returncode:
            yield f"{_CODE}{done.returncode}"

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        own = {
            "PATH": f"{self.bin_folder}:{kept['PATH']}",
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder),
            "LANG": "C.UTF-8",
            "COLUMNS": "100",
        }
        return {**kept, **own, **self.variables}

    def _masked(self, whole: str) -> str:
        text = whole
        for folder, name in ((self.folder, "<folder>"), (self.bin_folder.parent, "<venv>")):
            text = text.replace(str(folder), name)
        text = re.sub(rf"\b{re.escape(socket.gethostname())}\b", "<host>", text)
        for pattern, name in (*_MASKS, *self.masks):
            text = re.sub(pattern, name, text)
        # The columns of a table are as wide as what was masked.
        return text if text == whole else re.sub(r"(?<=\S) {2,}(?=\S)", "  ", text)


def _distinct(line: str) -> str:
    """Return a line of the output as it cannot be taken for another kind of line."""
    is_plain = line != "" and not line.startswith((_COMMAND, _ERROR, _CODE, _COMMENT, _BEHIND))
    return line if is_plain else f"{_BEHIND}{line}".rstrip()


def files_of(group: str) -> list[Path]:
    """List the files of a group."""
    return sorted((FOLDER / group).glob("*.txt"))


def check(path: Path, stage: Stage) -> None:
    """Play a file, and compare it with what was printed when it was written; or write it, if that is asked for."""
    before = path.read_text(encoding="utf-8")
    now = stage.play(before)
    if os.environ.get(UPDATE):
        path.write_text(now, encoding="utf-8")
        return
    changes = list(difflib.unified_diff(before.splitlines(), now.splitlines(), path.name, "now", lineterm="", n=3))
    hint = f"if this is meant: {UPDATE}=1 pytest tests/integration/test_played_commands.py"
    assert not changes, "\n".join([*changes, hint])
