"""What a task gives while it takes long: beats as long as it gets on, its rows in order, and its error."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from bookwarden.pipelines.streams.outcome_table import ARROW_SCHEMA, beat_batch
from bookwarden.pipelines.streams.task_beats import padding, with_beats

STALL = 0.06
BEAT = "beat"


def test_a_step_that_gets_on_beats_and_what_it_gives_comes_in_order() -> None:
    heard = threading.Semaphore(0)

    def steps() -> Iterator[str]:
        yield "first"
        # As slow as it takes to be heard three times.
        assert all(heard.acquire(timeout=60) for _ in range(3))
        yield "second"

    given = []
    for each in with_beats(steps(), itertools.count().__next__, BEAT, stall=STALL):
        given.append(each)
        if each == BEAT:
            heard.release()
    assert [each for each in given if each != BEAT] == ["first", "second"]
    assert given.count(BEAT) >= 3


def test_a_step_that_hangs_is_silent() -> None:
    hanging = threading.Event()

    def steps() -> Iterator[str]:
        assert not hanging.wait(20 * STALL)
        yield "late"

    assert list(with_beats(steps(), lambda: 7, BEAT, stall=STALL)) == ["late"]


def test_what_a_step_raises_is_raised_and_no_step_begins_before_the_last_was_taken() -> None:
    begun = []

    def steps() -> Iterator[int]:
        for number in range(3):
            begun.append(number)
            if number == 2:
                raise OSError("no space")
            yield number

    given = with_beats(steps(), lambda: 0, -1, stall=STALL)
    assert next(given) == 0
    assert begun == [0]
    assert next(given) == 1
    with pytest.raises(OSError, match="no space"):
        next(given)


def test_a_beat_is_a_row_of_the_table_without_an_outcome_that_fills_a_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_BUFFER_SIZE", "100000")
    beat = beat_batch(padding())
    assert beat.schema == ARROW_SCHEMA
    beat.validate(full=True)
    (row,) = beat.to_pylist()
    assert row["outcome"] == ""
    assert pa.Table.from_batches([beat]).nbytes >= 100_000
