"""Exact ranges between positions, shares of a limit, and the loss that a ledger list reveals."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookwarden.clusters.pulsar.rest.topic_positions import LedgerSpan, TopicPositions, parse_positions
from bookwarden.errors import DataGoneError, FormatError
from bookwarden.ledgers.managed_ledger import Position
from bookwarden.pipelines.pulsar_source.limits import shares_of_tasks
from bookwarden.pipelines.pulsar_source.ranges import (
    EntryRange,
    advance,
    check_end,
    check_start,
    count_between,
    fair_shares,
    place_to_read_again,
    ranges_between,
)

TOPIC = "persistent://public/default/t-partition-0"


def positions(*spans: tuple[int, int], cursors: Mapping[str, Position] | None = None) -> TopicPositions:
    return TopicPositions(TOPIC, tuple(LedgerSpan(*span) for span in spans), cursors or {})


THREE = positions((5, 3), (7, 0), (9, 4))


def test_ranges_cross_ledgers_and_pass_over_empty_ones() -> None:
    assert ranges_between(THREE, Position(5, 0), Position(9, 1)) == [EntryRange(5, 1, 2), EntryRange(9, 0, 1)]


def test_no_range_between_equal_positions() -> None:
    assert ranges_between(THREE, Position(9, 1), Position(9, 1)) == []


def test_ranges_of_a_trimmed_start_begin_with_the_first_ledger_left() -> None:
    assert ranges_between(THREE, Position(2, 8), Position(5, 1)) == [EntryRange(5, 0, 1)]


def test_latest_is_the_last_entry_of_the_last_ledger_that_has_any() -> None:
    assert positions((5, 3), (7, 0)).latest == Position(5, 2)
    assert positions((7, 0)).latest == Position(7, -1)


@given(
    sizes=st.lists(st.integers(0, 6), min_size=1, max_size=6),
    taken=st.integers(0, 40),
)
def test_advancing_covers_exactly_what_was_asked(sizes: list[int], taken: int) -> None:
    topic = positions(*((ledger * 3, size) for ledger, size in enumerate(sizes)))
    reached = advance(topic, topic.earliest, topic.latest, taken)
    assert count_between(topic, topic.earliest, reached) == min(taken, sum(sizes))
    assert count_between(topic, reached, topic.latest) == sum(sizes) - min(taken, sum(sizes))


@given(
    available=st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 50), max_size=6),
    limit=st.integers(1, 100),
    turn=st.integers(0, 20),
)
def test_shares_use_the_limit_fully_and_fairly(available: dict[str, int], limit: int, turn: int) -> None:
    shares = fair_shares(available, limit, turn)
    assert sum(shares.values()) == min(limit, sum(available.values()))
    short = [shares[topic] for topic in available if shares[topic] < available[topic]]
    assert all(shares[topic] <= available[topic] for topic in available)
    assert all(share <= least + 1 for least in short for share in shares.values())


def test_a_limit_below_the_number_of_partitions_starves_none() -> None:
    available = dict.fromkeys("abcd", 10)
    served = {topic for turn in range(4) for topic, share in fair_shares(available, 1, turn).items() if share}
    assert served == set("abcd")


@given(
    st.dictionaries(st.text("abcdef", min_size=1), st.floats(1, 300), max_size=12), st.floats(1, 200, allow_nan=False)
)
def test_every_topic_is_in_one_task_and_no_two_tasks_could_be_one(rows: dict[str, float], enough: float) -> None:
    shares = shares_of_tasks(rows, enough)
    assert [topic for share in shares for topic in share] == list(rows)
    counts = [[rows[topic] for topic in share] for share in shares]
    assert all(len(share) == 1 or sum(share) <= enough for share in counts)
    assert all(sum(one) + other[0] > enough for one, other in itertools.pairwise(counts))


def test_topics_with_few_rows_share_a_task_and_one_with_many_has_its_own() -> None:
    rows = {"a": 5.0, "b": 20.0, "c": 5000.0, "d": 1.0, "e": 99.0, "f": 1.0}
    assert shares_of_tasks(rows, 100) == [["a", "b"], ["c"], ["d", "e"], ["f"]]


def test_a_start_in_a_living_ledger_is_good() -> None:
    check_start(THREE, Position(5, 2), None)


def test_a_trimmed_start_without_subscription_is_a_loss() -> None:
    with pytest.raises(DataGoneError, match="may have been trimmed"):
        check_start(THREE, Position(4, 2), None)


def test_a_trimmed_start_is_good_if_the_subscription_stands_before_the_first_entry() -> None:
    guarded = positions((5, 3), cursors={"s": Position(5, -1)})
    check_start(guarded, Position(4, 2), "s")


def test_a_subscription_past_a_trimmed_start_is_a_loss() -> None:
    with pytest.raises(DataGoneError, match="2 existing entries past"):
        check_start(positions((5, 3), cursors={"s": Position(5, 1)}), Position(4, 2), "s")


def test_a_subscription_past_the_start_is_a_loss() -> None:
    with pytest.raises(DataGoneError, match="1 existing entries past"):
        check_start(positions((5, 3), cursors={"s": Position(5, 1)}), Position(5, 0), "s")


def test_a_start_behind_the_last_entry_is_another_topics() -> None:
    with pytest.raises(DataGoneError, match="past the end of the topic"):
        check_start(THREE, Position(5, 3), None)


def test_a_start_in_an_empty_ledger_that_is_gone_loses_nothing() -> None:
    check_start(THREE, Position(8, -1), None)


def test_a_trimmed_start_is_good_if_all_of_its_ledger_was_seen_and_read() -> None:
    check_start(THREE, Position(4, 2), None, previous=positions((4, 3)))
    with pytest.raises(DataGoneError):
        check_start(THREE, Position(4, 2), None, previous=positions((4, 4)))
    with pytest.raises(DataGoneError):
        check_start(THREE, Position(3, 2), None, previous=positions((4, 3)))


def test_a_start_in_a_ledger_missing_from_the_middle_is_another_topics() -> None:
    with pytest.raises(DataGoneError, match="is not among the topic's"):
        check_start(THREE, Position(8, 0), None)


# Ledger 800 with 50 entries and 900 with 10, and nothing of them acknowledged.
UNREAD = positions((800, 50), (900, 10), cursors={"s": Position(800, -1)})


@pytest.mark.parametrize("start", [Position(512000, -1), Position(512000, 33), Position(901, -1), Position(900, 10)])
@pytest.mark.parametrize("subscription", ["s", None])
def test_an_offset_past_the_end_is_refused_with_what_it_is_and_what_there_is(
    start: Position, subscription: str | None
) -> None:
    with pytest.raises(DataGoneError, match=rf"offset {start} lies past the end .* 900:9 and last ledger 900") as told:
        check_start(UNREAD, start, subscription)
    assert "Start with a new checkpoint" in str(told.value)


@pytest.mark.parametrize("start", [Position(850, -1), Position(900, 4), Position(800, 0), Position(900, 9)])
def test_an_offset_ahead_of_the_subscription_is_read_again_from_there(start: Position) -> None:
    check_start(UNREAD, start, "s")
    assert place_to_read_again(UNREAD, start, "s") == Position(800, -1)


LEGITIMATE = {
    "all of it was read and acknowledged": (UNREAD.ledgers, (900, 9), (900, 9)),
    "nothing was read yet": (UNREAD.ledgers, (800, -1), (800, -1)),
    "the ledgers of the offset were trimmed": ([(900, 10)], (800, 49), (900, -1)),
    "a cursor at the end of a ledger, an offset before the next": ([(800, 50), (900, 10)], (900, -1), (800, 49)),
    "an empty last ledger was replaced at a reload": ([(35, 0)], (11, -1), (11, -1)),
    "the same behind a ledger with entries": ([(800, 50), (950, 0)], (900, -1), (800, 49)),
    "an open ledger without entries, its cursor in it": ([(800, 50), (900, 0)], (900, -1), (900, -1)),
    "a cursor in a ledger that was trimmed": ([(900, 10)], (900, -1), (800, 49)),
}


@pytest.mark.parametrize("case", LEGITIMATE)
def test_an_offset_of_the_topics_own_goes_on(case: str) -> None:
    ledgers, start, cursor = LEGITIMATE[case]
    spans = tuple(span if isinstance(span, LedgerSpan) else LedgerSpan(*span) for span in ledgers)
    topic = TopicPositions(TOPIC, spans, {"s": Position(*cursor)})
    check_start(topic, Position(*start), "s")
    assert place_to_read_again(topic, Position(*start), "s") is None


def test_a_cursor_behind_by_the_last_batch_has_that_batch_read_again_and_no_more() -> None:
    late = positions((800, 50), (900, 10), cursors={"s": Position(800, 46)})
    again = place_to_read_again(late, Position(900, 1), "s")
    assert again == Position(800, 46)
    assert count_between(late, again, Position(900, 1)) == 5


def test_a_cursor_before_the_ledgers_that_are_left_is_read_from_the_first_of_them() -> None:
    late = positions((800, 50), (900, 10), cursors={"s": Position(700, 8)})
    assert place_to_read_again(late, Position(900, 1), "s") == late.earliest


def test_without_a_subscription_there_is_no_place_to_read_again_from() -> None:
    assert place_to_read_again(THREE, Position(9, 1), "s") is None


@given(
    sizes=st.lists(st.integers(0, 4), min_size=1, max_size=4),
    start=st.tuples(st.integers(-1, 14), st.integers(-1, 5)),
    cursor=st.tuples(st.integers(-1, 10), st.integers(-1, 4)),
)
def test_no_offset_whatever_passes_over_an_entry_that_the_subscription_has_not(
    sizes: list[int], start: tuple[int, int], cursor: tuple[int, int]
) -> None:
    topic = positions(*((ledger * 3, size) for ledger, size in enumerate(sizes)), cursors={"s": Position(*cursor)})
    try:
        check_start(topic, Position(*start), "s")
    except DataGoneError:
        return
    begins = place_to_read_again(topic, Position(*start), "s") or Position(*start)
    assert count_between(topic, Position(*cursor), begins) == 0
    assert count_between(topic, begins, topic.latest) >= count_between(topic, Position(*cursor), topic.latest)


@pytest.mark.parametrize("end", [Position(9, 4), Position(4, 0)])
def test_an_end_that_does_not_exist_is_a_loss(end: Position) -> None:
    with pytest.raises(DataGoneError, match="does not exist"):
        check_end(THREE, end)


def test_an_end_before_the_first_entry_of_a_ledger_that_is_gone_loses_nothing() -> None:
    check_end(THREE, Position(8, -1))
    check_end(positions((35, 0)), Position(11, -1))


def test_an_open_ledger_counts_its_confirmed_entries() -> None:
    stats = {
        "lastConfirmedEntry": "9:3",
        "ledgers": [{"ledgerId": 5, "entries": 3}, {"ledgerId": 9, "entries": 0}],
        "cursors": {"a%2Fb": {"markDeletePosition": "5:1"}},
    }
    assert parse_positions(TOPIC, stats) == positions((5, 3), (9, 4), cursors={"a/b": Position(5, 1)})


def test_a_new_ledger_is_empty_while_the_last_confirmed_entry_is_in_the_one_before() -> None:
    stats = {
        "lastConfirmedEntry": "5:2",
        "ledgers": [{"ledgerId": 5, "entries": 3}, {"ledgerId": 9, "entries": 0}],
        "cursors": {},
    }
    assert parse_positions(TOPIC, stats).latest == Position(5, 2)


@pytest.mark.parametrize("stats", [{}, {"lastConfirmedEntry": "1:1", "ledgers": [], "cursors": {}}, {"ledgers": 3}])
def test_stats_of_another_shape_are_refused(stats: dict[str, object]) -> None:
    with pytest.raises(FormatError):
        parse_positions(TOPIC, stats)


@pytest.mark.parametrize("text", ["", "5", "5:", "a:1", "5:-2", "5:1:1"])
def test_a_position_of_another_shape_is_refused(text: str) -> None:
    with pytest.raises(FormatError):
        Position.parse(text)
