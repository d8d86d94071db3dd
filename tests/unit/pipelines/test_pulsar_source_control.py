"""A control topic: each of its entries is a batch of its own, and neither its absence nor a loss is an error."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.errors import ConfigError, DataGoneError
from bookwarden.ledgers.managed_ledger import Position
from bookwarden.pipelines.pulsar_source.delays import DelayWatch
from bookwarden.pipelines.pulsar_source.limits import Cap
from bookwarden.pipelines.pulsar_source.offsets import Boundary, Offsets
from bookwarden.pipelines.pulsar_source.options import SourceOptions, parse_options
from bookwarden.pipelines.pulsar_source.planner import BatchPlanner
from bookwarden.pipelines.pulsar_source.ranges import EntryRange
from bookwarden.pipelines.pulsar_source.reading import PartitionEntries, ReadRules, TaskShare, read_entries
from servers.waiting import eventually
from unit.pipelines.scripted_topic import SUBSCRIPTION, Admin, Entries, Ledger, Time, Topic

MARKS, CONTROL = "persistent://t/n/marks", "persistent://t/n/control"
CONNECTION = PulsarConnection("pulsar://nowhere", "http://nowhere")
OPTIONS = SourceOptions(
    CONNECTION,
    topics=(MARKS, CONTROL),
    subscription=SUBSCRIPTION,
    acknowledge=False,
    starting=Boundary(name="subscription"),
    min_poll_s=0.0,
    discovery_s=0.05,
    max_unreachable_s=0.0,
    control_topics=(CONTROL,),
)


class Query:
    """A query on a topic of marks and a control topic."""

    def __init__(self, *names: str) -> None:
        self.time = Time()
        self.topics = {name: self.topic(name) for name in names or (MARKS, CONTROL)}
        self.planner = self.new_planner()
        self.start: Offsets = self.planner.initial()

    def topic(self, name: str, first: int = 10) -> Topic:
        made = Topic(name, self.time, Random(1))
        made.ledgers, made.cursor = [Ledger(first)], Position(first, -1)
        return made

    def new_planner(self) -> BatchPlanner:
        admin: Any = Admin(self.topics)
        entries: Any = Entries(self.topics)
        return BatchPlanner(OPTIONS, admin, DelayWatch(lambda: entries, 0, 0))

    def batch(self) -> dict[str, tuple[EntryRange, ...]]:
        """Plan the next batch, finish it, and return what is read in it."""
        end = self.planner.latest(self.start, Cap(entries=100))
        plan = self.planner.partitions(self.start, end)
        # A replay, by another process, reads the same.
        assert self.new_planner().partitions(self.start, end) == plan
        self.start = end
        for name in plan:
            self.topics[name].acknowledge(end[name])
        return plan

    def publish(self, name: str, count: int) -> None:
        for _ in range(count):
            self.topics[name].publish("good")


def entries(*numbers: int, ledger: int = 10) -> tuple[EntryRange, ...]:
    return (EntryRange(ledger, numbers[0], numbers[-1]),)


def test_each_control_entry_is_alone_in_its_batch_by_turns_with_others() -> None:
    query = Query()
    query.publish(MARKS, 3)
    query.publish(CONTROL, 3)
    assert query.batch() == {CONTROL: entries(0)}
    # A flood of control entries does not keep the marks waiting.
    assert query.batch() == {MARKS: entries(0, 1, 2)}
    assert query.batch() == {CONTROL: entries(1)}
    assert query.batch() == {CONTROL: entries(2)}
    query.publish(MARKS, 1)
    assert query.batch() == {MARKS: entries(3)}
    assert query.batch() == {}


def test_a_query_that_ends_by_itself_reads_control_entries_too() -> None:
    query = Query()
    query.publish(MARKS, 1)
    query.publish(CONTROL, 2)
    query.planner.freeze()
    query.publish(CONTROL, 1)
    assert [query.batch() for _ in range(4)] == [{CONTROL: entries(0)}, {MARKS: entries(0)}, {CONTROL: entries(1)}, {}]


def test_a_control_topic_may_be_absent_and_is_read_from_its_beginning_once_it_is_there() -> None:
    query = Query(MARKS)
    query.publish(MARKS, 1)
    assert query.batch() == {MARKS: entries(0)}
    query.topics[CONTROL] = query.topic(CONTROL)
    query.publish(CONTROL, 1)
    assert eventually(query.batch, 10) == {CONTROL: entries(0)}


@pytest.mark.parametrize("first", [3, 90])
def test_a_control_topic_that_is_deleted_and_made_again_begins_anew(first: int) -> None:
    query = Query()
    query.publish(CONTROL, 2)
    query.batch()
    query.batch()
    del query.topics[CONTROL]
    query.publish(MARKS, 1)
    assert query.batch() == {MARKS: entries(0)}
    query.topics[CONTROL] = query.topic(CONTROL, first)
    query.publish(CONTROL, 1)
    assert eventually(query.batch, 10) == {CONTROL: entries(0, ledger=first)}


def test_a_batch_of_a_control_topic_that_was_deleted_is_replayed_without_it() -> None:
    query = Query()
    query.publish(CONTROL, 1)
    end = query.planner.latest(query.start, Cap())
    del query.topics[CONTROL]
    assert query.new_planner().partitions(query.start, end) == {}


def test_other_topics_may_be_neither_absent_nor_made_again() -> None:
    query = Query()
    query.publish(MARKS, 2)
    query.batch()
    query.topics[MARKS] = query.topic(MARKS, 3)
    with pytest.raises(DataGoneError):
        query.batch()
    del query.topics[MARKS]
    with pytest.raises(DataGoneError, match="does not exist any more"):
        query.batch()


def test_a_control_entry_that_cannot_be_read_is_left_out_and_others_are_waited_for() -> None:
    query = Query()
    query.publish(CONTROL, 1)
    query.topics[CONTROL].ledgers[0].lost = "bookies"
    rules = ReadRules(120.0, 50, True, chunked="empty", unreadable="empty", lost_ledger_s=3600.0)
    source: Any = Entries(query.topics)
    admin: Any = Admin(query.topics)
    share = TaskShare((PartitionEntries(CONTROL, entries(0), may_be_lost=True),), CONNECTION)
    begun = query.time.now
    read = read_entries(share, rules, source, lambda: admin, steady=query.time.steady, pause=query.time.sleep)
    (row,) = [row for batch in read for row in batch.to_pylist()]
    assert row["value"] is None
    assert "entry 10:0 cannot be read" in dict(row["properties"])["bookwarden.unread"]
    assert 120 <= query.time.now - begun < 300


def test_control_topics_are_validated_as_other_topics_are() -> None:
    given = {"serviceUrl": "pulsar://x:1", "adminUrl": "http://x", "topics": "t/n/marks,t/n/control"}
    assert parse_options({**given, "controlTopics": "t/n/control"}).control_topics == (CONTROL,)
    with pytest.raises(ConfigError, match="controlTopics"):
        parse_options({**given, "controlTopics": "non-persistent://t/n/control"})
