"""Size of a batch: limits of entries or rows, shared fairly over the partitions."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

from bookwarden.clusters.pulsar.entries import TopicEntries
from bookwarden.clusters.pulsar.rest.topic_positions import TopicPositions
from bookwarden.errors import FormatError, PulsarError
from bookwarden.ledgers.managed_ledger import Position
from bookwarden.pipelines.pulsar_source.offsets import Offsets
from bookwarden.pipelines.pulsar_source.ranges import advance, count_between, fair_shares, ranges_between
from bookwarden.wire.entry import batch_size

_LOG = logging.getLogger(__name__)

_SIZE_HOLDS_S = 10.0
_TIMEOUT_S = 1.0
# A producer may claim any number; no batch of a client has more.
_MOST_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class Cap:
    """The most a batch may take, over all partitions; None is no limit.

    Rows are approximate: an entry is never split, and its rows are estimated from entries at both ends of the range.
    """

    rows: int | None = None
    entries: int | None = None


class EntrySizes:
    """Estimates of the rows in an entry of each partition, from the metadata of two entries now and then."""

    def __init__(self, entries: TopicEntries) -> None:
        self._entries = entries
        self._known: dict[str, tuple[float, float]] = {}

    def last_known(self, topic: str) -> float:
        """Return the last estimate of the rows per entry; 1 where there is none."""
        return self._known.get(topic, (1.0, 0.0))[0]

    def rows_per_entry(self, positions: TopicPositions, start: Position, end: Position) -> float:
        """Estimate the rows per entry behind `start` up to `end`."""
        size, at = self._known.get(positions.topic, (1.0, 0.0))
        now = time.monotonic()
        if at and now - at < _SIZE_HOLDS_S:
            return size
        ranges = ranges_between(positions, start, end)
        if not ranges:
            return size
        samples = {Position(ranges[0].ledger_id, ranges[0].first), Position(ranges[-1].ledger_id, ranges[-1].last)}
        try:
            rows = [self._rows_of(positions.topic, sample) for sample in samples]
            size = sum(rows) / len(rows)
        except (PulsarError, FormatError) as error:
            # An estimate is no reason to fail, nor to ask again at each plan.
            _LOG.info("%s: the rows of an entry are still taken for %.0f: %s", positions.topic, size, error)
        self._known[positions.topic] = (size, now)
        return size

    def _rows_of(self, topic: str, position: Position) -> int:
        with self._entries.open(topic, position, _TIMEOUT_S) as stream:
            entry = stream.next(_TIMEOUT_S)
        return 1 if entry is None or entry.metadata is None else min(max(batch_size(entry.metadata), 1), _MOST_ROWS)


def capped_ends(
    positions: Mapping[str, TopicPositions], start: Offsets, ends: Offsets, cap: Cap, sizes: EntrySizes, turn: int
) -> Offsets:
    """Reduce the ends of the partitions, so that a batch stays within its limits."""
    capped = dict(ends)
    if cap.entries is not None:
        available = {topic: count_between(found, start[topic], capped[topic]) for topic, found in positions.items()}
        shares = fair_shares(available, cap.entries, turn)
        capped = {
            topic: _nearer(found, start[topic], capped[topic], shares[topic]) for topic, found in positions.items()
        }
    if cap.rows is not None:
        rows = {topic: sizes.rows_per_entry(found, start[topic], capped[topic]) for topic, found in positions.items()}
        available = {
            topic: round(count_between(found, start[topic], capped[topic]) * rows[topic])
            for topic, found in positions.items()
        }
        shares = fair_shares(available, cap.rows, turn)
        entries = {topic: max(1, round(share / rows[topic])) if share else 0 for topic, share in shares.items()}
        capped = {
            topic: _nearer(found, start[topic], capped[topic], entries[topic]) for topic, found in positions.items()
        }
    return capped


def _nearer(positions: TopicPositions, start: Position, end: Position, entries: int) -> Position:
    return end if count_between(positions, start, end) <= entries else advance(positions, start, end, entries)


def shares_of_tasks(rows: Mapping[str, float], enough: float) -> list[list[str]]:
    """Group topics, in order, until a task has `enough` rows: even a task without rows costs time."""
    shares: list[list[str]] = []
    taken = 0.0
    for topic, count in rows.items():
        if not shares or taken + count > enough:
            shares.append([])
            taken = 0.0
        shares[-1].append(topic)
        taken += count
    return shares
