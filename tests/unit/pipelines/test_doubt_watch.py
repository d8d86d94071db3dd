"""The driver's look for doubts that a batch waits for: seldom, timed, logged once, and gone with the doubt."""

from __future__ import annotations

import logging

import pytest

from bookwarden.ledgers.shared_doubts import DoubtCause, SharedDoubt, unreadable_node
from bookwarden.pipelines.sweep.driver import DoubtWatch

NODE = unreadable_node("/managed-ledgers/t/ns/persistent/broken", "no protobuf")
IDS = SharedDoubt(DoubtCause.RETURNING_IDS, "/ledgers", "ids come again")


class Watching:
    def __init__(self) -> None:
        self.now = 0.0
        self.batch = 100.0
        self.doubts = [NODE]
        self.asked = 0
        self.watch = DoubtWatch(10, self._find, lambda: self.batch, lambda: self.now)

    def _find(self) -> list[SharedDoubt]:
        self.asked += 1
        return self.doubts

    def after(self, seconds: float, on_retry_topic: int = 10) -> tuple[float, float]:
        self.now += seconds
        found = self.watch.look(on_retry_topic)
        return found[DoubtCause.UNREADABLE_NODE], found[DoubtCause.RETURNING_IDS]


def test_a_doubt_is_timed_from_the_first_look_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    watching = Watching()
    with caplog.at_level(logging.INFO):
        assert [watching.after(seconds) for seconds in (1, 15, 15)] == [(0, 0), (15, 0), (30, 0)]
        watching.doubts = [NODE, IDS]
        assert [watching.after(15), watching.after(15)] == [(45, 0), (60, 15)]
        assert watching.watch.is_waiting
        watching.doubts = []
        assert watching.after(15) == (0, 0)
    assert not watching.watch.is_waiting
    logged = [record.getMessage() for record in caplog.records]
    assert [NODE.path in logged[0], "ids come again" in logged[1], len(logged)] == [True, True, 3]


@pytest.mark.parametrize(("on_retry_topic", "batch"), [(9, 100.0), (10, 0.0), (10, 19.0)])
def test_nothing_is_read_while_no_batch_can_be_waiting(on_retry_topic: int, batch: float) -> None:
    watching = Watching()
    watching.batch = batch
    assert watching.after(0, on_retry_topic) == (0, 0)
    assert watching.asked == 0
    assert not watching.watch.is_waiting


def test_a_batch_that_begins_after_the_look_is_not_taken_for_one_that_waits() -> None:
    watching = Watching()
    watching.after(0)
    watching.batch = 1.0
    assert not watching.watch.is_waiting
