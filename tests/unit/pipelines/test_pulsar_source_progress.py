"""Order and completeness of delivered messages."""

from __future__ import annotations

import contextlib

import pulsar
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from bookwarden.clusters.pulsar.rest.topic_positions import Position
from bookwarden.errors import FormatError
from bookwarden.pipelines.pulsar_source.progress import Progress, Verdict, is_chunked, rows_of_entry
from bookwarden.pipelines.pulsar_source.ranges import EntryRange
from bookwarden.pipelines.pulsar_source.schema import ARROW_SCHEMA, SCHEMA


def two_ledgers() -> Progress:
    return Progress([EntryRange(5, 1, 2), EntryRange(9, 0, 0)])


def test_every_entry_in_order_completes_the_plan() -> None:
    progress = two_ledgers()
    taken = [progress.judge(*place, 0, 1) for place in ((5, 1), (5, 2), (9, 0))]
    assert taken == [Verdict.TAKE] * 3
    assert progress.is_done


def test_every_row_of_a_batched_entry_is_needed() -> None:
    progress = Progress([EntryRange(5, 1, 1)])
    assert progress.judge(5, 1, 0, 2) is Verdict.TAKE
    assert not progress.is_done
    assert progress.judge(5, 1, 1, 2) is Verdict.TAKE
    assert progress.is_done


def test_a_lost_tail_of_a_batched_entry_is_a_gap() -> None:
    progress = two_ledgers()
    progress.judge(5, 1, 0, 3)
    assert progress.judge(5, 2, 0, 1) is Verdict.GAP
    assert progress.is_inside_entry
    assert progress.expected == Position(5, 1)


def test_a_missing_row_or_entry_is_a_gap() -> None:
    progress = two_ledgers()
    assert progress.judge(5, 1, 1, 3) is Verdict.GAP
    assert progress.judge(5, 2, 0, 1) is Verdict.GAP
    assert progress.judge(9, 0, 0, 1) is Verdict.GAP


def test_what_was_delivered_before_is_ignored() -> None:
    progress = two_ledgers()
    assert progress.judge(5, 0, 0, 1) is Verdict.SEEN
    progress.judge(5, 1, 0, 2)
    assert progress.judge(5, 1, 0, 2) is Verdict.SEEN


def test_a_skipped_entry_and_a_skipped_ledger_are_not_expected() -> None:
    progress = two_ledgers()
    progress.skip_entry()
    assert progress.expected == Position(5, 2)
    progress.skip_ledger()
    assert progress.expected == Position(9, 0)
    progress.skip_ledger()
    assert progress.is_done


def test_batch_size_and_chunks_are_read_from_a_message_id() -> None:
    assert rows_of_entry(b"\x08\x02\x10\x00\x18\x00 \x030\n") == 10
    assert rows_of_entry(pulsar.MessageId(-1, 2, 300, -1).serialize()) == 1
    assert is_chunked(b"\x08\x02\x10\x04\x18\x00:\x06\x08\x02\x10\x03\x18\x00")
    assert not is_chunked(b"\x08\x02\x10\x00\x18\x00 \x030\n")


@given(st.binary(max_size=24))
def test_no_bytes_do_anything_but_give_a_size_or_the_error_of_the_format(data: bytes) -> None:
    with contextlib.suppress(FormatError):
        assert rows_of_entry(data) >= 1


def test_arrow_columns_are_those_that_spark_expects() -> None:
    assert to_arrow_schema(SCHEMA, timezone="UTC").equals(ARROW_SCHEMA)
