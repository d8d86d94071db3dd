"""Output of results to people and programs: one document, written as text or as JSON.

Text is laid out for the terminal it goes to; into a pipe it goes as plain columns, uncoloured and uncut.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import islice
from pathlib import PurePath
from textwrap import indent
from typing import Any, Generic, Protocol, TextIO, TypeVar

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from bookwarden.findings import Finding, size_text

T = TypeVar("T")
Cells = dict["Column", Callable[[T], str]]

_GAP = "  "
# The rows of a table that are laid out together, where there may be millions.
_PORTION = 1_000
_STYLES = {
    **dict.fromkeys(("created", "deleted", "marked", "removed", "ready", "sent", "dropped", "closed", "yes"), "green"),
    **dict.fromkeys(("failed", "stopped", "gave up", "malformed", "mismatch", "inside the list", "unreadable"), "red"),
    **dict.fromkeys(("retry", "delayed", "waiting", "starting", "still referenced", "unknown"), "yellow"),
    **dict.fromkeys(("would create", "would delete", "would mark", "would send", "would drop"), "cyan"),
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column's heading; ``whole`` keeps its cells on one line, ``right`` aligns numbers.

    ``topics`` says that its cells are names of topics, which are shown shorter where the terminal is narrow.
    """

    name: str
    right: bool = False
    whole: bool = True
    topics: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text; ``empty`` is what people read when there are none."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    empty: str = "nothing"


def table_of(
    items: Iterable[T], cells: Mapping[Column, Callable[[T], str]], *, title: str = "", empty: str = "nothing"
) -> Table:
    """Make a table with a row for each item; each column comes with what makes its cells."""
    rows = tuple(tuple(cell(item) for cell in cells.values()) for item in items)
    return Table(tuple(cells), rows, title, empty)


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and values about one thing."""

    pairs: tuple[tuple[str, str], ...]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence for people; programs find the same in the data."""

    text: str


Part = Table | Facts | Note


@dataclass(frozen=True, slots=True)
class Document:
    """The result of a command: ``data`` for programs, ``parts`` for people."""

    data: object
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Stream(Generic[T]):
    """A result of any length: items that are written as they come, and what is known behind the last.

    For programs it is one object: the list of the items under ``name``, and then the data of the end.
    """

    name: str
    items: Iterable[T]
    cells: Mapping[Column, Callable[[T], str]]
    end: Callable[[], tuple[Mapping[str, object], tuple[Part, ...]]]  #: Called once the items have ended.
    empty: str = "nothing"


class Writer(Protocol):
    """Writes documents, streams and failures."""

    def write(self, document: Document) -> None:
        """Write a command's result to the standard output."""

    def write_stream(self, stream: Stream[T]) -> None:
        """Write a result of any length to the standard output; of an error in its midst the beginning stays there."""

    def fail(self, text: str, exit_code: int) -> None:
        """Write why a command ends with this exit code to the standard error."""


class JsonWriter:
    """Writes each document as one JSON value."""

    def __init__(self, output: TextIO, errors: TextIO) -> None:
        self._output = output
        self._errors = errors

    def write(self, document: Document) -> None:
        """Write the document's data."""
        self._output.write(_json(plain(document.data)) + "\n")
        self._output.flush()

    def write_stream(self, stream: Stream[T]) -> None:
        """Write what `write` would write of all of it, item by item."""
        self._output.write(f"{{\n  {_json(stream.name)}: [")
        separator = "\n"
        for item in stream.items:
            self._output.write(separator + indent(_json(plain(item)), "    "))
            separator = ",\n"
        self._output.write("]" if separator == "\n" else "\n  ]")
        data, _ = stream.end()
        for name, value in data.items():
            self._output.write(f",\n  {_json(name)}: " + indent(_json(plain(value)), "  ").lstrip())
        self._output.write("\n}\n")
        self._output.flush()

    def fail(self, text: str, exit_code: int) -> None:
        """Write ``{"error": ..., "exit_code": ...}`` on one line."""
        self._errors.write(json.dumps({"error": one_line(text), "exit_code": exit_code}, ensure_ascii=False) + "\n")


class _Console(Console):
    """A console that lets a closed output be known, where rich would end the program with 1."""

    def on_broken_pipe(self) -> None:
        """Go on with the BrokenPipeError that is being handled."""
        raise


class TextWriter:
    """Writes tables for a terminal of any width, or plain columns into a pipe or file."""

    def __init__(self, output: TextIO, errors: TextIO, *, width: int | None = None) -> None:
        self._console = _Console(file=output, highlight=False, markup=False, emoji=False, width=width)
        self._errors = errors

    def write(self, document: Document) -> None:
        """Write the document's parts, an empty line between them."""
        for index, part in enumerate(document.parts):
            if index:
                self._console.print()
            self._show(part) if self._console.is_terminal else self._print_plain(part)
        # An output that is full is to be noticed while the command can still say so.
        self._console.file.flush()

    def write_stream(self, stream: Stream[T]) -> None:
        """Write its table in portions, laid out by the first; one that fits into a portion is written as ever."""
        items = iter(stream.items)
        portion = list(islice(items, _PORTION))
        tables: list[Part] = []
        if len(portion) < _PORTION:
            tables.append(table_of(portion, stream.cells, empty=stream.empty))
        else:
            self._write_portions(stream, portion, items)
        _, parts = stream.end()
        self.write(Document(None, (*tables, *parts)))

    def _write_portions(self, stream: Stream[T], portion: list[T], items: Iterator[T]) -> None:
        columns, widths = tuple(stream.cells), list[int]()
        while portion:
            table = table_of(portion, stream.cells)
            if self._console.is_terminal:
                self._show(table)
            else:
                # No column is left out, since a later portion may have something in it.
                rows = [tuple(map(printable, row)) for row in table.rows]
                if not widths:
                    rows.insert(0, tuple(column.name for column in columns))
                    widths = _widths(rows)
                self._write_lines(_aligned(rows, _alignment(columns), widths))
            self._console.file.flush()
            portion = list(islice(items, _PORTION))
        self._console.print()

    def _write_lines(self, lines: Iterable[str]) -> None:
        self._console.file.write("".join(f"{line}\n" for line in lines))

    def fail(self, text: str, exit_code: int) -> None:
        """Write one line that begins with the program's name."""
        self._errors.write(f"bookwarden: {one_line(text)}\n")

    def _show(self, part: Part) -> None:
        if isinstance(part, Note):
            self._console.print(Text(printable(part.text)))
            return
        if part.title:
            self._console.print(Text(printable(part.title), style="bold"))
        if isinstance(part, Facts):
            self._console.print(_facts_grid(part))
        elif part.rows:
            self._console.print(_rich_table(part, self._console.width))
        else:
            self._console.print(Text(part.empty))

    def _print_plain(self, part: Part) -> None:
        lines = [printable(part.text)] if isinstance(part, Note) else _plain_lines(part)
        self._write_lines(lines)


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def plain(value: object) -> Any:
    """Convert a value to types of JSON: enums by value, bytes as text where they are text, sets in order."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, Set):
        return [plain(item) for item in sorted(value)]
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="backslashreplace")
    return str(value) if isinstance(value, PurePath) else value


def one_line(text: str) -> str:
    """Put text of any origin on one line without control characters."""
    return printable(" ".join(text.split()))


def printable(text: str) -> str:
    """Escape control characters, by which a message or a name could control the terminal."""
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text)


def moment(milliseconds: int | None) -> str:
    """Render a time in milliseconds since the epoch as UTC; a dash if it is not set."""
    if not milliseconds or milliseconds < 0:
        return "-"
    try:
        when = datetime.fromtimestamp(milliseconds / 1000, timezone.utc)
    except (OverflowError, ValueError, OSError):
        return str(milliseconds)
    return when.strftime("%Y-%m-%d %H:%M:%SZ")


def size_cell(size: int | None) -> str:
    """Format a number of bytes, which may be negative; a dash if it is not known."""
    if size is None:
        return "-"
    return f"-{size_text(-size)}" if size < 0 else size_text(size)


def counted(number: int, singular: str, plural: str | None = None) -> str:
    """Format a number of things."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def _rich_table(table: Table, width: int) -> RichTable:
    drawn = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    columns, rows = _filled(table)
    rows = _with_short_topics(columns, rows, width)
    for column in columns:
        drawn.add_column(
            column.name, justify="right" if column.right else "left", no_wrap=column.whole, overflow="fold"
        )
    for row in rows:
        drawn.add_row(*(_styled(cell) for cell in row))
    return drawn


def _with_short_topics(columns: Sequence[Column], rows: list[tuple[str, ...]], width: int) -> list[tuple[str, ...]]:
    """Shorten the names of topics where the rows are wider than the terminal: as `pulsar-admin` takes them, then more.

    Last the namespace is left out where it is the same in all rows.
    """
    topics = [index for index, column in enumerate(columns) if column.topics]
    for shorten in (short_topics, local_topics):
        if sum(_widths([tuple(column.name for column in columns), *rows])) + len(_GAP) * len(columns) <= width:
            break
        for index in topics:
            names = shorten([row[index] for row in rows])
            rows = [(*row[:index], name, *row[index + 1 :]) for row, name in zip(rows, names, strict=True)]
    return rows


def short_topics(names: Sequence[str]) -> list[str]:
    """Leave out what `pulsar-admin` adds itself: that topics are persistent, and the namespace public/default."""
    return [name.removeprefix("persistent://").removeprefix("public/default/") for name in names]


def local_topics(names: Sequence[str]) -> list[str]:
    """Leave out the namespace too, unless the names have several."""
    namespaces = {name.rpartition("/")[0] for name in names} - {""}
    return [name.rpartition("/")[2] for name in names] if len(namespaces) == 1 else list(names)


def _filled(table: Table) -> tuple[list[Column], list[tuple[str, ...]]]:
    """Omit the empty columns."""
    kept = [index for index in range(len(table.columns)) if any(row[index] for row in table.rows)]
    return [table.columns[index] for index in kept], [tuple(row[index] for index in kept) for row in table.rows]


def _facts_grid(facts: Facts) -> RichTable:
    grid = RichTable.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for name, value in facts.pairs:
        grid.add_row(Text(name), _styled(value))
    return grid


def _styled(cell: str) -> Text:
    return Text(printable(cell), style=_STYLES.get(cell, ""))


def _plain_lines(part: Table | Facts) -> Iterable[str]:
    if part.title:
        yield printable(part.title)
    if isinstance(part, Facts):
        pairs = [tuple(map(printable, pair)) for pair in part.pairs]
        yield from _aligned(pairs, (str.ljust, str.ljust), _widths(pairs))
    elif part.rows:
        columns, rows = _filled(part)
        heading = tuple(column.name for column in columns)
        cells = [heading, *(tuple(map(printable, row)) for row in rows)]
        yield from _aligned(cells, _alignment(columns), _widths(cells))
    else:
        yield part.empty


def _alignment(columns: Sequence[Column]) -> list[Callable[[str, int], str]]:
    return [str.rjust if column.right else str.ljust for column in columns]


def _widths(rows: Sequence[tuple[str, ...]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def _aligned(
    rows: Iterable[tuple[str, ...]], align: Sequence[Callable[[str, int], str]], widths: Sequence[int]
) -> Iterable[str]:
    for row in rows:
        cells = (place(cell, width) for place, cell, width in zip(align, row, widths, strict=True))
        yield _GAP.join(cells).rstrip()


def findings_table(findings: Iterable[Finding]) -> Table:
    """Make a table with a row for each finding, in their order."""
    columns = (
        Column("check"),
        Column("verdict"),
        Column("what was seen", whole=False),
        Column("what to do", whole=False),
    )
    return Table(columns, tuple((one.check, one.verdict.value, one.seen, one.advice) for one in findings))
