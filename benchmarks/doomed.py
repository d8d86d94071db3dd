"""Ledgers that a benchmark makes in order to delete them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from benchmarks.population import metadata_of
from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.pulsar.metadata.paths import managed_ledger_path
from bookwarden.ledgers.kinds import ManagedLedgerHolder

ROOT = "/ledgers"
FIRST_ID = 100_000_000
NAME_PREFIX = "public/default/persistent/doomed-"
_LEDGERS_PER_TOPIC = 100


@dataclass(frozen=True, slots=True)
class DoomedLedgers:
    """``count`` closed ledgers from the id ``first`` on, a hundred of each topic, which take turns."""

    first: int
    count: int

    @property
    def topics(self) -> int:
        """How many topics have them."""
        return max(self.count // _LEDGERS_PER_TOPIC, 1)

    def nodes(self) -> Iterator[tuple[str, bytes]]:
        """Make path and value of each."""
        values = [metadata_of(_holder(topic)) for topic in range(self.topics)]
        for number in range(self.count):
            yield ledger_path(ROOT, self.first + number), values[number % self.topics]

    def holder_nodes(self) -> Iterator[tuple[str, bytes]]:
        """Make path and value of each topic's node, which lists none of them."""
        for topic in range(self.topics):
            yield managed_ledger_path(_holder(topic).name), b""

    def steps(self, size: int) -> Iterator[list[tuple[int, ManagedLedgerHolder]]]:
        """Give id and holder of each, each holder's together as the sweep takes them, ``size`` at a time."""
        ledgers = self._by_topic()
        while step := list(islice(ledgers, size)):
            yield step

    def _by_topic(self) -> Iterator[tuple[int, ManagedLedgerHolder]]:
        for topic in range(self.topics):
            holder = _holder(topic)
            for ledger_id in range(self.first + topic, self.first + self.count, self.topics):
                yield ledger_id, holder


def _holder(topic: int) -> ManagedLedgerHolder:
    return ManagedLedgerHolder(f"{NAME_PREFIX}{topic:06d}")
