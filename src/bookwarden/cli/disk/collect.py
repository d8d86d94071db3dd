"""`bookwarden disk collect`: bookies free what was deleted now, one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final

import click

from bookwarden.cli.shell.invocation import Invocation, pass_invocation
from bookwarden.cli.shell.output import Cells, Column, Document, Note, Part, counted, size_cell, table_of
from bookwarden.errors import BookieError, NotFoundError
from bookwarden.exit_codes import SOME_FAILED
from bookwarden.ledgers.bookie_report import (
    BookieReport,
    Compactions,
    RegisteredBookie,
    compaction_problem,
    compactions_made,
    compactions_to_ask,
    state_text,
)
from bookwarden.wiring.bookkeeper import BookKeeper
from bookwarden.wiring.cluster import Cluster

_NO_UNDO: Final = "A ledger that a bookie has collected cannot be put back: `bookwarden undo` comes too late for it."
_EPILOG: Final = """\b
Examples:
  bookwarden disk collect --all                        what would be asked of which bookie
  bookwarden disk collect b1.example:3181 --execute
  bookwarden disk collect --all --major --execute      entry logs with little dead data too

\b
Exit codes: 0 planned, or all collected; 27 some bookies were not asked, or failed.
What a collection frees: docs/disk.md."""


@dataclass(frozen=True, slots=True)
class Collection:
    """The collection of one bookie, planned or done."""

    name: str  #: The bookie's id.
    is_read_only: bool  #: By its registration.
    before: BookieReport  #: What it told before.
    asked: Compactions  #: What it is asked for.
    answer: str = ""  #: Its own; "" where it was not asked.
    after: BookieReport | None = None  #: What it told then; None where it did not collect, or not as far as is known.
    error: str = ""  #: Why it did not, or why that is not known.

    @property
    def freed(self) -> int | None:
        """The bytes by which more of its disks is free; what was written meanwhile takes from that."""
        if self.after is None or self.after.free is None or self.before.free is None:
            return None
        return self.after.free - self.before.free


@click.command(epilog=_EPILOG)
@click.argument("bookies", metavar="[BOOKIE]...", nargs=-1)
@click.option("--all", "of_all", is_flag=True, help="All registered bookies.")
@click.option("--major", is_flag=True, help="Write entry logs with a half of live data again, too: it takes long.")
@click.option("--execute", is_flag=True, help="Have them collect; without it the command only says what it would ask.")
@pass_invocation
def collect(invocation: Invocation, bookies: tuple[str, ...], of_all: bool, major: bool, execute: bool) -> None:
    """Have bookies collect their garbage now.

    Bookies free the bytes of deleted ledgers at a garbage collection of their own, within hours. This asks the HTTP
    server of one after the other for one, and waits for its end.
    """
    if of_all == bool(bookies):
        raise click.UsageError("name bookies, or give --all")
    with Cluster(invocation.settings) as cluster:
        chosen = choose(cluster.bookkeeper.registered(), bookies)
        reports = cluster.bookkeeper.reports(chosen)
        done = [plan_of(bookie, reports[bookie.name], major=major) for bookie in chosen]
        try:
            if execute:
                for at, bookie in enumerate(chosen):
                    done[at] = _collected(invocation, cluster.bookkeeper, bookie, done[at], major=major)
        except KeyboardInterrupt as interrupt:
            invocation.write(describe(done, executed=execute, major=major))
            raise KeyboardInterrupt("interrupted; a bookie that was asked goes on by itself") from interrupt
    invocation.write(describe(done, executed=execute, major=major))
    click.get_current_context().exit(SOME_FAILED if execute and any(one.error for one in done) else 0)


def choose(registered: Sequence[RegisteredBookie], names: Iterable[str]) -> list[RegisteredBookie]:
    """Return the bookies of these ids, or all; NotFoundError for an id that is not registered."""
    by_name = {one.name: one for one in registered}
    wanted = list(dict.fromkeys(names))
    for name in wanted:
        if name not in by_name:
            known = ", ".join(by_name) or "none is"
            raise NotFoundError(f"bookie {name} is not registered: start it, or name one that is ({known})")
    return [by_name[name] for name in wanted] if wanted else list(registered)


def plan_of(bookie: RegisteredBookie, report: BookieReport, *, major: bool) -> Collection:
    """Plan the collection of a bookie by what it told."""
    asked = compactions_to_ask(report, major=major)
    return Collection(bookie.name, bookie.is_read_only, report, asked, error=report.error)


def _collected(
    invocation: Invocation, bookkeeper: BookKeeper, bookie: RegisteredBookie, plan: Collection, *, major: bool
) -> Collection:
    """Have one bookie collect, unless it told already why it cannot."""
    if plan.error:
        return plan
    done = plan
    try:
        with closing(bookkeeper.server_of(bookie)) as server:
            # Others may have taken hours since the plan.
            done = plan_of(bookie, server.report(), major=major)
            invocation.say(f"{bookie.name} collects ...")
            done = replace(done, answer=server.collect(done.asked))
            done = replace(done, after=server.report())
    except BookieError as error:
        invocation.say(f"{bookie.name}: {error}")
        return replace(done, error=str(error))
    invocation.say(f"{bookie.name} has collected")
    return done


def describe(done: Sequence[Collection], *, executed: bool, major: bool) -> Document:
    """Describe what was asked, or would be, and what came of it."""
    cells: Cells[Collection] = {
        Column("bookie"): lambda one: one.name,
        Column("state"): lambda one: state_text(one.is_read_only),
        Column("HTTP server"): lambda one: one.before.url or "off",
        Column("asked to compact" if executed else "would compact"): lambda one: _asked(one, executed),
    }
    if executed:
        cells |= {
            Column("compaction"): lambda one: "-" if one.after is None else compactions_made(one.before, one.after),
            Column("free before", right=True): lambda one: size_cell(one.before.free),
            Column("free after", right=True): lambda one: size_cell(None if one.after is None else one.after.free),
            Column("freed", right=True): lambda one: size_cell(one.freed),
            Column("answer", whole=False): lambda one: one.answer or "-",
        }
    else:
        cells |= {
            Column("free", right=True): lambda one: size_cell(one.before.free),
            Column("of", right=True): lambda one: size_cell(one.before.total),
        }
    parts: list[Part] = [table_of(done, cells, empty="No bookie is registered.")]
    parts += [Note(f"{one.name}: {text}.") for one in done for text in _problems(one, major=major)]
    if not executed:
        parts += [Note(_NO_UNDO), Note("Nothing was asked; --execute does it.")]
    else:
        parts.append(Note(f"{counted(sum(one.after is not None for one in done), 'bookie')} collected."))
    return Document({"executed": executed, "bookies": [_data(one) for one in done]}, tuple(parts))


def _problems(one: Collection, *, major: bool) -> Iterable[str]:
    if one.error:
        yield one.error
    why = compaction_problem(one.before, None)
    if why:
        yield f"{why}, and --major is not asked for" if major and one.before.is_major_suspended else why
    if one.before.is_collecting:
        yield "it collects now because it was asked to; that is waited for first"


def _asked(one: Collection, executed: bool) -> str:
    if one.before.error or (executed and not one.answer):
        return "-"
    return str(one.asked)


def _data(one: Collection) -> dict[str, object]:
    return {
        "name": one.name,
        "is_read_only": one.is_read_only,
        "asked": one.asked._asdict(),
        "answer": one.answer,
        "freed": one.freed,
        "error": one.error,
        "before": one.before,
        "after": one.after,
    }
