"""The command of phase two."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

import click

from bookwarden.cli.preflight import require_spark, unless_away
from bookwarden.cli.shell.invocation import Invocation, pass_invocation
from bookwarden.cli.shell.output import Cells, Column, Document, Note, Stream, counted
from bookwarden.config import Settings
from bookwarden.errors import BookwardenError
from bookwarden.ledgers.outcomes import OutcomeRow
from bookwarden.ledgers.received import ReceivedMark, decoded
from bookwarden.preflight import require_sweeping
from bookwarden.wiring.deletion import SweepContext
from bookwarden.wiring.metadata import MetadataContext
from bookwarden.wiring.pulsar import TopicsContext

if TYPE_CHECKING:
    from bookwarden.pipelines.sweep.driver import SweepEnd

_CHUNK = 10_000
_EPILOG = """\b
Examples:
  bookwarden sweep --dry-run    what would be done, one line for each mark
  bookwarden sweep --once       drain what is due, and end
  bookwarden sweep              go on until SIGTERM"""


@click.command(epilog=_EPILOG)
@click.option("--once", is_flag=True, help="End when everything that was due at the start is done.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done; needs no Spark.")
@pass_invocation
def sweep(invocation: Invocation, once: bool, dry_run: bool) -> None:
    """Phase two: verify the marks, delete the ledgers.

    Starts Spark in this process; streaming/ledger_deletion.py is the same job for spark-submit. SIGTERM finishes
    the running batch and ends it.
    """
    settings = invocation.settings
    if not dry_run:
        require_spark()
        # It may wait for a store or a broker.
        invocation.set_up_logging(logging.WARNING)
    with MetadataContext(settings) as metadata:
        unless_away(partial(require_sweeping, settings, metadata), waits=not (once or dry_run))
    if dry_run:
        invocation.write_stream(_described(_preview(settings)))
        return
    # From here on it may run for months: each batch is logged.
    invocation.set_up_logging(logging.INFO)
    end = _sweep(settings, once)
    summary = _summary(end.counts) or "nothing was due"
    text = f"Everything that was due is done: {summary}." if end.drained else f"Stopped: {summary}."
    invocation.write(Document({"drained": end.drained, "counts": dict(end.counts)}, (Note(text),)))
    if once and not end.drained:
        raise BookwardenError("stopped before everything that was due was done: start the sweep again")


def _sweep(settings: Settings, once: bool) -> SweepEnd:
    from bookwarden.pipelines.session import running_session
    from bookwarden.pipelines.sweep.driver import run_sweep

    with running_session(settings, local=True) as spark:
        return run_sweep(spark, settings, once=once)


def _preview(settings: Settings) -> Iterator[OutcomeRow]:
    dry = settings.model_copy(update={"sweep": settings.sweep.model_copy(update={"dry_run": True})})
    with SweepContext(dry) as context, TopicsContext(dry, context.admin) as topics:
        waiting = (decoded(received, context.decode) for received in topics.waiting())
        for chunk in _chunks(waiting):
            for rows in context.sweep.process(chunk, "dry run"):
                yield from rows


def _chunks(received: Iterable[ReceivedMark]) -> Iterator[list[ReceivedMark]]:
    source = iter(received)
    while chunk := list(itertools.islice(source, _CHUNK)):
        yield chunk


def _described(rows: Iterable[OutcomeRow]) -> Stream[OutcomeRow]:
    """Make the result of a dry run: a line for each mark as it is looked at, since there may be millions."""
    cells: Cells[OutcomeRow] = {
        Column("ledger", right=True): lambda row: "-" if row.ledger_id is None else str(row.ledger_id),
        Column("outcome"): lambda row: row.outcome.value,
        Column("retries", right=True): lambda row: str(row.attempts),
        Column("holder", whole=False): lambda row: row.holder or "-",
        Column("reason", whole=False): lambda row: row.reason or "-",
    }
    counts = Counter[str]()

    def counting() -> Iterator[OutcomeRow]:
        for row in rows:
            counts[row.outcome.value] += 1
            yield row

    def end() -> tuple[Mapping[str, object], tuple[Note, ...]]:
        summary = _summary(counts)
        text = (
            f"Dry run over {counted(counts.total(), 'mark')}{': ' + summary if summary else ''}. Nothing was changed."
        )
        return {"counts": dict(counts)}, (Note(text),)

    return Stream("outcomes", counting(), cells, end, empty="Nothing is in flight.")


def _summary(counts: Counter[str]) -> str:
    return ", ".join(f"{number:,} {outcome}" for outcome, number in sorted(counts.items()))
