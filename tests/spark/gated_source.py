"""A stream of numbers whose planning or reading hangs for as long as a file is there."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

# Spark's workers cannot import the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@dataclass(frozen=True)
class Gates:
    """A folder in which a test says how many numbers there are, and what hangs."""

    folder: Path

    def offer(self, numbers: int) -> None:
        """Let the stream have so many numbers."""
        new = self.folder / "numbers.new"
        new.write_text(str(numbers))
        new.replace(self.folder / "numbers")

    def offered(self) -> int:
        return int((self.folder / "numbers").read_text())

    def shut(self, name: str) -> None:
        """Let whatever passes the gate of this name hang from now on."""
        (self.folder / name).touch()

    def open(self, name: str) -> None:
        """Let those who hang go on."""
        (self.folder / name).unlink(missing_ok=True)

    def pass_through(self, name: str) -> None:
        """Wait for as long as the gate is shut; whether somebody waited shows in `reached`."""
        gate = self.folder / name
        while gate.exists():
            (self.folder / f"{name}-reached").touch()
            time.sleep(0.05)

    def reached(self, name: str) -> bool:
        return (self.folder / f"{name}-reached").exists()


@dataclass(frozen=True)
class Numbers(InputPartition):
    """The numbers of one batch."""

    first: int
    end: int


class NumberReader(DataSourceStreamReader):
    """Reads half of a batch before the gate `read`, and the rest behind it."""

    def __init__(self, folder: str) -> None:
        self._gates = Gates(Path(folder))

    def initialOffset(self) -> dict[str, int]:
        return {"next": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        self._gates.pass_through("plan")
        return {"next": self._gates.offered()}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Numbers]:
        return [Numbers(start["next"], end["next"])]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        if not isinstance(partition, Numbers):
            return
        middle = (partition.first + partition.end) // 2
        for number in range(partition.first, partition.end):
            if number == middle:
                self._gates.pass_through("read")
            yield (number,)


class NumberSource(DataSource):
    """The numbers below a limit that grows."""

    @classmethod
    def name(cls) -> str:
        return "gated_numbers"

    def schema(self) -> str:
        return "number long"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return NumberReader(self.options["folder"])


def register(spark: SparkSession) -> None:
    """Make the format `gated_numbers` known to a session."""
    spark.dataSource.register(NumberSource)
