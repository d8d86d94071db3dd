"""What is written: for terminals of two widths, for pipes, and for programs."""

from __future__ import annotations

import enum
import io
import json
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pytest
from rich.cells import cell_len

from bookwarden.cli.shell.output import (
    Cells,
    Column,
    Document,
    Facts,
    JsonWriter,
    Note,
    Stream,
    Table,
    TextWriter,
    local_topics,
    moment,
    plain,
    short_topics,
    table_of,
)

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


class Closed(io.StringIO):
    def flush(self) -> None:
        raise BrokenPipeError


@pytest.mark.parametrize("parts", [(TABLE,), (TABLE, Note("the end"))])
def test_that_a_pipe_is_closed_is_for_the_caller_to_end(parts: tuple[Table | Note, ...]) -> None:
    with pytest.raises(BrokenPipeError):
        written(Document(None, parts), Closed())


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


class Following:
    """Numbers that come one after the other, while somebody looks how many are still kept."""

    def __init__(self, count: int, output: io.StringIO) -> None:
        self.given: weakref.WeakSet[Number] = weakref.WeakSet()
        self.most_kept = self.most_unwritten = 0
        self.mark = END
        self._count = count
        self._output = output

    def __iter__(self) -> Iterator[Number]:
        for value in range(self._count):
            if value % 250 == 249:
                self.most_kept = max(self.most_kept, len(self.given))
                self.most_unwritten = max(self.most_unwritten, value - self._output.getvalue().count(self.mark))
            number = Number(value, "" if value < 1500 else "late")
            self.given.add(number)
            yield number


END = "of"


@dataclass(eq=False)
class Number:
    value: int
    note: str

    @property
    def text(self) -> str:
        return f"{END} {self.value}"


def stream_of(items: Iterable[Number]) -> Stream[Number]:
    cells: Cells[Number] = {
        Column("value", right=True): lambda one: str(one.value),
        Column("text"): lambda one: one.text,
        Column("note"): lambda one: one.note,
    }
    return Stream("numbers", items, cells, lambda: ({"count": 7}, (Note("the end"),)), empty="None.")


@pytest.mark.parametrize("kind", [TextWriter, JsonWriter])
def test_a_result_of_any_length_is_written_while_it_comes_and_not_kept(kind: type[TextWriter | JsonWriter]) -> None:
    output = io.StringIO()
    items = Following(10_000, output)
    items.mark = END if kind is TextWriter else '"note"'
    kind(output, io.StringIO()).write_stream(stream_of(items))
    # Three portions: the first, the last, and the one that follows.
    assert items.most_kept <= 3000
    assert items.most_unwritten <= 1000


def test_a_long_stream_has_one_heading_and_every_column() -> None:
    output = io.StringIO()
    TextWriter(output, io.StringIO()).write_stream(stream_of(Following(2500, output)))
    lines = output.getvalue().splitlines()
    assert lines[:2] == ["value  text    note", "    0  of 0"]
    assert [line.split() for line in lines[1:2501]] == [
        [str(number), "of", str(number), *(["late"] if number >= 1500 else [])] for number in range(2500)
    ]
    assert lines[2501:] == ["", "the end"]


def test_a_long_stream_on_a_terminal_has_tables_and_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    output = Terminal()
    TextWriter(output, io.StringIO(), width=80).write_stream(stream_of(Following(2500, output)))
    text = output.getvalue()
    assert (text.count("value"), text.count(f"{END} 2499"), text.rstrip().endswith("the end")) == (3, 1, True)


@pytest.mark.parametrize("count", [0, 1, 999])
def test_a_short_stream_is_written_as_a_document(count: int) -> None:
    output = io.StringIO()
    numbers = [Number(value, "") for value in range(count)]
    stream = stream_of(numbers)
    TextWriter(output, io.StringIO()).write_stream(stream)
    table = table_of(numbers, stream.cells, empty="None.")
    assert output.getvalue() == written(Document(None, (table, Note("the end"))), io.StringIO())


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_stream_is_one_json_object_as_any(count: int) -> None:
    output, whole = io.StringIO(), io.StringIO()
    numbers = [Number(value, 'a "quoted"\nline') for value in range(count)]
    stream = Stream("numbers", numbers, {}, lambda: ({"counts": {"a": [1]}, "none": {}}, ()))
    JsonWriter(output, io.StringIO()).write_stream(stream)
    JsonWriter(whole, io.StringIO()).write(Document({"numbers": numbers, "counts": {"a": [1]}, "none": {}}, ()))
    assert output.getvalue() == whole.getvalue()


PARTITIONS = tuple(f"persistent://pulsar/system/__ledger_deletion-partition-{number}" for number in range(3))


@pytest.mark.parametrize(
    ("width", "first"),
    [(120, PARTITIONS[0]), (75, "pulsar/system/__ledger_deletion-partition-0"), (60, "__ledger_deletion-partition-0")],
)
def test_names_of_topics_are_shorter_where_the_terminal_is_narrow(
    width: int, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    # Without a height Rich takes a dumb terminal for one of 80 columns.
    monkeypatch.setenv("LINES", "25")
    columns = (Column("partition", whole=False, topics=True), Column("entries", right=True), Column("first entry"))
    rows = (*((name, "12", "1204:17") for name in PARTITIONS), ("total", "36", ""))
    lines = written(Document(None, (Table(columns, rows),)), Terminal(), width).splitlines()
    # No name is cut over two lines.
    assert len(lines) == 2 + len(rows)
    assert lines[2].split()[0] == first
    assert lines[-1].split()[0] == "total"


def test_names_of_several_namespaces_keep_them() -> None:
    assert local_topics(["t/a/x", "t/b/x", "total"]) == ["t/a/x", "t/b/x", "total"]
    assert local_topics(["t/a/x", "t/a/y", "total"]) == ["x", "y", "total"]
    assert short_topics(["persistent://public/default/x", "persistent://t/n/x"]) == ["x", "t/n/x"]
