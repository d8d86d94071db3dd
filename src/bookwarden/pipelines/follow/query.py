"""The query that follows Pulsar's metadata: nodes are read by Spark's workers, what they name is kept in the driver.

One table in the driver's memory takes 45,000 nodes a second, and Spark's own keyed state a sixth of that
(docs/follow.md). It is made durable at the end of each batch, before that counts as done; what a batch that is done
again brings is the present, and changes nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bookwarden.config import Settings
from bookwarden.follow.checking import CheckedDrop
from bookwarden.follow.following import DroppedLedgers, FollowTally
from bookwarden.follow.table import Changes, FollowedNodes
from bookwarden.ledgers.outcomes import OutcomeRow
from bookwarden.ledgers.pending_deletion import LedgerType
from bookwarden.pipelines.follow.metrics import FollowMetrics
from bookwarden.pipelines.follow.state import KeptState
from bookwarden.pipelines.metadata_source import bound_source
from bookwarden.pipelines.metadata_source.columns import ARROW, ended_in, nodes_in
from bookwarden.pipelines.metadata_source.planner import PlanLimits, Planner
from bookwarden.pipelines.metadata_source.reading import rows_of
from bookwarden.pipelines.streams.outcome_table import OutcomeTable, outcome_batch
from bookwarden.pipelines.streams.supervisor import BatchRefusedError, Pulse

logger = logging.getLogger(__name__)

# A start of the query replays nothing, so its batches go on behind those of former starts, under one name.
_TABLE_NAME = "follow"
_TICKS_IN_GRACE = 60
_MOST_TICK_S = 10.0
_AGAIN_S = 1.0


class FollowRecord:
    """The rows of looks and then the state, kept part by part; ``state`` is None in a dry run, which has none.

    ``beat`` gives a sign of life, since a batch may have very many parts.
    """

    def __init__(
        self, settings: Settings, nodes: FollowedNodes, state: KeptState | None, beat: Callable[[], None] = lambda: None
    ) -> None:
        self._table = OutcomeTable(outcomes_location(settings), keep_days=settings.follow.outcomes_retention_days)
        self._nodes = nodes
        self._state = state
        self._beat = beat
        self._next: int | None = None

    def keep(self, looks: Sequence[CheckedDrop]) -> None:
        """Write rows of these, and make what changed in the nodes since the last call durable.

        Raises StateTakenOverError, with nothing written, if another process writes the state now.
        """
        if self._state is not None:
            self._state.require_own()
        if looks:
            if self._next is None:
                self._next = self._table.next_batch(_TABLE_NAME)
            self._table.write(_rows(looks, self._next), _TABLE_NAME, self._next)
            self._next += 1
        if self._state is None:
            self._nodes.changes = Changes()
        else:
            self._state.keep(self._nodes)
        self._beat()


class ReferenceChanges:
    """Assembles and starts the query; `pulse` is the gate that each batch passes.

    ``totals`` counts what was looked at, by outcome. Without Spark it can `compare` once, and no more.
    """

    def __init__(
        self,
        spark: SparkSession | None,
        settings: Settings,
        pulse: Pulse,
        metrics: FollowMetrics,
        dropped: DroppedLedgers,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._pulse = pulse
        self._metrics = metrics
        self._dropped = dropped
        self.totals: Counter[str] = Counter()
        if spark is not None:
            spark.dataSource.register(bound_source(settings))

    def compare(self, ended: threading.Event) -> bool:
        """Compare the present with what was known, read in this process; return whether that came to its end.

        Raises StoreError where a root does not answer.
        """
        limits = PlanLimits(unreachable_s=self._settings.sweep.max_unreachable_seconds)
        with closing(Planner(self._settings, limits)) as planner:
            planner.freeze()
            at = planner.initial()
            while not ended.is_set():
                end = planner.latest(at)
                if end == at:
                    if not planner.is_silent:
                        return True
                    ended.wait(_AGAIN_S)
                    continue
                started, shares = time.monotonic(), planner.partitions(at, end)
                rows = [batch for share in shares for batch in rows_of(share, lambda: planner.cluster)]
                self._take(pa.Table.from_batches(rows, ARROW), started)
                at = end
        return False

    def start(self, *, once: bool = False) -> StreamingQuery:
        """Start the query; with `once` it ends when the present was compared with what was known."""
        assert self._spark is not None, "without Spark there is no query"
        follow = self._settings.follow
        options = {
            "tickSeconds": str(min(_MOST_TICK_S, max(1.0, follow.grace_seconds / _TICKS_IN_GRACE))),
            "compareHours": str(follow.compare_hours),
            "maxUnreachableSeconds": str(self._settings.sweep.max_unreachable_seconds),
        }
        rows = self._spark.readStream.format("pulsar-metadata").options(**options).load()
        # Without a checkpoint of Spark's: each start compares all nodes with what the state has.
        writer = rows.writeStream.queryName("reference-changes").foreachBatch(self._batch)
        if once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{follow.trigger_seconds} seconds").start()

    def finish_due(self) -> None:
        """Look at all that is due now, for a run that ends."""
        while self._dropped.has_due:
            self._settle(FollowTally(), time.monotonic())

    def _batch(self, batch: DataFrame, number: int) -> None:
        try:
            self._pulse.enter(number)
        except BatchRefusedError as refused:
            # Other than a sweep's it may count as done: the next start compares all nodes.
            logger.debug("%s", refused)
            return
        finished = False
        try:
            started = time.monotonic()
            self._take(batch.toArrow(), started)
            finished = True
        finally:
            self._pulse.leave(number, finished=finished)

    def _take(self, rows: pa.Table, started: float) -> None:
        tally = FollowTally()
        if rows.num_rows:
            self._dropped.take(nodes_in(rows), tally, ended_in(rows))
        self._settle(tally, started)

    def _settle(self, tally: FollowTally, started: float) -> None:
        self._dropped.settle(tally)
        seconds = time.monotonic() - started
        for outcome, count in tally.outcomes.items():
            self.totals[outcome.value] += count
        nodes = self._dropped.nodes
        self._metrics.count(tally, len(nodes), len(nodes.timers), seconds)
        if tally.nodes or tally.outcomes:
            outcomes = ", ".join(f"{count} {outcome.value}" for outcome, count in tally.outcomes.items())
            logger.info(
                "%d nodes read, %d ledgers dropped, %.2f s%s",
                tally.nodes,
                tally.seen_dropped,
                seconds,
                f"; looked at: {outcomes}" if outcomes else "",
            )


def outcomes_location(settings: Settings) -> str:
    """Return the place of the outcome table; a dry run has one of its own."""
    return settings.follow.outcomes + ("-dry-run" if settings.follow.dry_run else "")


def _rows(looks: Sequence[CheckedDrop], number: int) -> pa.Table:
    now_ms = int(time.time() * 1000)
    return pa.Table.from_batches([outcome_batch([_row(one, now_ms) for one in looks], number)])


def _row(one: CheckedDrop, now_ms: int) -> OutcomeRow:
    drop, ledger = one.drop, one.ledger
    metadata = None if ledger is None else ledger.metadata
    return OutcomeRow(
        ledger_id=drop.ledger_id,
        holder=drop.path if one.holder is None else str(one.holder),
        component="" if one.holder is None else one.holder.component.value,
        ledger_type=(LedgerType.LEDGER if drop.copy is None else LedgerType.OFFLOAD_LEDGER).value,
        outcome=one.outcome,
        reason=one.reason,
        attempts=0,
        marked_at=None,
        published_at=drop.at_ms,
        decided_at=now_ms,
        ledger_created_at=None if ledger is None or metadata is None else metadata.ctime_ms or ledger.created_ms,
        ledger_bytes=None if metadata is None else metadata.length,
        topic="",
        message="",
        bookie_cluster="" if ledger is None else ledger.bookie_cluster,
    )
