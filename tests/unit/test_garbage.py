"""Workers look for garbage seldom, and an application's own choice stands."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from bookwarden.pipelines.garbage import collect_seldom


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
