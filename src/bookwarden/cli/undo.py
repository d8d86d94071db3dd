"""The command that puts deleted ledgers back."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import datetime, timezone
from itertools import chain, islice
from pathlib import Path
from typing import Final

import click

from bookwarden.cli.shell.invocation import Invocation, parse_ledger_id, pass_invocation, while_migrating_option
from bookwarden.cli.shell.output import Cells, Column, Document, Note, Part, Stream, Table, counted, moment
from bookwarden.cli.shell.questions import confirm, confirm_unproven, yes_option
from bookwarden.config import SweepSettings
from bookwarden.deletion.journal.reading import JournalDamage, SelectedDeletions, Selection, summarize_runs
from bookwarden.deletion.undo.rows import UndoOutcome, UndoRow
from bookwarden.errors import BookwardenError, NoBookieError, NotFoundError
from bookwarden.metrics.findings import of_undo
from bookwarden.metrics.names import Program
from bookwarden.metrics.runs import Run, published_run
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.deletion import UndoOperation
from bookwarden.wiring.journal import journal_reader_of

_EPILOG = """\b
Examples:
  bookwarden undo --list                       what was deleted, by run
  bookwarden undo --run RUN --dry-run          what could be restored now
  bookwarden undo --run RUN                    put it back
  bookwarden undo --ledger 4711 --ledger 4712
  bookwarden undo --since 2026-08-01T12:00:00  times are UTC

\b
How long it can be undone, and what to do next: docs/undo.md."""

_TIMES = ["%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d %H:%M:%SZ", "%Y-%m-%d"]
_UNKNOWN_BOOKKEEPER, _NO_BOOKIES = "unknown-bookkeeper", "no-bookies"
# Beyond this number, whole ledgers are only counted for people.
_SHOWN = 100
_DONE = (UndoOutcome.RESTORED, UndoOutcome.NOTHING_TO_DO, UndoOutcome.WOULD_RESTORE)
_NEXT = (
    "A ledger was restored, not what named it: its topic does not list it. The sweep keeps it, whatever marks of it "
    "are still in flight, until `bookwarden mark ledger ID`. Ask the bookies once more, by the same command, when each "
    "has collected its garbage. "
    "What to do next: docs/undo.md"
)


@click.command(epilog=_EPILOG)
@click.option("--list", "listing", is_flag=True, help="List the runs in the journal, the latest first.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Runs to list.")
@click.option("--run", metavar="RUN", help="What this run deleted; RUN is QUERY/BATCH, or QUERY for all its batches.")
@click.option("--ledger", "ledgers", type=parse_ledger_id, metavar="ID", multiple=True, help="May be repeated.")
@click.option("--since", type=click.DateTime(_TIMES), metavar="TIME", help="What was deleted from this time on, UTC.")
@click.option("--discard-partial", is_flag=True, help="Take that of ledgers away again that are lost only in part.")
@click.option("--dry-run", is_flag=True, help="Only ask the bookies what could be restored.")
@click.option(
    "--accept",
    "accepted",
    type=click.Choice([_UNKNOWN_BOOKKEEPER, _NO_BOOKIES]),
    multiple=True,
    help="Put back though it is not known whether it was deleted from this BookKeeper, or though no bookie is "
    "registered there. May be repeated.",
)
@while_migrating_option
@yes_option
@pass_invocation
def undo(
    invocation: Invocation,
    listing: bool,
    limit: int,
    run: str | None,
    ledgers: tuple[int, ...],
    since: datetime | None,
    discard_partial: bool,
    dry_run: bool,
    accepted: tuple[str, ...],
    yes: bool,
) -> None:
    """Put back what the sweep deleted.

    Reads the journal, puts the metadata of closed ledgers back byte for byte, and asks their bookies for the first
    and last entries. Bookies drop a deleted ledger at their next garbage collection: be quick.
    """
    selection = _selection(run, ledgers, since)
    if listing == (selection is not None):
        raise click.UsageError("give --list, or what to undo: --run, --ledger, --since")
    if selection is None:
        _list(invocation, limit)
        return
    with published_run(invocation.settings.metrics, Program.UNDO, publishes=not dry_run) as run_metrics:
        _undo(invocation, selection, run_metrics, accepted, discard_partial=discard_partial, dry_run=dry_run, yes=yes)


def _undo(
    invocation: Invocation,
    selection: Selection,
    run: Run,
    accepted: tuple[str, ...],
    *,
    discard_partial: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    damage: dict[JournalDamage, None] = {}
    with Cluster(invocation.settings) as cluster:
        operation = UndoOperation(cluster, discard_partial=discard_partial, damaged=damage.setdefault)
        undo, journal = operation.undo, operation.journal
        deletions = SelectedDeletions(journal, selection)
        if not len(deletions):
            raise NotFoundError(_not_found(invocation.settings.sweep, journal.hosts(), damage))
        unproven = dict(_unproven(operation, deletions, at_once=dry_run or _NO_BOOKIES in accepted))
        if not dry_run:
            for name, fact in unproven.items():
                confirm_unproven(fact, accepted=name in accepted, option=f"--accept {name}", yes=yes)
            confirm(f"Put back the metadata of {counted(len(deletions), 'ledger')}?", yes=yes)
        made = undo.preview(deletions) if dry_run else undo.run(deletions, accept_unknown=True)
        # Where nothing is settled nothing is written.
        answers = _Answers(next(made, []), made, invocation, len(deletions))
        unseen = [*_unseen(invocation.settings.sweep), *unproven.values()]
        rows: Iterable[UndoRow] = answers if invocation.output == "json" else _worth_a_look(answers)

        def end() -> tuple[Mapping[str, object], tuple[Part, ...]]:
            return _describe_end(operation.name, answers.counts, list(damage), unseen, dry_run=dry_run)

        invocation.write_stream(Stream("ledgers", rows, _CELLS, end, empty="None of them needs a look."))
    run.show(of_undo((outcome, answers.counts[outcome.value]) for outcome in UndoOutcome))
    if answers.error is not None:
        raise answers.error
    if answers.left and not dry_run:
        raise BookwardenError(
            f"{counted(answers.left, 'ledger')} of {answers.counts.total():,} cannot be called restored"
        )


class _Answers:
    """The rows of an undo, counted as they come; an error ends them, since those before it are to be shown."""

    def __init__(
        self, first: list[UndoRow], others: Iterator[list[UndoRow]], invocation: Invocation, ledgers: int
    ) -> None:
        self._batches = chain([first], others)
        self._invocation = invocation
        self._ledgers = ledgers
        self.counts: Counter[str] = Counter()
        self.error: BaseException | None = None

    def __iter__(self) -> Iterator[UndoRow]:
        try:
            for rows in self._batches:
                self.counts.update(row.outcome.value for row in rows)
                self._invocation.say(f"{self.counts.total():,} of {counted(self._ledgers, 'ledger')}")
                yield from rows
        except (BookwardenError, KeyboardInterrupt) as error:
            self.error = error

    @property
    def left(self) -> int:
        """How many of them are not done."""
        return self.counts.total() - sum(self.counts[outcome.value] for outcome in _DONE)


def _worth_a_look(rows: Iterable[UndoRow]) -> Iterator[UndoRow]:
    """Yield all rows where they are few, and of many those that are not done or not whole."""
    source = iter(rows)
    first = list(islice(source, _SHOWN + 1))
    if len(first) <= _SHOWN:
        yield from first
        return
    yield from (row for row in chain(first, source) if row.outcome not in _DONE or row.held < row.copies)


def _unproven(operation: UndoOperation, deletions: SelectedDeletions, *, at_once: bool) -> Iterator[tuple[str, str]]:
    """Yield what is not proven of the BookKeeper of the settings, each with the name to accept it by.

    Raises RefusedError or ConfigError where it is certainly another.
    """
    unknown, bookkeeper = operation.undo.count_unknown(deletions), operation.cluster.bookkeeper
    if unknown:
        operation.require_ledgers()
        yield (
            _UNKNOWN_BOOKKEEPER,
            f"{unknown:,} of {counted(len(deletions), 'ledger')} were journaled without the INSTANCEID of their "
            "BookKeeper, as 0.1.0 did, so it is not known whether they were deleted from the one that the settings name"
            f", {bookkeeper.place.ledgers_root} in {bookkeeper.place.url}",
        )
    try:
        bookies = bookkeeper.running_bookies
        (bookies.require if at_once else bookies.require_soon)()
    except NoBookieError as error:
        yield _NO_BOOKIES, f"{error}; undo would write into a copy, or bookies that are down cannot be asked"


def _selection(run: str | None, ledgers: tuple[int, ...], since: datetime | None) -> Selection | None:
    if run is None and not ledgers and since is None:
        return None
    since_ms = None if since is None else int(since.replace(tzinfo=timezone.utc).timestamp() * 1000)
    return Selection(run, frozenset(ledgers) or None, since_ms)


def _not_found(sweep: SweepSettings, hosts: Sequence[str], damage: dict[JournalDamage, None]) -> str:
    written = f"its files were written on {', '.join(hosts)}" if hosts else "it has no files"
    text = f"the journal {_place_of(sweep)} has no such deletion: `bookwarden undo --list` shows its runs; {written}"
    return "; ".join([text, *_unseen(sweep), *map(str, damage)])


def _place_of(sweep: SweepSettings) -> str:
    if "://" in sweep.journal:
        return sweep.journal
    return f"{Path(sweep.journal).absolute()} on {socket.gethostname()}"


def _unseen(sweep: SweepSettings) -> list[str]:
    """Describe what an undo on this machine cannot see."""
    if not sweep.journal_per_machine or "://" in sweep.journal:
        return []
    return [
        f"sweep.journal_per_machine is set, so this is the journal of {socket.gethostname()} alone: what other "
        "machines deleted was not looked for. Run the command on each, or copy their files into one folder"
    ]


def _list(invocation: Invocation, limit: int) -> None:
    damage: dict[JournalDamage, None] = {}
    absent = ""
    with closing(journal_reader_of(invocation.settings.sweep, damage.setdefault)) as reader:
        try:
            runs, hosts = summarize_runs(reader), reader.hosts()
        except NotFoundError as error:
            runs, hosts, absent = [], [], str(error)
    columns = (
        Column("run"),
        Column("first"),
        Column("last"),
        Column("ledgers", right=True),
        Column("bytes of metadata", right=True),
    )
    cells = tuple(
        (run.run, moment(run.first), moment(run.last), f"{run.ledgers:,}", f"{run.bytes:,}") for run in runs[:limit]
    )
    parts: list[Part] = [Table(columns, cells, empty="Nothing was deleted.")]
    if len(runs) > limit:
        parts.append(Note(f"{counted(len(runs) - limit, 'earlier run')} not shown: raise --limit."))
    unseen = [*_unseen(invocation.settings.sweep), *([absent] if absent else [])]
    parts += [Note(text) for text in [*map(str, damage), *unseen]]
    data = {"runs": runs[:limit], "runs_in_all": len(runs), "hosts": hosts, "unseen": unseen, "damaged": list(damage)}
    invocation.write(Document(data, tuple(parts)))


def _describe_end(
    name: str, counts: Counter[str], damage: list[JournalDamage], unseen: list[str], *, dry_run: bool
) -> tuple[Mapping[str, object], tuple[Part, ...]]:
    summary = ", ".join(f"{number:,} {outcome}" for outcome, number in sorted(counts.items())) or "nothing"
    parts: list[Part] = [Note(text) for text in [*map(str, damage), *unseen]]
    parts.append(Note(f"Dry run: {summary}. Nothing was changed." if dry_run else f"Undone: {summary}."))
    if counts[UndoOutcome.RESTORED.value] and not dry_run:
        parts.append(Note(_NEXT))
    data = {"undo": name, "dry_run": dry_run, "counts": dict(counts), "unseen": unseen, "damaged": damage}
    return data, tuple(parts)


def _copies(row: UndoRow) -> str:
    return f"{row.held} of {row.copies}" if row.copies else "-"


_CELLS: Final[Cells[UndoRow]] = {
    Column("ledger", right=True): lambda row: str(row.ledger_id),
    Column("outcome"): lambda row: row.outcome.value,
    Column("copies", right=True): _copies,
    Column("holder", whole=False): lambda row: row.holder or "-",
    Column("reason", whole=False): lambda row: row.reason or "-",
}
