"""Entries that hold up the sweep: found, timed, told once, and nothing else taken for one."""

from __future__ import annotations

import pytest

from bookwarden.clusters.pulsar.rest.topic_positions import EntriesBehind
from bookwarden.ledgers.managed_ledger import Position
from bookwarden.pipelines.sweep.driver import StuckWatch

TOPIC, OTHER = "persistent://t/n/d-partition-0", "persistent://t/n/d-partition-1"
STUCK = Position(7, 3)


class Watching:
    def __init__(self) -> None:
        self.now = 0.0
        self.problem: str | None = "its broker sends nothing"
        self.asked: list[Position] = []
        self.watch = StuckWatch(self._why, lambda: self.now)

    def _why(self, topic: str, position: Position) -> str | None:
        self.asked.append(position)
        return self.problem

    def after(self, seconds: float, first: Position | None, entries: int = 1) -> float:
        self.now += seconds
        return self.watch.look({TOPIC: EntriesBehind(entries, first)})[TOPIC]


def test_a_partition_that_stands_at_an_entry_is_timed_from_when_it_came_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watching = Watching()
    assert [watching.after(seconds, STUCK) for seconds in (0, 59)] == [0, 0]
    assert watching.asked == []
    assert [watching.after(seconds, STUCK) for seconds in (1, 15)] == [60, 75]
    (told,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert f"{TOPIC}: entry 7:3 cannot be read (its broker sends nothing)" in told
    assert "60 s" in told


def test_what_can_be_read_is_not_due_or_under_way(caplog: pytest.LogCaptureFixture) -> None:
    watching = Watching()
    watching.problem = None
    assert [watching.after(3600, STUCK) for _ in range(3)] == [0, 0, 0]
    assert caplog.text == ""


def test_a_partition_that_gets_on_or_is_done_is_no_longer_stuck(caplog: pytest.LogCaptureFixture) -> None:
    watching = Watching()
    for first in (Position(7, 4), None):
        assert (watching.after(0, STUCK), watching.after(100, STUCK)) == (0, 100)
        assert (watching.after(1, first), watching.after(1, first)) == (0, 0)
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 2


def test_each_partition_stands_for_itself() -> None:
    watching = Watching()
    behind = {TOPIC: EntriesBehind(1, STUCK), OTHER: EntriesBehind(9, Position(1, 0))}
    watching.watch.look(behind)
    watching.now = 100
    assert watching.watch.look({**behind, OTHER: EntriesBehind(3, Position(1, 6))}) == {TOPIC: 100, OTHER: 0}
