"""Order and completeness of what a plan expects, and the columns that Spark does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from bookwarden.ledgers.managed_ledger import Position
from bookwarden.pipelines.pulsar_source.columns import ARROW_SCHEMA, SCHEMA
from bookwarden.pipelines.pulsar_source.ranges import EntryRange, ReadProgress, first_readable


def passed(progress: ReadProgress) -> list[Position]:
    found = []
    while not progress.is_done:
        found.append(progress.expected)
        progress.pass_entry()
    return found


def test_every_planned_entry_is_expected_once_and_in_order() -> None:
    ranges = [EntryRange(5, 1, 2), EntryRange(7, 0, -1), EntryRange(9, 0, 0)]
    assert passed(ReadProgress(ranges)) == [Position(5, 1), Position(5, 2), Position(9, 0)]
    assert passed(ReadProgress([])) == []


def test_what_is_passed_together_is_of_one_ledger() -> None:
    progress = ReadProgress([EntryRange(5, 1, 9), EntryRange(9, 0, 0)])
    progress.pass_to(4)
    assert (progress.expected, progress.last_of_ledger) == (Position(5, 5), Position(5, 9))
    progress.pass_to(9)
    assert (progress.expected, progress.last_of_ledger) == (Position(9, 0), Position(9, 0))
    progress.pass_to(0)
    assert progress.is_done


@given(lost=st.integers(0, 50), run=st.integers(0, 200), behind=st.integers(0, 200))
def test_the_end_of_a_run_that_cannot_be_read_is_found_with_few_questions(lost: int, run: int, behind: int) -> None:
    asked: list[int] = []

    def is_readable(entry: int) -> bool:
        asked.append(entry)
        return entry > lost + run

    last = lost + run + behind
    assert first_readable(lost, last, is_readable) == lost + run + 1
    assert all(lost < entry <= last for entry in asked)
    assert len(asked) <= 2 * (run + 1).bit_length() + 1


def test_arrow_columns_are_those_that_spark_expects() -> None:
    assert to_arrow_schema(SCHEMA, timezone="UTC").equals(ARROW_SCHEMA)
