"""Planner and reader through many plans over a scripted broker, from a seed.

Every message that can be delivered arrives exactly once and in the order of its partition, every entry that nobody can
read has exactly one row, a lost ledger has one for each batch that it lies in, nothing is stuck, and nothing is early.

``PLANS=100000 python -m pytest tests/unit/pipelines/test_pulsar_source_many_plans.py`` takes a good while; ``SEED=7``
begins with another life.
"""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.rest.topic_positions import TopicPositions, parse_positions
from bookwarden.errors import DataGoneError, PulsarUnavailableError
from bookwarden.ledgers.managed_ledger import Position
from bookwarden.pipelines.pulsar_source.columns import UNREAD
from bookwarden.pipelines.pulsar_source.delays import DelayScan, DelayWatch, Moment
from bookwarden.pipelines.pulsar_source.limits import Cap
from bookwarden.pipelines.pulsar_source.offsets import Boundary, Offsets
from bookwarden.pipelines.pulsar_source.options import SourceOptions
from bookwarden.pipelines.pulsar_source.planner import BatchPlanner
from bookwarden.pipelines.pulsar_source.ranges import EntryRange, count_between
from bookwarden.pipelines.pulsar_source.reading import PartitionEntries, ReadRules, TaskShare, read_entries
from unit.pipelines.scripted_topic import SUBSCRIPTION, UNREADABLE, Admin, Entries, Time, Topic

PLANS = int(os.environ.get("PLANS", "2000"))
SEED = int(os.environ.get("SEED", "1"))
PLANS_OF_A_LIFE = 40
MARKS, RETRIES, CONTROL = "persistent://t/n/marks", "persistent://t/n/retries", "persistent://t/n/control"
CONNECTION = PulsarConnection("pulsar://nowhere", "http://nowhere")
RETRY_DELAY, LONGEST_DELAY = 600.0, 900.0
UNREACHABLE, LOST_AFTER = 120.0, 3600.0
OPTIONS = SourceOptions(
    CONNECTION,
    topics=(MARKS, RETRIES, CONTROL),
    subscription=SUBSCRIPTION,
    acknowledge=False,
    starting=Boundary(name="earliest"),
    min_poll_s=0.0,
    max_unreachable_s=UNREACHABLE,
    delayed_topics=(RETRIES,),
    max_delay_s=LONGEST_DELAY,
    control_topics=(CONTROL,),
)
RULES = ReadRules(UNREACHABLE, 50, True, chunked="empty", unreadable="empty", lost_ledger_s=LOST_AFTER, largest=1 << 20)
# No broker sends these, so that they show nothing of whether it can read.
UNSENT = ("marker", "aborted", "filtered")
RANGE = re.compile(r"the \d+ entries (\d+:\d+) to (\d+:\d+) cannot be read")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Delays:
    """The product's look ahead, a thread's work done at each plan instead."""

    def __init__(self, entries: Entries, time: Time) -> None:
        self._entries = entries
        self._time = time
        self._scans: dict[str, DelayScan] = {}
        self.since: dict[str, float] = {}
        self.skew = time.skew
        # Its clock alone is asked.
        unused: Any = None
        self.now = DelayWatch(unused, 0, 0, clock=time.wall, steady=time.steady).now

    def due_end(
        self, positions: TopicPositions, start: Position, end: Position, moment: Moment | None = None
    ) -> Position:
        scan = self._scans.get(positions.topic)
        if scan is None:
            entries: Any = self._entries
            scan = DelayScan(positions.topic, entries, LONGEST_DELAY, self.now, self._time.sleep)
            self._scans[positions.topic] = scan
            self.since[positions.topic] = self._time.now
        scan.look_ahead(positions, start, end)
        if moment is not None:
            return scan.due_end_at(moment, UNREACHABLE)
        scan.read_ahead(lambda: not scan._times.is_read)
        return scan.due_end()


@dataclass
class Row:
    position: Position
    index: int
    size: int
    value: bytes | None
    unread: str
    read_at: float


class Life:
    """A query on a topic, a delayed one and a control topic, while their broker has its bad days."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.time = Time()
        skips = self.rng.random() < 0.3
        self.topics = {name: Topic(name, self.time, self.rng, auto_skip=skips) for name in OPTIONS.topics}
        self.entries = Entries(self.topics)
        self.admin = Admin(self.topics)
        self.rows: dict[str, list[Row]] = {name: [] for name in self.topics}
        self.planned_by: tuple[float, float] = (0.0, 0.0)
        self.ever_lost: set[tuple[str, int]] = set()
        self.plans = 0
        self.healed = False
        self.start: Offsets = {}
        self._new_planner()
        self.start = dict(self.planner.initial())

    def live(self, plans: int) -> None:
        """Live through so many plans of trouble, and then until everything is read."""
        while self.plans < plans:
            self.happen()
            self.run_batch()
        self.heal()
        self.healed = True
        self._new_planner()
        for _ in range(200):
            self.time.sleep(LONGEST_DELAY / 4)
            if not self.run_batch() and not any(map(self.unread, self.topics)):
                return
        raise AssertionError(f"stuck at {self.start}")

    def unread(self, name: str) -> int:
        positions = parse_positions(name, self.topics[name].stats())
        return count_between(positions, self.start[name], positions.latest)

    def happen(self) -> None:
        rng = self.rng
        for name, topic in self.topics.items():
            topic.refuses = rng.choice((0, 0, 0, 0.02, 0.3))
            topic.damages = rng.choice((0, 0, 0.1))
            topic.rest_is_mute = rng.random() < 0.2
            for _ in range(rng.choice((0, 0, 1, 2) if name == CONTROL else (0, 1, 5, 20))):
                self.publish(name, topic)
            if rng.random() < 0.3:
                topic.roll()
            if rng.random() < 0.3:
                topic.trim()
            if rng.random() < 0.08:
                self.lose(name, topic)
            if rng.random() < 0.1:
                self.find(topic)
        self.time.sleep(rng.choice((0.0, 0.5, 30.0, 300.0, 700.0)))
        if rng.random() < 0.05:
            self.time.skew = rng.choice((0.0, 0.0, -3600.0, 3600.0))
        if rng.random() < 0.1:
            self._new_planner()
        if rng.random() < 0.1:
            self.begin_elsewhere()

    def publish(self, name: str, topic: Topic) -> None:
        rng = self.rng
        kind = rng.choices(
            ("good", "chunked", "marker", "aborted", "filtered", *UNREADABLE), (60, 2, 3, 3, 2, *[1] * len(UNREADABLE))
        )[0]
        if kind == "chunked":
            topic.publish_chunked()
        else:
            delays = (RETRY_DELAY, RETRY_DELAY, RETRY_DELAY, 5.0, LONGEST_DELAY, None)
            topic.publish(kind, delay=rng.choice(delays) if name == RETRIES else None)

    def lose(self, name: str, topic: Topic) -> None:
        # The ledger that is written to is not lost for long: its broker closes it and begins another.
        ledger = self.rng.choice(topic.ledgers)
        if ledger is topic.ledgers[-1] and ledger.entries:
            topic.roll()
        if not ledger.entries:
            return
        self.ever_lost.add((name, ledger.ledger_id))
        what = self.rng.choice(("metadata", "bookies", "entry"))
        if what == "entry":
            self.rng.choice(ledger.entries).lost = True
        else:
            ledger.lost = what

    def find(self, topic: Topic) -> None:
        """Bring the bookies of a ledger back."""
        for ledger in topic.ledgers:
            if ledger.lost == "bookies":
                ledger.lost = ""

    def heal(self) -> None:
        self.time.skew = 0.0
        for topic in self.topics.values():
            topic.refuses = topic.damages = 0.0
            topic.rest_is_mute = False

    def begin_elsewhere(self) -> None:
        """Try a checkpoint that is not of these topics: it is refused before anything is read.

        Which ones are, and what becomes of one that is ahead, is what `check_start` knows.
        """
        for place in foreign_places(parse_positions(MARKS, self.topics[MARKS].stats())):
            other = BatchPlanner(OPTIONS, self.admin, Delays(self.entries, self.time))  # type: ignore[arg-type]
            with pytest.raises(DataGoneError):
                other.latest({**self.start, MARKS: place}, Cap(entries=10))

    def run_batch(self) -> bool:
        """Plan a batch, read it, perhaps more than once, and commit it; return whether there was one."""
        self.plans += 1
        cap = Cap(entries=self.rng.choice((3, 20, 1000)))
        try:
            end = self.planner.latest(self.start, cap)
        except PulsarUnavailableError:
            return False
        if end == self.start:
            return False
        self.planned_by = self.delays.since[RETRIES], self.delays.skew
        plan = self.planner.partitions(self.start, end)
        if CONTROL in plan:
            assert (len(plan), sum(entries.count for entries in plan[CONTROL])) == (1, 1), plan
        for attempt in range(60):
            if self.rng.random() < 0.05 or attempt:
                # The process was killed, or the query started again: the batch is planned as it was.
                self._new_planner()
                plan = self.planner.partitions(self.start, end)
            try:
                found = {topic: self.read(topic, ranges) for topic, ranges in plan.items()}
            except PulsarUnavailableError:
                self.endure(attempt)
                continue
            self.commit(plan, end, found)
            return True
        raise AssertionError(f"the batch from {self.start} to {end} is never done")

    def endure(self, attempt: int) -> None:
        """Let some time pass after a failed batch: somebody looks after the broker in the end."""
        for topic in self.topics.values():
            if attempt > 2:
                topic.refuses = topic.damages = 0.0
            if attempt > 2 and all(
                ledger.lost or stored.lost or stored.kind in UNSENT for _, ledger, stored in topic.places()
            ):
                # Nothing can be read: nobody could tell a lost ledger from brokers and bookies that are away.
                topic.roll()
                topic.publish("good", delay=0.0 if topic.name == RETRIES else None)
        self.time.sleep(60)

    def read(self, topic: str, ranges: tuple[EntryRange, ...]) -> list[Row]:
        share = TaskShare((PartitionEntries(topic, ranges, may_be_lost=topic == CONTROL),), CONNECTION)
        entries: Any = self.entries
        admin: Any = self.admin
        rows = []
        batches = read_entries(share, RULES, entries, lambda: admin, steady=self.time.steady, pause=self.time.sleep)
        for batch in batches:
            for row in batch.to_pylist():
                place = row["message_id"]
                rows.append(
                    Row(
                        Position(place["ledger_id"], place["entry_id"]),
                        *(place["batch_index"], place["batch_size"], row["value"]),
                        dict(row["properties"]).get(UNREAD, ""),
                        self.time.now,
                    )
                )
        return rows

    def commit(self, plan: dict[str, tuple[EntryRange, ...]], end: Offsets, found: dict[str, list[Row]]) -> None:
        for topic, rows in found.items():
            self.check(topic, plan[topic], rows)
            self.rows[topic] += rows
        self.start = end
        for name, topic in self.topics.items():
            topic.acknowledge(end[name])

    def check(self, name: str, ranges: tuple[EntryRange, ...], rows: list[Row]) -> None:
        """Compare the rows of a batch with what its entries are."""
        topic, covered = self.topics[name], Counter[Position]()
        assert [(row.position, row.index) for row in rows] == sorted({(row.position, row.index) for row in rows})
        for row in rows:
            if not row.unread:
                continue
            span = RANGE.search(row.unread)
            first, last = (Position.parse(text) for text in span.groups()) if span else (row.position, row.position)
            assert first == row.position
            covered.update(Position(first.ledger_id, entry) for entry in range(first.entry_id, last.entry_id + 1))
        values: dict[Position, list[bytes | None]] = {}
        for row in rows:
            if row.size:
                values.setdefault(row.position, []).append(row.value)
        for entries in ranges:
            ledger = topic.ledger(entries.ledger_id)
            assert ledger is not None
            for number in range(entries.first, entries.last + 1):
                at, stored = Position(entries.ledger_id, number), ledger.entries[number]
                lost = (name, entries.ledger_id) in self.ever_lost
                if values.get(at):
                    assert (values[at], covered[at]) == (list(stored.values), 0), at
                    assert stored.kind == "good"
                    self.check_due(name, stored, next(row for row in rows if row.position == at), lost=lost)
                elif stored.kind == "good":
                    assert (covered[at], lost) == (1, True), f"{name} {at}: {stored}"
                elif stored.kind in UNREADABLE or stored.kind == "filtered":
                    assert covered[at] == 1, f"{name} {at}: {stored}"
                elif stored.kind == "chunk":
                    assert covered[at] == (1 if stored.last_chunk or (covered[at] and lost) else 0), (
                        f"{name} {at}: {stored}"
                    )
                else:
                    # Of markers REST tells; where it does not answer, one has a row too many.
                    assert covered[at] <= 1

    def check_due(self, name: str, stored: Any, row: Row, *, lost: bool) -> None:
        if name != RETRIES or lost:
            return
        since, skew = self.planned_by
        if stored.written <= since and skew:
            # What was there before goes by the clock of the machine, and that was wrong by an hour.
            return
        assert row.read_at >= min(stored.due, stored.written + LONGEST_DELAY), f"{row} is early: {stored}"

    def _new_planner(self) -> None:
        self.delays = Delays(self.entries, self.time)
        admin: Any = self.admin
        delays: Any = self.delays
        self.planner = BatchPlanner(OPTIONS, admin, delays)
        if self.start and not self.healed and self.rng.random() < 0.3:
            self.planner.freeze()


def foreign_places(positions: TopicPositions) -> list[Position]:
    """Return offsets that are no topic's of this name: behind its last entry, or in a ledger that it does not list."""
    last = positions.ledgers[-1]
    places = [Position(last.ledger_id, last.entries + 3)]
    listed = {ledger.ledger_id for ledger in positions.ledgers}
    between = set(range(positions.earliest.ledger_id, last.ledger_id)) - listed
    return places + [Position(ledger_id, 2) for ledger_id in sorted(between)[:1]]


def test_many_plans() -> None:
    plans, life = 0, SEED
    while plans < PLANS:
        found = Life(life)
        try:
            found.live(PLANS_OF_A_LIFE)
        except AssertionError as error:
            raise AssertionError(f"life {life} (SEED={life}), plan {found.plans}: {error}") from error
        plans += found.plans
        life += 1
