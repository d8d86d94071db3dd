"""How fast a store is asked, by a clock of the test's own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from bookwarden.errors import ConfigError
from bookwarden.metastore.pacing import LatencyWindow, Pace
from servers.waiting import eventually
from unit.metastore.test_throttle import Clock


class Answers:
    """Plays a store that answers to so many requests at once, each after the same time."""

    def __init__(self, window: LatencyWindow) -> None:
        self.window = window
        self.seconds = 0.0

    def round_of(self, latency: float) -> float:
        """Send as many as may be under way, then take their answers; return the window after it."""
        requests = max(1, int(self.window.size))
        sent_at, self.seconds = self.seconds, self.seconds + latency
        for _ in range(requests):
            self.window.answered(sent_at, self.seconds)
        return self.window.size


def test_slow_answers_halve_what_is_under_way_once_a_round() -> None:
    answers = Answers(LatencyWindow(0.1, 8))
    assert [answers.round_of(0.2) for _ in range(7)] == [4, 2, 1, 0.5, 0.25, 0.125, 0.125]


def test_quick_answers_add_one_a_round_up_to_the_most() -> None:
    answers = Answers(LatencyWindow(0.1, 8))
    for _ in range(3):
        answers.round_of(0.2)
    sizes = [1.0, *(answers.round_of(0.05) for _ in range(20))]
    assert all(after == 8 or 0.5 < after - before <= 1 for before, after in pairwise(sizes))
    assert sizes[-1] == 8


def test_it_settles_where_a_store_that_takes_longer_the_more_it_is_asked_is_as_quick_as_it_should() -> None:
    answers = Answers(LatencyWindow(0.1, 64))
    sizes = [answers.round_of(0.02 * max(1, answers.window.size)) for _ in range(200)]
    assert all(2 <= size <= 7 for size in sizes[20:])


def test_one_slow_answer_among_quick_ones_changes_nothing() -> None:
    window = LatencyWindow(0.1, 8)
    for number in range(20):
        window.answered(number, number + (0.3 if number == 10 else 0.01))
    assert window.size == 8


def test_answers_to_what_was_sent_before_a_cut_do_not_cut_again() -> None:
    window = LatencyWindow(0.1, 8)
    for _ in range(8):
        window.answered(0.0, 1.0)
    window.lost(0.5, 1.1)
    assert window.size == 4
    window.lost(1.2, 1.3)
    assert window.size == 2


def test_below_one_request_at_once_there_are_pauses_that_end() -> None:
    answers = Answers(LatencyWindow(0.1, 8))
    for _ in range(4):
        answers.round_of(0.2)
    assert (answers.window.size, answers.window.pause) == (0.5, pytest.approx(0.1))
    for _ in range(2):
        answers.round_of(0.2)
    assert answers.window.pause == pytest.approx(0.7)
    while answers.window.pause:
        before = answers.window.pause
        answers.round_of(0.01)
        assert answers.window.pause < before
    assert answers.window.size >= 1


def test_no_pause_is_long_however_slow_the_store_may_be() -> None:
    answers = Answers(LatencyWindow(60.0, 1))
    for _ in range(3):
        answers.round_of(100.0)
    assert answers.window.pause == 5.0


@pytest.mark.parametrize("limit", [0, -1, float("nan")])
def test_limits_that_would_let_nothing_pass_are_refused(limit: float) -> None:
    with pytest.raises(ConfigError, match="max_requests_per_second"):
        Pace(8, limit)
    with pytest.raises(ConfigError, match="highest latency"):
        Pace(8, None, limit)


def test_each_node_of_a_request_counts() -> None:
    clock = Clock()
    pace = Pace(8, 100, now=clock.now, sleep=clock.sleep)
    assert (pace.most_nodes(500), pace.most_nodes(3)) == (10, 3)
    assert Pace(8, 0.5).most_nodes(500) == 1
    held = []
    for nodes in (10, 5, 1):
        turn = pace.turn(nodes, timeout=0)
        assert turn is not None
        held.append(round(turn.held_s, 6))
    assert held == [0, 0.1, 0.05]
    assert clock.passed == pytest.approx(0.15)


def test_without_limits_everything_passes_at_once() -> None:
    pace = Pace(1)
    assert not pace.is_limited
    assert pace.most_nodes(500) == 500
    assert all(pace.turn(100, timeout=0) for _ in range(20))


def test_no_more_than_the_window_are_under_way() -> None:
    pace = Pace(2, max_latency_s=60.0)
    first, second = pace.turn(1, 0), pace.turn(1, 0)
    assert first is not None
    assert second is not None
    assert pace.turn(1, timeout=0) is None
    pace.done(first)
    # Told twice, as kazoo may, it is still one.
    pace.done(first)
    assert pace.turn(1, timeout=0) is not None
    assert pace.turn(1, timeout=0) is None
    pace.forget()
    assert [pace.turn(1, 0) is not None for _ in range(3)] == [True, True, False]
    pace.done(second)
    assert pace.turn(1, timeout=0) is None


def test_who_waits_passes_when_an_answer_comes_and_is_told_how_long_it_took() -> None:
    clock = Clock()
    pace = Pace(1, max_latency_s=60.0, now=clock.now)
    first = pace.turn(1, 0)
    assert first is not None
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(pace.turn, 1, timeout=30)
        eventually(lambda: pace._changed._waiters)  # type: ignore[attr-defined]  # nothing else tells that somebody waits
        clock.seconds += 7
        pace.done(first)
        second = waiting.result(30)
    assert second is not None
    assert second.held_s == 7


def test_lost_and_slow_answers_lead_to_pauses_that_are_told_from_waiting() -> None:
    clock = Clock()
    pace = Pace(1, max_latency_s=2.0, now=clock.now, sleep=clock.sleep)
    held = []
    for _ in range(4):
        turn = pace.turn(1, timeout=0)
        assert turn is not None
        held.append(turn.held_s)
        clock.seconds += 3
        pace.done(turn, answered=False)
    assert held == pytest.approx([0, 2, 5, 5])
