"""`bookwarden metadata-migration verify`: all nodes of a migrated store compared with the source."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Final

import click

from bookwarden.cli.shell.invocation import Invocation, max_reads_option, pass_invocation, show_option
from bookwarden.cli.shell.output import Column, Document, Facts, Note, Part, Table, counted, moment
from bookwarden.cli.shell.steps import node_progress
from bookwarden.errors import ConfigError, FileError
from bookwarden.exit_codes import NOT_DONE
from bookwarden.metadata_migration.comparison import (
    NUMBER_COLUMNS,
    TEXT_COLUMNS,
    ZOOKEEPERS_OWN,
    Comparison,
    Difference,
    DifferenceClass,
    DifferenceSink,
    Report,
    VersionRule,
    copy_of,
    row_of,
)
from bookwarden.metastore.following.flag import MIGRATION_PATH, read_flag
from bookwarden.metastore.paths import parent_of
from bookwarden.metastore.wrappers import throttled
from bookwarden.metrics.findings import of_comparison
from bookwarden.metrics.names import Program
from bookwarden.metrics.runs import published_run
from bookwarden.wiring.metadata_migration import MigrationStores

_EPILOG = """\b
Examples:
  bookwarden metadata-migration verify                    the store in the settings, and where it was moved
  bookwarden metadata-migration verify --source zk:zk1:2181,zk2:2181 --target oxia://oxia1:6648/default
  bookwarden metadata-migration verify --differences differences.parquet -o json

\b
What each class means and what to do: docs/metadata-migration-verify.md."""


@click.command(epilog=_EPILOG)
@click.option("--source", metavar="URL", help="The store that was copied. Default: metadata_store.urls.")
@click.option("--target", metavar="URL", help="The copy. Default: what the source's migration flag names.")
@click.option(
    "--versions",
    type=click.Choice([rule.value for rule in VersionRule]),
    default=VersionRule.AUTO.value,
    show_default=True,
    help="Whether another version is a difference; auto: unless the target gives all nodes versions of its own.",
)
@click.option(
    "--differences",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write all differences to this .parquet or .jsonl file.",
)
@show_option("Differences of each class to list.")
@max_reads_option("from each of both stores in a second. Default: no limit but that of the settings.")
@pass_invocation
def verify(
    invocation: Invocation,
    source: str | None,
    target: str | None,
    versions: str,
    file: Path | None,
    show: int,
    limit: float | None,
) -> None:
    """Compare all nodes of a migrated store with the source.

    Reads only. Ends with 0 where the target has every node of the source as it was, and with 22 where it does not;
    what was written to the target after the switch is counted, and is no fault.
    """
    with published_run(invocation.settings.metrics, Program.METADATA_VERIFY) as run:
        with difference_file(file) as sink, MigrationStores(invocation.settings, source) as stores:
            read = throttled(stores.source, limit)
            flag = read_flag(read)
            switched_ms = flag.changed_ms if flag is not None and flag.is_completed else None
            target_url = copy_of(flag, stores.source_url, target)
            copied = throttled(stores.open(target_url), limit)
            passed_over = (ZOOKEEPERS_OWN, parent_of(MIGRATION_PATH))
            with node_progress(invocation, f"comparing {stores.source_url} with {target_url}", "compared") as tell:
                begin = time.monotonic()
                report = Comparison(
                    *(read, copied),
                    passed_over=passed_over,
                    switched_ms=switched_ms,
                    versions=VersionRule(versions),
                    keep=show,
                    sink=sink,
                    progress=tell,
                ).run()
                seconds = time.monotonic() - begin
        data = {
            "source": stores.source_url,
            "target": target_url,
            "phase": None if flag is None else flag.phase,
            "switched_ms": switched_ms,
            "seconds": round(seconds, 3),
            "clean": not report.faults,
            "compared": report.compared,
            "equal": report.equal,
            "ephemeral": report.ephemeral,
            "versions_kept": report.versions_kept,
            "other_versions": report.other_versions,
            "counts": {kind.value: count for kind, count in report.counts.items()},
            "first": [row_of(one) for found in report.first.values() for one in found],
            "differences_file": None if file is None else str(file),
        }
        run.show(of_comparison(report))
        invocation.write(Document(data, _describe(data, report)))
        click.get_current_context().exit(NOT_DONE if report.faults else 0)


def _describe(data: Mapping[str, Any], report: Report) -> tuple[Part, ...]:
    """Describe the result for people; ``data`` is what programs get."""
    phase, switched_ms, shown = data["phase"] or "not begun", data["switched_ms"], [*chain(*report.first.values())]
    pairs = (
        ("source", data["source"]),
        ("target", data["target"]),
        ("migration", f"{phase} at {moment(switched_ms)}" if switched_ms else phase),
        ("nodes compared", f"{report.compared:,} in {data['seconds']:,.1f} s"),
        ("equal", f"{report.equal:,}"),
        ("ephemeral", f"{report.ephemeral:,}, passed over"),
    )
    counts = tuple((kind.value, f"{count:,}") for kind, count in report.counts.items())
    parts: list[Part] = [Facts(pairs), Table((Column("difference"), Column("nodes", right=True)), counts)]
    if shown:
        columns = (Column("difference"), Column("path", whole=False), Column("how", whole=False))
        rows = tuple((one.kind.value, one.path, describe_difference(one)) for one in shown)
        parts.append(Table(columns, rows, title="The first of each"))
    return (*parts, *(Note(text) for text in _notes(report, data["differences_file"])))


def _notes(report: Report, differences: str | None) -> Iterator[str]:
    if report.versions_kept is False:
        yield (
            f"The target has versions of its own ({counted(report.other_versions, 'node')} with another one than the "
            "source): a version from before the switch is void. --versions required counts them as differences."
        )
    if report.counts[DifferenceClass.LATE_SOURCE]:
        yield "A process still writes to the source: find the one that has not followed to the target."
    if differences is not None:
        yield f"All differences are in {differences}."
    yield (
        f"{counted(report.faults, 'node')} not as in the source."
        if report.faults
        else "The target has every node of the source as it was."
    )


def describe_difference(one: Difference) -> str:
    """Describe in a few words how a node differs."""
    source, target = one.source, one.target
    if source is None or target is None:
        side = source or target
        return f"{side.size:,} bytes, written {moment(side.modified_ms)}" if side else ""
    if one.first_byte is not None:
        return f"{source.size:,} and {target.size:,} bytes, differ from byte {one.first_byte:,}"
    return (
        f"version {source.version} and {target.version}, "
        f"written again {source.modifications:,} and {target.modifications:,} times"
    )


_SUFFIXES: Final = (".parquet", ".jsonl")
_ROWS_IN_GROUP: Final = 50_000


@contextmanager
def difference_file(path: Path | None) -> Iterator[DifferenceSink]:
    """Return a writer of differences to a file, which appears once it has all of them; None writes none.

    It then replaces a file of that name. Raises ConfigError for another suffix than .parquet and .jsonl.
    """
    if path is None:
        yield lambda _: None
        return
    if path.suffix not in _SUFFIXES:
        raise ConfigError(f"{path} is no file for differences: its name must end with {' or '.join(_SUFFIXES)}")
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        rows: _JsonLines | _ParquetRows = (
            _JsonLines(unfinished) if path.suffix == ".jsonl" else _ParquetRows(unfinished)
        )
        try:
            yield lambda differences: rows.write([row_of(one) for one in differences])
        finally:
            rows.close()
        unfinished.replace(path)
    except OSError as error:
        raise FileError(f"the differences cannot be written to {path}: {error.strerror or error}") from error
    finally:
        unfinished.unlink(missing_ok=True)


class _JsonLines:
    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        self._file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)

    def close(self) -> None:
        self._file.close()


class _ParquetRows:
    """Rows in large groups, since a small group is larger than its rows."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        texts = (pa.field(name, pa.string(), nullable=False) for name in TEXT_COLUMNS)
        numbers = (pa.field(name, pa.int64()) for name in NUMBER_COLUMNS)
        self._schema = pa.schema([*texts, *numbers])
        self._table_of = pa.Table.from_pylist
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd")
        self._waiting: list[dict[str, Any]] = []

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        self._waiting += rows
        if len(self._waiting) >= _ROWS_IN_GROUP:
            self._flush()

    def close(self) -> None:
        try:
            self._flush()
        finally:
            self._writer.close()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(self._table_of(self._waiting, schema=self._schema))
            self._waiting = []
