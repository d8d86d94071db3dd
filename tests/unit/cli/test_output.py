"""What is written: for terminals of two widths, for pipes, and for programs."""

from __future__ import annotations

import enum
import io
import json
from dataclasses import dataclass

import pytest
from rich.cells import cell_len

from bookwarden.cli.shell.output import Column, Document, Facts, JsonWriter, Note, Table, TextWriter, moment, plain

HOLDER = "tenant/namespace/persistent/" + "a-long-topic-name-" * 6
TABLE = Table(
    (Column("ledger", right=True), Column("holder", whole=False), Column("empty")),
    (("9223372036854775807", HOLDER, ""), ("7", "t/n/persistent/o", "")),
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def written(document: Document, output: io.StringIO, width: int | None = None) -> str:
    TextWriter(output, io.StringIO(), width=width).write(document)
    return output.getvalue()


def test_into_a_pipe_goes_everything_uncut_in_columns() -> None:
    lines = written(Document(None, (TABLE,)), io.StringIO()).splitlines()
    assert lines == [
        "             ledger  holder",
        f"9223372036854775807  {HOLDER}",
        "                  7  t/n/persistent/o",
    ]


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_gets_ids_whole_and_long_names_folded(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    text = written(Document(None, (TABLE, Facts((("holder", HOLDER),)), Note("done"))), Terminal(), width)
    assert "9223372036854775807" in text
    assert max(map(cell_len, text.splitlines())) <= width
    assert "…" not in text


def test_text_from_messages_cannot_command_the_terminal_or_be_markup() -> None:
    document = Document(None, (Table((Column("reason"),), (("\x1b[2J[red]x",),)), Note("\x07")))
    for output in (io.StringIO(), Terminal()):
        text = written(document, output, 80)
        assert "\x1b[2J" not in text
        assert "\x07" not in text
        assert "\\x1b[2J[red]x" in text


def test_an_empty_table_says_so() -> None:
    assert written(Document(None, (Table((), (), empty="No dead letters."),)), io.StringIO()) == "No dead letters.\n"


def test_json_is_the_data_and_nothing_else() -> None:
    output = io.StringIO()
    JsonWriter(output, io.StringIO()).write(Document({"ä": 1}, (Note("for people"),)))
    assert json.loads(output.getvalue()) == {"ä": 1}


def test_values_become_what_json_knows() -> None:
    class Colour(enum.Enum):
        RED = "red"

    @dataclass(frozen=True)
    class Value:
        colour: Colour
        ids: frozenset[int]
        raw: bytes

    assert plain((Value(Colour.RED, frozenset({2, 1}), b"a\xff"),)) == [
        {"colour": "red", "ids": [1, 2], "raw": "a\\xff"}
    ]


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(0, "-"), (None, "-"), (1_600_000_000_000, "2020-09-13 12:26:40Z"), (10**18, "1000000000000000000")],
)
def test_moments(milliseconds: int | None, text: str) -> None:
    assert moment(milliseconds) == text
