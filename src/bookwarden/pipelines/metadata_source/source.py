"""The data source `pulsar-metadata` for Spark: streaming reads."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from bookwarden.config import Settings, load_settings
from bookwarden.errors import ConfigError
from bookwarden.pipelines.metadata_source.columns import SCHEMA
from bookwarden.pipelines.metadata_source.planner import Offset, PlanLimits, Planner
from bookwarden.pipelines.metadata_source.reading import read_share

_LIMITS = {
    "maxNodesPerTrigger": "nodes",
    "tickSeconds": "tick_s",
    "compareSeconds": "compare_s",
    "compareHours": "compare_hours",
    "maxUnreachableSeconds": "unreachable_s",
}


class MetadataDataSource(DataSource):
    """Nodes of Pulsar's metadata and the ledgers they name; docs/follow.md lists the options and columns.

    ``settings`` are those of a bound source; else they are read from the file of the option ``config``.
    """

    settings: ClassVar[Settings | None] = None

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        given = {name.lower(): value for name, value in dict(options).items()}
        self._settings = self.settings or load_settings(given.get("config"))
        self._limits = _limits_of(given)

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "pulsar-metadata"

    def schema(self) -> StructType:
        """Return the columns."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a streaming query."""
        return MetadataStreamReader(self._settings, self._limits)


class MetadataStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads the batches of a streaming query."""

    def __init__(self, settings: Settings, limits: PlanLimits) -> None:
        self._settings = settings
        self._limits = limits
        self._planner: Planner | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Executors get a copy for read(); sessions and threads stay here.
        return {**self.__dict__, "_planner": None}

    def initialOffset(self) -> dict[str, str]:
        """Return where a query without a checkpoint starts."""
        return self._plans().initial().dump()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return none: the planner has limits of its own."""
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:
        """Return the end of the next batch."""
        return self._plans().latest(Offset.load(start)).dump()

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        """Plan the tasks of the batch."""
        return self._plans().partitions(Offset.load(start), Offset.load(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return read_share(partition, self._settings)

    def prepareForTriggerAvailableNow(self) -> None:
        """End with one comparison."""
        self._plans().freeze()

    def _plans(self) -> Planner:
        if self._planner is None:
            self._planner = Planner(self._settings, self._limits)
        return self._planner


def bound_source(settings: Settings) -> type[MetadataDataSource]:
    """Make a source of these settings, so that no secret of theirs is among its options, which Spark shows."""
    # Made here, it is known to no module: Spark's workers get it with its settings.
    return type("BoundMetadataSource", (MetadataDataSource,), {"settings": settings})


def _limits_of(options: dict[str, str]) -> PlanLimits:
    values: dict[str, Any] = {}
    for name, field in _LIMITS.items():
        text = options.get(name.lower())
        if text is None:
            continue
        try:
            values[field] = int(text) if field == "nodes" else float(text)
        except ValueError:
            raise ConfigError(f"option {name} of pulsar-metadata is {text!r}, and should be a number") from None
    return PlanLimits(**values)
