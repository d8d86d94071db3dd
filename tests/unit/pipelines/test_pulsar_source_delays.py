"""When entries of a delayed topic are due: by their arrival, by the clock, and at last without either."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.entries import TopicEntry
from bookwarden.clusters.pulsar.rest.topic_positions import parse_positions
from bookwarden.ledgers.managed_ledger import Position
from bookwarden.pipelines.pulsar_source.delays import Arrivals, DelayScan, DelayWatch, DueTimes, Moment
from bookwarden.pipelines.pulsar_source.limits import Cap
from bookwarden.pipelines.pulsar_source.options import SourceOptions
from bookwarden.pipelines.pulsar_source.planner import BatchPlanner
from bookwarden.wire.pb.pulsar_api_pb2 import MessageMetadata
from unit.pipelines.scripted_topic import SUBSCRIPTION, Admin, Entries, Time, Topic

LONGEST = 600.0
STEP = 1.0
START = Position(7, -1)


def at(entry: int) -> Position:
    return Position(7, entry)


def entry(number: int, deliver_at_s: float = 0, published_s: float = 0, delay_ms: str = "") -> TopicEntry:
    metadata = MessageMetadata(publish_time=int(published_s * 1000))
    if deliver_at_s:
        metadata.deliver_at_time = int(deliver_at_s * 1000)
    if delay_ms:
        metadata.properties.add(key=b"DELAY_TIME", value=delay_ms.encode())
    return TopicEntry(at(number), metadata, b"")


def watching(end: int, now: float = 0.0) -> DueTimes:
    times = DueTimes(LONGEST)
    times.look_ahead(START, at(end), at(end), now)
    return times


def test_what_was_there_before_is_due_by_the_clock() -> None:
    times = watching(1)
    times.note(entry(0, deliver_at_s=1000), 0.0)
    assert times.due_end(Moment(999, 0)) == START
    assert times.due_end(Moment(1000, 0)) == at(0)


def test_what_arrives_is_due_its_delay_after_its_arrival_whatever_the_clock_says() -> None:
    times = watching(0)
    times.note(entry(0), 0.0)
    times.look_ahead(START, at(2), at(2), 50.0)
    times.note(entry(1, deliver_at_s=1000, published_s=900), 55.0)
    times.note(entry(2, deliver_at_s=1000, published_s=5000, delay_ms="200000"), 55.0)
    assert [times.due_end(Moment(9999, now)) for now in (149.9, 150.0, 249.9, 250.0)] == [at(0), at(1), at(1), at(2)]
    assert times.due_end(Moment(-9999, 250.0)) == at(2)


def test_no_entry_waits_longer_than_the_longest_delay() -> None:
    times = watching(0, now=10.0)
    times.note(entry(0, deliver_at_s=1200), 10.0)
    times.look_ahead(START, at(1), at(1), 20.0)
    times.note(entry(1, deliver_at_s=10**9), 20.0)
    ends = [times.due_end(Moment(0, now)) for now in (609.9, 610.0, 619.9, 620.0)]
    assert ends == [START, at(0), at(0), at(1)]


def test_what_was_there_before_with_a_time_that_nobody_of_ours_sets_is_due_at_once() -> None:
    times = watching(1)
    times.note(entry(0, deliver_at_s=10**9), 0.0)
    times.note(entry(1, deliver_at_s=5000), 0.0)
    assert times.due_end(Moment(5000 - 2 * LONGEST, 0)) == at(0)
    assert times.due_end(Moment(5000 - 2 * LONGEST - 1, 0)) == at(1)


def test_what_has_no_time_or_cannot_be_read_is_due_at_once() -> None:
    times = watching(2)
    times.note(entry(0), 0.0)
    times.note(TopicEntry(at(1), None, b"", "damaged"), 0.0)
    times.note(entry(2, deliver_at_s=-5), 0.0)
    assert times.due_end(Moment(0, 0)) == at(2)


def test_what_the_broker_passes_over_is_as_due_as_what_follows() -> None:
    times = watching(5)
    times.note(entry(3, deliver_at_s=1000), 0.0)
    assert (times.due_end(Moment(999, 0)), times.due_end(Moment(1000, 0))) == (START, at(3))
    times.note(entry(2), 0.0)
    assert times.due_end(Moment(1000, 0)) == at(3)


def test_what_nobody_can_read_is_due_when_the_longest_delay_has_passed_since_it_was_there() -> None:
    times = watching(4, now=0.0)
    times.note(entry(0), 0.0)
    times.look_ahead(START, at(9), at(9), 100.0)
    ends = [times.due_end(Moment(0, now)) for now in (599.9, 600.0, 699.9, 700.0)]
    assert ends == [at(0), at(4), at(4), at(9)]


def test_the_end_is_never_behind_the_goal() -> None:
    times = DueTimes(LONGEST)
    times.look_ahead(START, at(3), at(9), 0.0)
    times.note(entry(7), 0.0)
    assert times.is_read
    assert times.due_end(Moment(0, 0)) == at(3)
    assert times.due_end(Moment(0, LONGEST)) == at(3)


def test_a_start_that_was_moved_forgets_what_was_read_and_one_that_went_on_does_not() -> None:
    times = watching(9)
    for number in range(4):
        times.note(entry(number), 0.0)
    assert not times.look_ahead(at(2), at(9), at(9), 1.0)
    assert times.due_end(Moment(0, 1)) == at(3)
    assert times.look_ahead(at(1), at(9), at(9), 2.0)
    assert (times.reached, times.due_end(Moment(0, 2))) == (at(1), at(1))
    assert times.look_ahead(at(5), at(9), at(9), 3.0)
    assert times.due_end(Moment(0, 3)) == at(5)


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 3)), min_size=1, max_size=60))
def test_an_arrival_is_never_noted_too_early_and_late_by_a_step_at_most(polls: list[tuple[float, int]]) -> None:
    arrivals, truth, now, end = Arrivals(STEP), dict[int, float](), 0.0, -1
    for number, (pause, more) in enumerate(polls):
        now += pause
        truth.update((entry_id, now) for entry_id in range(end + 1, end + 1 + more) if number)
        end += more
        arrivals.note(at(end), now)
    for entry_id, seen in truth.items():
        found = arrivals.of(at(entry_id), now)
        assert found is not None
        assert seen <= found <= seen + STEP
    kept = len(arrivals._ends)
    assert kept <= now / STEP + 1
    arrivals.forget(at(end))
    assert len(arrivals._ends) <= 1


@pytest.mark.parametrize("moment", [0.0, 3.0, 11.0])
def test_what_was_there_at_a_moment_is_known_in_steps(moment: float) -> None:
    arrivals = Arrivals(STEP)
    ends = {0.0: 5, 10.0: 6, 20.0: 9}
    for now, end in ends.items():
        arrivals.note(at(end), now)
    expected = max(end for now, end in ends.items() if now <= moment)
    assert arrivals.end_at(moment) == at(expected)
    assert arrivals.end_at(-1.0) == Position(-1, -1)


YEAR = 365 * 86_400.0
RETRIES = "persistent://t/n/retries"
DELAY = 600.0
OPTIONS = SourceOptions(
    PulsarConnection("pulsar://nowhere", "http://nowhere"),
    topics=(RETRIES,),
    subscription=SUBSCRIPTION,
    acknowledge=False,
    min_poll_s=0.0,
    delayed_topics=(RETRIES,),
    max_delay_s=LONGEST,
)


class Retries:
    """A partition of the retry topic, and watches of it by a clock that may be wrong."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # What a thread does, done at each look.
        monkeypatch.setattr(DelayScan, "start", lambda scan: scan.read_ahead(lambda: not scan._times.is_read))
        self.time = Time()
        self.time.now = 1.7e9
        self.topic = Topic(RETRIES, self.time, Random(1))
        self.start = self.topic.cursor

    def watch(self) -> DelayWatch:
        entries: Any = Entries({RETRIES: self.topic})
        return DelayWatch(
            lambda: entries, 60.0, LONGEST, clock=self.time.wall, steady=self.time.steady, pause=self.time.sleep
        )

    def due(self, watch: DelayWatch, moment: Moment | None = None) -> int:
        """Return how many entries are due."""
        positions = parse_positions(RETRIES, self.topic.stats())
        return watch.due_end(positions, self.start, positions.latest, moment).entry_id + 1

    def due_once(self) -> int:
        """Return how many entries a query reads that ends, by the right clock."""
        planner = BatchPlanner(OPTIONS, Admin({RETRIES: self.topic}), self.watch())  # type: ignore[arg-type]  # stands there
        planner.freeze()
        return planner.latest({RETRIES: self.start}, Cap())[RETRIES].entry_id + 1


@pytest.fixture
def retries(monkeypatch: pytest.MonkeyPatch) -> Retries:
    return Retries(monkeypatch)


def test_retries_looked_at_while_the_clock_was_ahead_are_due_after_their_delay_once_it_is_right(
    retries: Retries,
) -> None:
    retries.time.skew = YEAR
    for _ in range(3):
        retries.topic.publish("good", delay=DELAY, ahead=YEAR)
    watch = retries.watch()
    assert retries.due(watch) == 0
    retries.topic.publish("good", delay=DELAY, ahead=YEAR)
    assert retries.due(watch) == 0
    retries.time.skew = 0.0
    retries.topic.publish("good", delay=DELAY)
    assert retries.due(watch) == 0
    retries.time.sleep(DELAY + STEP)
    assert retries.due(watch) == 5


@pytest.mark.parametrize("ahead", [YEAR, 4 * LONGEST])
def test_a_run_that_ends_takes_retries_of_a_clock_that_was_ahead_at_once(retries: Retries, ahead: float) -> None:
    """As of `sweep --once`, for which time stands still at its start."""
    for _ in range(3):
        retries.topic.publish("good", delay=DELAY, ahead=ahead)
    watch = retries.watch()
    assert retries.due(watch, watch.now()) == 3
    assert retries.due_once() == 3
    retries.topic.publish("good", delay=DELAY)
    # The one that was sent now waits, and so do those behind it alone.
    assert retries.due_once() == 3
    retries.time.sleep(DELAY)
    assert retries.due_once() == 4


@pytest.mark.parametrize("ahead", [1.0, 100.0, LONGEST, 2 * LONGEST, YEAR])
def test_no_clock_that_was_ahead_keeps_runs_that_end_from_a_retry_for_longer_than_twice_the_longest_delay(
    retries: Retries, ahead: float
) -> None:
    retries.topic.publish("good", delay=DELAY, ahead=ahead)
    waited = 0.0
    while not retries.due_once():
        retries.time.sleep(60.0)
        waited += 60.0
        assert waited <= 2 * LONGEST + 60.0


def test_a_watch_that_begins_by_the_right_clock_has_nothing_wait_longer_than_the_longest_delay(
    retries: Retries,
) -> None:
    for ahead in (YEAR, LONGEST, 0.0):
        retries.topic.publish("good", delay=DELAY, ahead=ahead)
    watch = retries.watch()
    assert retries.due(watch) == 1
    retries.time.sleep(LONGEST)
    assert retries.due(watch) == 3


def test_a_clock_that_is_set_while_retries_are_watched_changes_nothing(retries: Retries) -> None:
    watch = retries.watch()
    assert retries.due(watch) == 0
    for skew in (YEAR, -YEAR, -3600.0, 7200.0, 0.0):
        retries.time.skew = skew
        retries.topic.publish("good", delay=DELAY, ahead=skew)
    assert retries.due(watch) == 0
    retries.time.sleep(DELAY + STEP)
    assert retries.due(watch) == 5
