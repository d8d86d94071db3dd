"""The command of phase two."""

from __future__ import annotations

import itertools
import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import click

from bookwarden.cli.shell.invocation import Invocation, pass_invocation
from bookwarden.cli.shell.output import Cells, Column, Document, Note, Stream, counted, moment
from bookwarden.cli.shell.steps import SaidProgress
from bookwarden.config import Settings
from bookwarden.errors import BookwardenError, PulsarError
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.outcomes import OutcomeRow
from bookwarden.ledgers.received import ReceivedMark, decoded
from bookwarden.preflight import STARTING_SPARK, require_folder, require_spark, require_sweeping, unless_away
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.deletion import cluster_to_sweep, sweep_of
from bookwarden.wiring.deletion_topics import TwoPhaseTopics
from bookwarden.wiring.roots import roots_proof_of

if TYPE_CHECKING:
    from bookwarden.pipelines.sweep.driver import SweepEnd

logger = logging.getLogger(__name__)
_CHUNK = 10_000
# What is due so soon is waited for.
_SOON_S = 5.0
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
        if not settings.sweep.dry_run:
            require_folder("sweep.checkpoint", settings.sweep.checkpoint)
            require_folder("sweep.journal", settings.sweep.journal)
    with Cluster(settings) as cluster:
        unless_away(partial(require_sweeping, cluster), waits=not (once or dry_run))
        found = _look(cluster) if once and not dry_run else 0
    if dry_run:
        invocation.write_stream(_described(_preview(settings)))
        return
    if isinstance(found, _Waiting):
        invocation.write(_end_document(Counter(), drained=True, waiting=found))
        return
    # From here on it may run for months: each batch is logged.
    invocation.set_up_logging(logging.INFO)
    end = _sweep(invocation, once, found)
    waiting = _look_behind(settings) if once and end.drained else None
    invocation.write(_end_document(end.counts, drained=end.drained, waiting=waiting))
    if once and not end.drained:
        raise BookwardenError("stopped before everything that was due was done: start the sweep again")


class _Waiting(NamedTuple):
    """The marks that wait for their delay; ``first_ms`` is when the first is due, in milliseconds since the epoch."""

    marks: int
    first_ms: int | None


def _look(cluster: Cluster) -> _Waiting | int:
    """Return what waits, where nothing is due and so no Spark is needed; else about how many marks are in flight.

    Raises as the sweep where roots and BookKeeper do not belong together.
    """
    topics = cluster.deletion_topics
    waiting = _what_waits(cluster.settings, topics)
    if waiting is None:
        return _in_flight(topics)
    for note in roots_proof_of(cluster).require():
        logger.warning("%s", note)
    return waiting


def _in_flight(topics: TwoPhaseTopics) -> int:
    """Estimate the marks in flight, for the time that is left; 0 where they cannot be seen."""
    try:
        return topics.in_flight().messages
    except BookwardenError as error:
        logger.warning("how many marks are in flight cannot be seen: %s", error)
        return 0


def _look_behind(settings: Settings) -> _Waiting | None:
    """Return what waits when all that was due is done; where that cannot be seen any more, the sweep has ended well."""
    try:
        with Cluster(settings) as cluster:
            return _what_waits(settings, cluster.deletion_topics)
    except BookwardenError as error:
        logger.warning("what waits for its delay cannot be seen: %s", error)
        return None


def _what_waits(settings: Settings, topics: TwoPhaseTopics) -> _Waiting | None:
    retry_topic = TopicName.parse(settings.deletion.retry_topic).base
    behind = {partition: found.entries for partition, found in topics.entries().items() if found.entries}
    is_more = any(TopicName.parse(partition).base != retry_topic for partition in behind)
    if is_more or sum(behind.values()) > _CHUNK or _has_directives(topics):
        return None
    due = [received.due_at for received in topics.waiting()]
    if due and min(due) <= (time.time() + _SOON_S) * 1000:
        return None
    return _Waiting(len(due), min(due, default=None))


def _has_directives(topics: TwoPhaseTopics) -> bool:
    """Return whether there are switch directives to read; the sweep itself says what is wrong with their topic."""
    try:
        return topics.directives() > 0
    except PulsarError:
        return True


def _end_document(counts: Counter[str], *, drained: bool, waiting: _Waiting | None) -> Document:
    summary = _summary(counts) or "nothing was due"
    if waiting is not None and waiting.marks:
        waits = "1 mark waits" if waiting.marks == 1 else f"{waiting.marks:,} marks wait, the first"
        summary += f"; {waits} until {moment(waiting.first_ms)}"
    text = f"Everything that was due is done: {summary}." if drained else f"Stopped: {summary}."
    data = {"drained": drained, "counts": dict(counts)}
    if waiting is not None:
        data |= {"waiting": waiting.marks, "next_due": waiting.first_ms}
    return Document(data, (Note(text),))


def _sweep(invocation: Invocation, once: bool, due: int) -> SweepEnd:
    from bookwarden.pipelines.session import QUICK_JVM, running_session
    from bookwarden.pipelines.sweep.driver import run_sweep

    settings = invocation.settings
    progress = SaidProgress(invocation, "marks", about=True)
    invocation.say(STARTING_SPARK)
    defaults = QUICK_JVM if once else None
    with running_session(settings, local=True, defaults=defaults, ends_soon=once) as spark:
        return run_sweep(spark, settings, once=once, on_swept=partial(progress.tell, total=due) if due else None)


def _preview(settings: Settings) -> Iterator[OutcomeRow]:
    dry = settings.model_copy(update={"sweep": settings.sweep.model_copy(update={"dry_run": True})})
    with cluster_to_sweep(dry) as cluster:
        sweep, topics = sweep_of(cluster), cluster.deletion_topics
        waiting = (decoded(received, topics.decode) for received in topics.waiting())
        for chunk in _chunks(waiting):
            for rows in sweep.process(chunk, "dry run"):
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
