"""The source `pulsar-metadata` without Spark: its batches planned and read one after another, in this process."""

from __future__ import annotations

import pyarrow as pa

from bookwarden.config import Settings
from bookwarden.follow.table import NodeNow
from bookwarden.pipelines.metadata_source.columns import ended_in, nodes_in
from bookwarden.pipelines.metadata_source.planner import PlanLimits, Planner
from bookwarden.pipelines.metadata_source.reading import read_share


class StepByStep:
    """A query of one process: plans, reads and finishes batch after batch."""

    def __init__(self, settings: Settings, limits: PlanLimits | None = None) -> None:
        self.now_s = 0.0
        self.settings = settings
        self.planner = Planner(settings, limits or PlanLimits(tick_s=5), clock=lambda: self.now_s)
        self.at = self.planner.initial()

    def batch(self) -> list[object] | None:
        """Carry out the next batch; its rows, ends of comparisons as numbers; None if there is none."""
        end = self.planner.latest(self.at)
        if end == self.at:
            return None
        shares = self.planner.partitions(self.at, end)
        self.at = end
        tables = [pa.Table.from_batches([batch]) for share in shares for batch in read_share(share, self.settings)]
        return [row for table in tables for row in nodes_in(table)] + [
            number for table in tables if (number := ended_in(table)) is not None
        ]

    def drained(self) -> list[object]:
        rows: list[object] = []
        while (found := self.batch()) is not None:
            rows += found
        return rows

    def paths(self) -> list[str]:
        return sorted(row.path for row in self.drained() if isinstance(row, NodeNow))
