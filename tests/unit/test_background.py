"""Work that goes on beside a block."""

from __future__ import annotations

import threading

import pytest

from bookwarden.background import in_background


def test_it_is_told_of_the_blocks_end_and_waited_for() -> None:
    steps: list[str] = []
    begun = threading.Event()

    def work(ended: threading.Event) -> None:
        steps.append(threading.current_thread().name)
        begun.set()
        ended.wait()
        steps.append("ended")

    with in_background(work, "beside"):
        assert begun.wait(10)
        assert steps == ["beside"]
    assert steps == ["beside", "ended"]


def test_it_ends_with_a_block_that_fails() -> None:
    seen: list[threading.Event] = []
    with pytest.raises(ZeroDivisionError), in_background(seen.append, "beside"):
        raise ZeroDivisionError
    assert seen[0].is_set()


def test_it_is_waited_for_no_longer_than_asked() -> None:
    free = threading.Event()
    with in_background(lambda _ended: free.wait(60), "stubborn", end_seconds=0.01):
        pass
    free.set()
