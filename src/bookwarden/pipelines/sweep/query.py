"""The sweep as a Structured Streaming query: deletion topics in, ledgers gone, outcome rows out.

A batch is one Spark job. Each task takes the messages of a topic partition, or of several that have few, and carries
them out in its Python worker. A partition holds all marks of a holder, because the holder is the
message key, so no two tasks work on the same one. Where the metadata store takes one writer only, one task does it all.
The outcome rows come back to the driver, which writes them as one file. Only then is the batch finished, and the
subscription acknowledged.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark import SparkContext, TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bookwarden.clusters.pulsar.messages.switch_events import SWITCH_TOPIC
from bookwarden.config import MetadataStoreSettings, Settings
from bookwarden.deletion.phase_two.isolation import may_be_of_a_message
from bookwarden.deletion.phase_two.sweeping import Sweep
from bookwarden.errors import BookwardenError, MalformedMarkError, RegistryChangedError, SparkError
from bookwarden.ledgers.pending_deletion import PendingDeletion
from bookwarden.ledgers.received import (
    LARGEST_ENTRY,
    Decode,
    ReceivedMark,
    believed_properties,
    decode_mark,
    is_partition_of,
)
from bookwarden.ledgers.switch_event import SwitchEvent
from bookwarden.metastore.deadline import retry_while_unavailable
from bookwarden.pipelines.metrics import SweepMetrics
from bookwarden.pipelines.pulsar_source import PulsarDataSource, options_of
from bookwarden.pipelines.pulsar_source.columns import UNREAD
from bookwarden.pipelines.streams.outcome_table import (
    SPARK_SCHEMA,
    OutcomeTable,
    beat_batch,
    outcome_batch,
    repeat_batch,
    why_repeated,
)
from bookwarden.pipelines.streams.supervisor import Pulse
from bookwarden.pipelines.streams.task_beats import padding, with_beats, without_beats
from bookwarden.pipelines.workers import PerProcess, collect_seldom, end_with_daemon
from bookwarden.signs_of_life import SIGNS_OF_LIFE
from bookwarden.wire.switch_event import decode_switch_event
from bookwarden.wiring.deletion import cluster_to_sweep, policy_of, sweep_of
from bookwarden.wiring.journal import driver_file_of
from bookwarden.wiring.pulsar import connection_of
from bookwarden.wiring.stores import has_one_writer

logger = logging.getLogger(__name__)
# Properties that Spark sets for every job of a streaming query, and its tasks.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
# Our own: the epoch of the registry of bookie clusters that a try of a batch goes by.
_EPOCH = "bookwarden.registryEpoch"


def received_marks(batch: pa.RecordBatch, decode: Decode, retry_topic: str) -> Iterator[ReceivedMark]:
    """Yield a mark for each row, or a switch directive where it is of their topic.

    `decode` takes topic, payload and schema version. The properties of phase two are believed of messages of
    `retry_topic` alone. A row that is neither has the reason in `problem`, one on which the decoder itself failed the
    error in `failure`.
    """
    columns = {name: batch.column(name) for name in batch.schema.names}
    published = _milliseconds(columns["publish_time"])
    happened = _milliseconds(columns["event_time"])
    rows = zip(
        columns["topic"].to_pylist(),
        columns["partition"].to_pylist(),
        _message_ids(columns["message_id"]),
        columns["key"].to_pylist(),
        columns["value"].to_pylist(),
        columns["properties"].to_pylist(),
        published,
        happened,
        columns["schema_version"].to_pylist(),
        strict=True,
    )
    for topic, partition, place, key, value, properties, published_at, event_time, version in rows:
        (ledger, entry, index, size), payload, written = place, value or b"", dict(properties or ())
        # Of a row without a message the source writes that property, and of others anybody.
        unread = written.pop(UNREAD, "")
        mark: PendingDeletion | None = None
        directive: SwitchEvent | None = None
        problem: str | None = f"not read: {unread}"
        failure: Exception | None = None
        if size and is_partition_of(topic, SWITCH_TOPIC):
            directive, problem = _directive(payload)
        elif size:
            mark, problem, failure = _decoded(decode, topic, payload, version)
        yield ReceivedMark(
            topic=topic,
            message_id=f"{ledger}:{entry}:{partition}" + (f":{index}" if index >= 0 else ""),
            key=key,
            payload=payload,
            properties=believed_properties(written, topic, retry_topic),
            published_at=published_at,
            event_time=event_time,
            schema_version=version,
            mark=mark,
            problem=problem,
            failure=failure,
            directive=directive,
        )


def _decoded(
    decode: Decode, topic: str, payload: bytes, version: bytes | None
) -> tuple[PendingDeletion | None, str | None, Exception | None]:
    try:
        return (*decode_mark(decode, topic, payload, version), None)
    except Exception as error:
        if not may_be_of_a_message(error):
            raise
        return None, None, error


def _directive(payload: bytes) -> tuple[SwitchEvent | None, str | None]:
    try:
        return decode_switch_event(payload), None
    except MalformedMarkError as error:
        return None, f"no switch directive: {error}"


def _message_ids(column: Any) -> Iterator[tuple[int, int, int, int]]:
    names = ("ledger_id", "entry_id", "batch_index", "batch_size")
    return zip(*(column.field(name).to_pylist() for name in names), strict=True)


def _milliseconds(column: Any) -> list[Any]:
    milliseconds: list[Any] = column.cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64()).to_pylist()
    return milliseconds


class _SweepParts(NamedTuple):
    """The sweep of this process, whose cluster stays open, and the decoder of what it reads."""

    sweep: Sweep
    decode: Decode


_parts: PerProcess[_SweepParts] = PerProcess()


@dataclass(frozen=True)
class SweepTask:
    """The function that an executor runs on its share of a batch; picklable.

    ``one_of_many``: others run at the same time, so that it may not write where the metadata store takes one writer.
    ``driver_file`` is the driver's in the journal's folder, empty where none need be there. ``once`` is as for
    `LedgerDeletion.start`.
    """

    settings: Settings
    one_of_many: bool
    driver_file: str = ""
    once: bool = False

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Carry out all marks of the share, and yield their outcome rows."""
        collect_seldom()
        end_with_daemon()
        signs = _Signs()
        stall, beat = self.settings.sweep.stall_seconds, beat_batch(padding())
        yield from with_beats(self._steps(batches, signs), signs, beat, stall=stall)

    def _steps(self, batches: Iterator[pa.RecordBatch], signs: _Signs) -> Iterator[pa.RecordBatch]:
        parts: _SweepParts | None = None
        received: list[ReceivedMark] = []
        for batch in batches:
            if batch.num_rows:
                parts = parts or _parts_of(self)
                received.extend(received_marks(batch, parts.decode, self.settings.deletion.retry_topic))
        signs.reading = False
        if parts is None:
            return
        batch = _running_batch()
        tell = partial(outcome_batch, batch=batch.number)
        try:
            yield from parts.sweep.carry_out(received, f"{batch.query}/{batch.number}", tell, epoch=batch.epoch)
        except RegistryChangedError as error:
            # An error would end the query, and be tried again by Spark first.
            yield repeat_batch(str(error))


class _Signs:
    """Signs of life of a task: the source, which has limits of its own, may wait for a lost ledger much longer."""

    def __init__(self) -> None:
        self.reading = True
        self._looks = 0

    def __call__(self) -> int:
        self._looks += self.reading
        return SIGNS_OF_LIFE.count + self._looks


class _Batch(NamedTuple):
    query: str
    number: int
    epoch: int  #: Of the registry of bookie clusters.


def _running_batch() -> _Batch:
    task = TaskContext.get()
    query, number, epoch = [task.getLocalProperty(name) if task else None for name in (_QUERY_ID, _BATCH_ID, _EPOCH)]
    if query is None or number is None or epoch is None:
        raise SparkError("the sweep runs as a streaming query alone: without a batch its journal entries have no run")
    return _Batch(query, int(number), int(epoch))


def _parts_of(task: SweepTask) -> _SweepParts:
    def make() -> _SweepParts:
        cluster = cluster_to_sweep(task.settings, one_of_many=task.one_of_many)
        with cluster.closed_on_error():
            sweep = sweep_of(cluster, driver_file=task.driver_file, once=task.once)
            return _SweepParts(sweep, cluster.deletion_topics.decode)

    return _parts.get((task.settings.model_dump_json(), task.one_of_many, task.driver_file, task.once), make)


def divided_among_tasks(received: DataFrame, *, one_writer: bool) -> DataFrame:
    """Move all marks into one task where the metadata store takes only one writer at a time.

    Spark runs that task once, on any machine: a lock in the store would itself be a write.
    """
    return received.coalesce(1) if one_writer else received


def most_cores(context: SparkContext) -> int | None:
    """Return the largest number of cores that Spark may ever run tasks on; None where nothing limits it.

    `defaultParallelism` is that of the executors that have registered so far: others follow a moment later, with a
    worker that joins, and by dynamic allocation.
    """
    master, conf = str(context.master), context.getConf()
    if master.startswith("spark://"):
        most = conf.get("spark.cores.max")
        return None if most is None else int(most)
    is_local = master == "local" or master.startswith("local[")
    return context.defaultParallelism if is_local and conf.get("spark.default.parallelism") is None else None


def share_of_task(settings: Settings, cores: int | None, *, one_writer: bool) -> Settings:
    """Divide the sweep's limits on a metadata store among the tasks that may run at once, on ``cores`` at most."""
    store = settings.metadata_store
    if store.max_requests_per_second is None or one_writer:
        return settings
    # A task has a partition of the deletion topic or of its retry topic.
    partitions = 2 * settings.deletion.two_phase_deletion_ledger_deletion_parallelism
    tasks = partitions if cores is None else min(cores, partitions)
    share = store.model_copy(update={"max_requests_per_second": store.max_requests_per_second / tasks})
    return settings.model_copy(update={"metadata_store": share})


def remove_cut_short(checkpoint: str) -> None:
    """Remove what the first batch left in a checkpoint on this machine when it could not be written, as on a full disk.

    Spark takes any file there for batches of another query, and would refuse the checkpoint for ever.
    """
    is_file_url = checkpoint.startswith("file:")
    if "://" in checkpoint and not is_file_url:
        return
    folder = "/" + checkpoint.removeprefix("file:").lstrip("/") if is_file_url else checkpoint
    offsets = Path(folder) / "offsets"
    if not offsets.is_dir():
        return
    left = list(offsets.iterdir())
    if all(path.name.startswith(".") for path in left):
        for path in left:
            path.unlink()


def outcomes_location(settings: Settings) -> str:
    """Return the place of the outcome table; a dry run has one of its own."""
    return settings.sweep.outcomes + ("-dry-run" if settings.sweep.dry_run else "")


class LedgerDeletion:
    """Assembles and starts the query; `pulse` is the gate that each batch passes.

    ``epoch`` reads the epoch of the registry of bookie clusters; StoreError where it cannot. ``totals`` counts the
    outcomes of all batches that were finished, by outcome; ``on_swept`` is called with their number after each batch.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        pulse: Pulse,
        metrics: SweepMetrics | None = None,
        *,
        epoch: Callable[[], int],
        writers: Writers | None = None,
        on_swept: Callable[[int], object] | None = None,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._pulse = pulse
        self._metrics = metrics
        self._epoch = epoch
        self._writers = writers or Writers(settings.metadata_store)
        self._on_swept = on_swept
        self._with_one_writer = False
        self._table = OutcomeTable(outcomes_location(settings), keep_days=settings.sweep.outcomes_retention_days)
        self._driver_file = driver_file_of(settings.sweep)
        self.totals: Counter[str] = Counter()
        spark.dataSource.register(PulsarDataSource)

    def start(self, *, once: bool = False) -> StreamingQuery:
        """Start the query; with `once` it ends when everything that was due at its start is done.

        With `once` it fails with SharedDoubtError where another one would wait for a doubt about very many marks.
        """
        sweep = self._settings.sweep
        # The task is part of the query, so that it is made and sent to the JVM once, not for each batch.
        self._writers.look()
        one_writer = self._with_one_writer = self._writers.must_be_one
        shown = "" if self._driver_file is None else self._driver_file.write()
        share = share_of_task(self._settings, most_cores(self._spark.sparkContext), one_writer=one_writer)
        task = SweepTask(share, one_of_many=not one_writer, driver_file=shown, once=once)
        if one_writer:
            logger.info("one task at a time deletes ledgers, since two could break this Oxia: see docs/oxia.md")
        received = divided_among_tasks(self._pending_deletions(), one_writer=one_writer)
        outcomes = received.mapInArrow(task, SPARK_SCHEMA)
        writer = outcomes.writeStream.queryName("ledger-deletion").foreachBatch(self._batch)
        if not sweep.dry_run:
            remove_cut_short(sweep.checkpoint)
            # That of a dry run is temporary: the next real run must not take its batches for finished.
            writer = writer.option("checkpointLocation", sweep.checkpoint)
        if once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{sweep.trigger_seconds} seconds").start()

    def close(self) -> None:
        """Remove what it keeps while it runs; its queries have ended."""
        if self._driver_file is not None:
            self._driver_file.remove()

    @property
    def is_outdated(self) -> bool:
        """True once the metadata moved, since the last start, to a store with another limit of writers."""
        return self._writers.must_be_one != self._with_one_writer

    def _pending_deletions(self) -> DataFrame:
        deletion, sweep = self._settings.deletion, self._settings.sweep
        options = {
            **options_of(connection_of(self._settings.pulsar)),
            "topics": f"{deletion.topic},{deletion.retry_topic},{SWITCH_TOPIC}",
            "delayedTopics": deletion.retry_topic,
            "controlTopics": SWITCH_TOPIC,
            "maxDelaySeconds": str(policy_of(self._settings.deletion).longest_wait),
            "subscription": deletion.subscription,
            "acknowledge": str(not sweep.dry_run).lower(),
            "startingOffsets": "subscription",
            # No pending deletion is so large, nor in chunks; what cannot be read must not block the others, and is
            # reported.
            "chunkedMessages": "empty",
            "unreadableMessages": "empty",
            "lostLedgerSeconds": str(sweep.lost_ledger_seconds),
            "maxUncompressedBytes": str(LARGEST_ENTRY),
            "maxEntriesPerTrigger": str(sweep.max_entries_per_batch),
            "maxRowsPerTrigger": str(sweep.max_rows_per_batch),
            "minPollMs": str(sweep.min_poll_milliseconds),
            "maxUnreachableSeconds": str(sweep.max_unreachable_seconds),
        }
        return self._spark.readStream.format("pulsar").options(**options).load()

    def _batch(self, batch: DataFrame, number: int) -> None:
        self._pulse.enter(number)
        finished = False
        try:
            started = time.monotonic()
            query = self._spark.sparkContext.getLocalProperty(_QUERY_ID) or "query"
            outcomes = self._carried_out(batch, number)
            self._table.write(outcomes, query, number)
            self._account(outcomes, time.monotonic() - started)
            finished = True
        finally:
            self._pulse.leave(number, finished=finished)

    def _carried_out(self, batch: DataFrame, number: int) -> pa.Table:
        """Run the batch's job by the registry as it is now, and once more if that is changed meanwhile."""
        last = -1
        while True:
            epoch = retry_while_unavailable(self._epoch, self._settings.sweep.max_unreachable_seconds)
            if epoch <= last:
                raise RegistryChangedError(
                    f"tasks of batch {number} see a later epoch than {epoch}, and the driver not"
                )
            self._spark.sparkContext.setLocalProperty(_EPOCH, str(epoch))
            # This runs the job, and must stay the only thing that does: each run of it is a sweep.
            outcomes = without_beats(batch, "outcome").toArrow()
            why = why_repeated(outcomes)
            if why is None:
                return outcomes
            logger.info("batch %d is carried out again: %s", number, why)
            last = epoch

    def _account(self, outcomes: pa.Table, seconds: float) -> None:
        grouped = outcomes.group_by(["outcome", "ledger_type"]).aggregate([([], "count_all"), ("ledger_bytes", "sum")])
        counts = [
            (row["outcome"], row["ledger_type"], row["count_all"], row["ledger_bytes_sum"] or 0)
            for row in grouped.to_pylist()
        ]
        # An outcome has a row for each type of ledger.
        of_batch: Counter[str] = Counter()
        for outcome, _, number, _ in counts:
            of_batch[outcome] += number
        self.totals.update(of_batch)
        if counts:
            shown = ", ".join(f"{number} {outcome}" for outcome, number in sorted(of_batch.items()))
            logger.info("swept %d pending deletions in %.2f s: %s", outcomes.num_rows, seconds, shown)
            if self._on_swept is not None:
                self._on_swept(self.totals.total())
        if self._metrics is not None:
            self._metrics.count_batch(counts, seconds, dry_run=self._settings.sweep.dry_run)


class Writers:
    """Decides whether one task alone may delete, by the settings and by what is known besides.

    ``moved_to`` names the store that BookKeeper's metadata was moved to, None as long as it was not. ``registered``
    reads which stores registered bookie clusters have of their own; a BookwardenError says that this is not known.
    """

    def __init__(
        self,
        settings: MetadataStoreSettings,
        moved_to: Callable[[], str | None] = lambda: None,
        registered: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._settings = settings
        self._moved_to = moved_to
        self._read_registered = registered
        self._registered: Sequence[str] | None = ()

    def look(self) -> None:
        """Read the stores of registered bookie clusters; while they are not known one of them may be an Oxia."""
        try:
            self._registered = self._read_registered()
        except BookwardenError as error:
            logger.warning("one task at a time deletes ledgers, since it is not known where all of them are: %s", error)
            self._registered = None

    @property
    def must_be_one(self) -> bool:
        """Whether one task alone may delete, by the latest look, and by where the metadata is now."""
        moved_to = self._moved_to()
        return self._registered is None or has_one_writer(
            self._settings, [*self._registered, *([moved_to] if moved_to else [])]
        )
