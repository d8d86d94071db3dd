"""What a task does with entries that do not come, or that nobody can read: at a time of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.errors import DataGoneError, FormatError, PulsarUnavailableError
from bookwarden.ledgers.managed_ledger import Position
from bookwarden.pipelines.pulsar_source.columns import UNREAD
from bookwarden.pipelines.pulsar_source.ranges import EntryRange
from bookwarden.pipelines.pulsar_source.reading import PartitionEntries, ReadRules, TaskShare, read_entries
from unit.pipelines.scripted_topic import UNREADABLE, Admin, Entries, Ledger, Stream, Time, Topic

NAME = "persistent://t/n/a"
RULES = ReadRules(120, 1000, True, chunked="empty", unreadable="empty", lost_ledger_s=3600, largest=1 << 20)


class Reading:
    """A topic of one ledger, and what a task reads of it."""

    def __init__(self, *kinds: str) -> None:
        self.time = Time()
        self.topic = Topic(NAME, self.time, Random(1))
        self.entries = Entries({NAME: self.topic})
        self.admin = Admin({NAME: self.topic})
        for kind in kinds:
            self.topic.publish(kind)

    def all(self) -> tuple[EntryRange, ...]:
        return tuple(
            EntryRange(ledger.ledger_id, 0, len(ledger.entries) - 1) for ledger in self.topic.ledgers if ledger.entries
        )

    def read(self, rules: ReadRules = RULES, ranges: tuple[EntryRange, ...] = ()) -> list[Any]:
        """Return the numbers of the messages' entries, and the reasons of what was not read."""
        entries, admin = self.entries, self.admin
        share = TaskShare((PartitionEntries(NAME, ranges or self.all()),), PulsarConnection("pulsar://a", "http://a"))
        unused: Any = entries
        served: Any = admin
        found: list[Any] = []
        for batch in read_entries(share, rules, unused, lambda: served, steady=self.time.steady, pause=self.time.sleep):
            for row in batch.to_pylist():
                reason = dict(row["properties"]).get(UNREAD)
                entry = row["message_id"]["entry_id"]
                if reason or row["message_id"]["batch_index"] <= 0:
                    found.append(reason or entry)
        return found


@pytest.mark.parametrize("kind", UNREADABLE)
def test_what_nobody_can_read_has_a_row_without_a_value_in_its_place(kind: str) -> None:
    first, unread, last = Reading("good", kind, "good").read()
    assert (first, last) == (0, 2)
    assert unread.startswith("entry 10:1 cannot be read: ")


@pytest.mark.parametrize("kind", [*UNREADABLE, "filtered"])
def test_what_nobody_can_read_is_an_error_or_left_out_by_the_rule(kind: str) -> None:
    with pytest.raises(FormatError, match=r"entry 10:1 cannot be read.*set unreadableMessages to skip or empty"):
        Reading("good", kind, "good").read(replace(RULES, unreadable="fail"))
    assert Reading("good", kind, "good").read(replace(RULES, unreadable="skip")) == [0, 2]


@pytest.mark.parametrize("kinds", [("filtered", "good"), ("good", "filtered", "filtered"), ("filtered",)])
def test_what_the_broker_passes_over_has_one_row_also_where_nothing_follows(kinds: tuple[str, ...]) -> None:
    reading = Reading(*kinds)
    before = reading.time.now
    (reason,) = [found for found in reading.read() if isinstance(found, str)]
    assert "the broker passes over it" in reason
    # A broker that has read on needs no hour.
    assert reading.time.now - before < 30


def test_markers_and_aborted_messages_have_no_row() -> None:
    assert Reading("marker", "good", "aborted", "marker", "good", "marker", "aborted").read() == [1, 4]


def test_a_chunked_message_has_one_row() -> None:
    reading = Reading("good")
    reading.topic.publish_chunked()
    reading.topic.publish("good")
    assert reading.read() == [0, "a message in chunks, which are not read", 3]
    assert reading.read(replace(RULES, chunked="skip")) == [0, 3]
    with pytest.raises(FormatError, match="chunkedMessages"):
        reading.read(replace(RULES, chunked="fail"))


class Forgetful(Entries):
    """A broker whose readers are not given one entry, some times."""

    def __init__(self, reading: Reading, hidden: Position, times: int) -> None:
        super().__init__({NAME: reading.topic})
        self.hidden = hidden
        self.times = times

    @contextmanager
    def open(self, topic: str, first: Position, timeout_s: float) -> Iterator[Stream]:
        with super().open(topic, first, timeout_s) as stream:
            if first == self.hidden and self.times > 0:
                self.times -= 1
                stream._next = Position(first.ledger_id, first.entry_id + 1)
            yield stream


@pytest.mark.parametrize(("times", "found"), [(1, 1), (2, 1), (3, "passes over it")])
def test_a_gap_counts_when_it_was_there_three_times_in_a_row(times: int, found: object) -> None:
    reading = Reading("good", "good", "good")
    reading.entries = Forgetful(reading, Position(10, 1), times)
    rows = reading.read(ranges=(EntryRange(10, 1, 2),))
    assert [str(found) in str(rows[0]), rows[1:]] == [True, [2]]


def test_an_entry_that_was_damaged_on_its_way_comes_again() -> None:
    reading = Reading("good", "good")
    reading.topic.damages = 1.0
    assert reading.read() == [0, 1]
    reading.topic.ledgers[0].entries[1].damaged = -1
    rows = reading.read()
    assert "checksum" in rows[1]


def test_progress_is_what_was_taken_so_that_a_broker_that_gives_another_entry_ends_in_time() -> None:
    reading = Reading("good", "good", "good")
    reading.entries = Forgetful(reading, Position(10, 0), 10**9)
    reading.admin.request = lambda *_: (_ for _ in ()).throw(PulsarUnavailableError("no answer"))  # type: ignore[method-assign]
    with pytest.raises(FormatError, match="entry 10:0 cannot be read: the broker passes over it"):
        reading.read(replace(RULES, unreadable="fail"))
    assert reading.entries.opened < 20


def two_ledgers(lost: str) -> Reading:
    reading = Reading(*["good"] * 5)
    reading.topic.ledgers.append(Ledger(20))
    reading.topic.publish("good")
    reading.topic.ledgers[0].lost = lost
    return reading


def test_a_ledger_without_metadata_is_lost_at_once_and_has_one_row() -> None:
    reading = two_ledgers("metadata")
    before = reading.time.now
    reason, last = reading.read(ranges=(EntryRange(10, 2, 4), EntryRange(20, 0, 0)))
    assert reason == ("the 3 entries 10:2 to 10:4 cannot be read: its ledger is lost: BookKeeper has no metadata of it")
    assert last == 0
    assert reading.time.now - before < 30
    with pytest.raises(FormatError, match="its ledger is lost"):
        reading.read(replace(RULES, unreadable="fail"))


def test_a_ledger_that_cannot_be_read_is_lost_after_its_time_while_others_can() -> None:
    reading = two_ledgers("bookies")
    before = reading.time.now
    reason, last = reading.read()
    assert reason.startswith(
        "the 5 entries 10:0 to 10:4 cannot be read: its ledger is lost: others of the topic can be"
    )
    assert last == 0
    assert 3600 <= reading.time.now - before < 4500


def test_a_ledger_that_can_be_read_again_in_time_is_read() -> None:
    reading = two_ledgers("bookies")
    sleep = reading.time.sleep

    def heal(seconds: float) -> None:
        sleep(seconds)
        if reading.time.now > 1_002_000:
            reading.topic.ledgers[0].lost = ""

    reading.time.sleep = heal  # type: ignore[method-assign]
    assert reading.read() == [0, 1, 2, 3, 4, 0]


def test_where_nothing_can_be_read_no_ledger_is_lost() -> None:
    reading = two_ledgers("bookies")
    reading.topic.ledgers[1].lost = "bookies"
    with pytest.raises(PulsarUnavailableError, match=r"entry 10:0 could not be read for 1\d\d s"):
        reading.read()
    reading = two_ledgers("bookies")
    with pytest.raises(PulsarUnavailableError, match="maxUnreachableSeconds"):
        reading.read(replace(RULES, lost_ledger_s=None))


def test_only_what_cannot_be_read_of_a_ledger_is_left_out() -> None:
    reading = Reading(*["good"] * 9)
    for number in (2, 3, 4):
        reading.topic.ledgers[0].entries[number].lost = True
    first, second, reason, *rest = reading.read()
    assert (first, second, rest) == (0, 1, [5, 6, 7, 8])
    assert reason.startswith("the 3 entries 10:2 to 10:4 cannot be read")


def test_a_ledger_is_lost_though_the_first_entry_of_the_only_other_one_is_too() -> None:
    reading = two_ledgers("bookies")
    other = reading.topic.ledgers[1]
    other.entries = [replace(other.entries[0], lost=True), other.entries[0]]
    reason, *rest = reading.read(ranges=(EntryRange(10, 0, 4), EntryRange(20, 1, 1)))
    assert reason.startswith("the 5 entries 10:0 to 10:4 cannot be read: its ledger is lost")
    assert rest == [1]


def test_a_lost_entry_behind_markers_is_left_out_though_no_broker_sends_them() -> None:
    reading = Reading("good", "marker", "marker", "good")
    reading.topic.ledgers[0].entries[3].lost = True
    first, reason = reading.read()
    assert first == 0
    assert reason.startswith("entry 10:3 cannot be read")


def test_a_broker_that_skips_more_than_it_lost_makes_nobody_lose_more() -> None:
    reading = Reading(*["good"] * 9)
    reading.topic.auto_skip = True
    reading.topic.ledgers[0].entries[2].lost = True
    rows = reading.read()
    assert [row for row in rows if not isinstance(row, str)] == [0, 1, 3, 4, 5, 6, 7, 8]
    assert len(rows) == 9


def test_an_entry_that_the_broker_has_and_holds_back_is_never_lost() -> None:
    """As behind an open transaction: reading goes on when that ends."""
    reading = two_ledgers("bookies")
    asked = reading.admin.request

    def there(method: str, path: str) -> Any:
        reading.topic.ledgers[0].lost = ""
        answer = asked(method, path)
        reading.topic.ledgers[0].lost = "bookies"
        return answer

    reading.admin.request = there  # type: ignore[method-assign]
    with pytest.raises(PulsarUnavailableError, match="could not be read"):
        reading.read()


def test_entries_of_a_trimmed_ledger_are_a_loss_or_passed_by_the_rule() -> None:
    reading = Reading("good")
    gone = (EntryRange(5, 0, 3), EntryRange(10, 0, 0))
    with pytest.raises(DataGoneError, match="5:0 was planned, but is gone"):
        reading.read(ranges=gone)
    assert reading.read(replace(RULES, fail_on_data_loss=False), ranges=gone) == [0]
