"""Workers look for garbage seldom, and an application's own choice stands."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from itertools import count

import pytest

from bookwarden.pipelines import workers
from bookwarden.pipelines.workers import collect_seldom


@pytest.fixture(autouse=True)
def _collector_as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def test_the_collector_runs_seldom_but_runs() -> None:
    gc.set_threshold(700, 10, 10)
    collect_seldom()
    assert gc.get_threshold()[0] > 100_000
    assert gc.isenabled()


def test_a_process_that_collects_still_less_often_is_left_alone() -> None:
    gc.set_threshold(5_000_000, 10, 10)
    collect_seldom()
    assert gc.get_threshold()[0] == 5_000_000


def test_what_the_first_task_leaves_is_not_looked_through_after_the_next_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_tasks", count(1))
    gc.set_threshold(700, 10, 10)
    collect_seldom()
    frozen = gc.get_freeze_count()
    left = [[number] for number in range(10_000)]
    collect_seldom()
    assert gc.get_freeze_count() >= frozen + len(left)


def test_a_worker_that_runs_for_long_freezes_hardly_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[None] = []
    monkeypatch.setattr(workers, "_tasks", count(1))
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(None))
    for _ in range(1000):
        collect_seldom()
    assert len(frozen) == 10
