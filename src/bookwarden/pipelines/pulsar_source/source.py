"""The data source `pulsar` for Spark: batch and streaming reads."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from bookwarden.pipelines.pulsar_source.columns import SCHEMA
from bookwarden.pipelines.pulsar_source.limits import Cap
from bookwarden.pipelines.pulsar_source.offsets import dump_offsets, load_offsets
from bookwarden.pipelines.pulsar_source.options import SourceOptions, parse_options
from bookwarden.pipelines.pulsar_source.planner import BatchPlanner
from bookwarden.pipelines.pulsar_source.reading import PartitionEntries, ReadRules, TaskShare, read_entries


class PulsarDataSource(DataSource):
    """Messages of Pulsar topics; docs/source.md lists the options and columns."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._parsed = parse_options(dict(options))

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "pulsar"

    def schema(self) -> StructType:
        """Return the columns, which are the same for every topic."""
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        return PulsarBatchReader(self._parsed)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a streaming query."""
        return PulsarStreamReader(self._parsed)


class PulsarBatchReader(DataSourceReader):
    """Reads the entries between two boundaries; nothing is acknowledged."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Plan one task for each partition that has entries between the boundaries."""
        plan = BatchPlanner(self._options).plan_batch()
        parts = [PartitionEntries(topic, ranges, self._options.is_control(topic)) for topic, ranges in plan.items()]
        return [TaskShare((part,), self._options.connection) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one partition."""
        # Spark makes an empty partition of its own when none is planned.
        return read_entries(partition, _rules(self._options)) if isinstance(partition, TaskShare) else iter(())


class PulsarStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads the batches of a streaming query."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._planner: BatchPlanner | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Executors get a copy for read(); connections and threads stay here.
        return {**self.__dict__, "_planner": None}

    def initialOffset(self) -> dict[str, str]:
        """Return where a query without a checkpoint starts."""
        return dump_offsets(self._plans().initial())

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of the options; Spark has no limit of entries, so they go as files."""
        if self._options.max_rows is not None and self._options.max_entries is None:
            return ReadMaxRows(self._options.max_rows)
        if self._options.max_entries is not None:
            return ReadMaxFiles(self._options.max_entries)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:
        """Return the end of the next batch, and acknowledge the finished ones, whose end is `start`."""
        return dump_offsets(self._plans().latest(load_offsets(start), self._cap(limit)))

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        """Plan a task for each partition that has entries in the batch; partitions with few share one."""
        plan = self._plans().partitions(load_offsets(start), load_offsets(end))
        parts = {topic: PartitionEntries(topic, plan[topic], self._options.is_control(topic)) for topic in plan}
        return [
            TaskShare(tuple(parts[topic] for topic in topics), self._options.connection)
            for topics in self._plans().together(plan)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one partition."""
        return read_entries(partition, _rules(self._options)) if isinstance(partition, TaskShare) else iter(())

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the ends at the entries present now."""
        self._plans().freeze()

    def _plans(self) -> BatchPlanner:
        if self._planner is None:
            self._planner = BatchPlanner(self._options)
        return self._planner

    def _cap(self, limit: ReadLimit) -> Cap:
        if isinstance(limit, ReadMaxRows):
            return Cap(rows=limit.max_rows)
        if isinstance(limit, ReadMaxFiles):
            return Cap(rows=self._options.max_rows, entries=limit.max_files)
        return Cap()


def register(spark: SparkSession) -> None:
    """Make the format `pulsar` known to a session."""
    spark.dataSource.register(PulsarDataSource)


def _rules(options: SourceOptions) -> ReadRules:
    return ReadRules(
        options.max_unreachable_s,
        options.rows_per_arrow_batch,
        options.fail_on_data_loss,
        chunked=options.chunked,
        unreadable=options.unreadable,
        lost_ledger_s=options.lost_ledger_s,
        largest=options.max_uncompressed_bytes,
    )
