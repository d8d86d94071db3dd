"""The outcome table: a replay adds no duplicate, an interrupted merge neither loses nor doubles a row."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bookwarden.ledgers.outcomes import Outcome, OutcomeRow
from bookwarden.pipelines.streams.outcome_table import ARROW_SCHEMA, OutcomeTable, outcome_batch

QUERY = "0b5c6a1e-0000-4000-8000-000000000001"
DAY = datetime(2026, 3, 1, 23, 59, tzinfo=timezone.utc)
NEXT_DAY = datetime(2026, 3, 2, 0, 1, tzinfo=timezone.utc)


def rows(batch: int, count: int = 2, outcome: Outcome = Outcome.DELETED) -> pa.Table:
    made = [
        OutcomeRow(
            ledger_id=batch * 100 + number,
            holder="t/ns/persistent/a",
            component="MANAGED_LEDGER",
            ledger_type="LEDGER",
            outcome=outcome,
            reason="",
            attempts=0,
            marked_at=None,
            published_at=1,
            decided_at=1_700_000_000_123,
            ledger_created_at=3,
            ledger_bytes=None,
            topic="persistent://t/ns/a-partition-0",
            message="1:2:0",
            bookie_cluster="",
        )
        for number in range(count)
    ]
    return pa.Table.from_batches([outcome_batch(made, batch)])


def read(root: Path) -> list[tuple[str, int]]:
    """Read (day, ledger id) of all rows as any Parquet reader would see them."""
    found = []
    for path in root.glob("day=*/[!_]*.parquet"):
        found += [(path.parent.name, ledger) for ledger in pq.ParquetFile(path).read()["ledger_id"].to_pylist()]
    return sorted(found)


def test_rows_keep_their_times_and_nulls(tmp_path: Path) -> None:
    OutcomeTable(str(tmp_path)).write(rows(0), QUERY, 0, DAY)
    (path,) = tmp_path.glob("day=2026-03-01/*.parquet")
    table = pq.ParquetFile(path).read()
    assert table.schema.equals(ARROW_SCHEMA)
    row = table.to_pylist()[0]
    assert row["decided_at"].timestamp() == pytest.approx(1_700_000_000.123)
    assert (row["marked_at"], row["ledger_bytes"], row["outcome"], row["batch"]) == (None, None, "deleted", 0)


def test_a_replayed_batch_replaces_its_own_rows_even_after_midnight(tmp_path: Path) -> None:
    OutcomeTable(str(tmp_path)).write(rows(0), QUERY, 0, DAY)
    OutcomeTable(str(tmp_path)).write(rows(1), QUERY, 1, DAY)
    OutcomeTable(str(tmp_path)).write(rows(1, count=1), QUERY, 1, NEXT_DAY)
    assert read(tmp_path) == [("day=2026-03-01", 0), ("day=2026-03-01", 1), ("day=2026-03-02", 100)]


def test_a_new_checkpoint_never_overwrites_an_old_ones_rows(tmp_path: Path) -> None:
    OutcomeTable(str(tmp_path)).write(rows(0), QUERY, 0, DAY)
    OutcomeTable(str(tmp_path)).write(rows(5), QUERY.replace("1", "2"), 0, DAY)
    assert len(read(tmp_path)) == 4


def test_an_empty_batch_writes_no_file(tmp_path: Path) -> None:
    OutcomeTable(str(tmp_path)).write(rows(0, count=0), QUERY, 0, DAY)
    assert list(tmp_path.rglob("*.parquet")) == []


def test_small_files_are_merged_without_losing_a_row(tmp_path: Path) -> None:
    table = OutcomeTable(str(tmp_path), merge_after=3)
    for batch in range(8):
        table.write(rows(batch), QUERY, batch, DAY if batch < 2 else NEXT_DAY)
    expected = sorted(
        ("day=2026-03-01" if b < 2 else "day=2026-03-02", b * 100 + n) for b in range(8) for n in range(2)
    )
    assert read(tmp_path) == expected
    assert len(list(tmp_path.rglob("*.parquet"))) < 8


def test_large_files_are_left_alone(tmp_path: Path) -> None:
    table = OutcomeTable(str(tmp_path), merge_after=2)
    for batch in range(5):
        table.write(rows(batch, count=2_000 if batch < 2 else 1), QUERY, batch, DAY)
    names = sorted(path.name for path in tmp_path.rglob("*.parquet"))
    assert [name for name in names if name.endswith(("0-000000000000.parquet", "1-000000000001.parquet"))] == names[:2]
    assert len(names) < 5
    assert len(read(tmp_path)) == 4_003


def test_a_merge_never_takes_in_the_batch_that_may_be_replayed(tmp_path: Path) -> None:
    table = OutcomeTable(str(tmp_path), merge_after=3)
    for batch in range(4):
        table.write(rows(batch), QUERY, batch, DAY)
    OutcomeTable(str(tmp_path), merge_after=3).write(rows(3), QUERY, 3, DAY)
    assert len(read(tmp_path)) == 8


def test_a_merge_cut_short_is_cleaned_up_at_the_next_start(tmp_path: Path) -> None:
    table = OutcomeTable(str(tmp_path), merge_after=3)
    for batch in range(3):
        table.write(rows(batch), QUERY, batch, DAY)
    saved = {path: path.read_bytes() for path in tmp_path.rglob("*.parquet")}
    table.write(rows(3), QUERY, 3, DAY)
    for path, content in saved.items():
        path.write_bytes(content)
    assert len(read(tmp_path)) == 14
    OutcomeTable(str(tmp_path)).write(rows(4), QUERY, 4, DAY)
    assert len(read(tmp_path)) == 10


def test_a_location_may_be_hadoops_name_for_s3_and_have_options() -> None:
    OutcomeTable("s3a://bucket/outcomes?region=eu-west-1&endpoint_override=127.0.0.1:9&scheme=http")


def test_a_batch_that_was_cut_short_is_seen_by_nobody_and_its_replay_is(tmp_path: Path) -> None:
    table = OutcomeTable(str(tmp_path))
    table.write(rows(0), QUERY, 0, DAY)
    (tmp_path / "day=2026-03-01" / f"_{QUERY}-000000000001-000000000001.parquet.1-x").write_bytes(b"PAR1")
    OutcomeTable(str(tmp_path)).write(rows(1), QUERY, 1, DAY)
    assert len(read(tmp_path)) == 4


@pytest.mark.parametrize("merge_after", [3, 64])
def test_an_older_copy_of_the_checkpoint_costs_no_row_of_what_was_done(tmp_path: Path, merge_after: int) -> None:
    table = OutcomeTable(str(tmp_path), merge_after=merge_after)
    for batch in range(6):
        table.write(rows(batch), QUERY, batch, DAY)
    before = read(tmp_path)
    # The checkpoint is one of when batch 2 was done: what follows is another life of batches 3 to 6.
    for restart in (3, 5):
        again = OutcomeTable(str(tmp_path), merge_after=merge_after)
        for batch in range(restart, 7):
            again.write(rows(batch + 100), QUERY, batch, NEXT_DAY)
            # Each batch of this life may be replayed as ever.
            OutcomeTable(str(tmp_path), merge_after=merge_after).write(rows(batch + 100), QUERY, batch, NEXT_DAY)
    found = read(tmp_path)
    assert [row for row in found if row[1] < 10_000] == before
    assert {row[1] // 100 for row in found if row[1] >= 10_000} == {103, 104, 105, 106}


def test_batches_merged_with_one_that_comes_again_stay(tmp_path: Path) -> None:
    table = OutcomeTable(str(tmp_path), merge_after=3)
    for batch in range(4):
        table.write(rows(batch), QUERY, batch, DAY)
    (newest,) = tmp_path.rglob("*-000000000003-000000000003.parquet")
    newest.unlink()
    for _ in range(2):
        OutcomeTable(str(tmp_path)).write(rows(102), QUERY, 2, DAY)
    assert [row // 100 for _, row in read(tmp_path)] == [0, 0, 1, 1, 2, 2, 102, 102]


def test_what_was_removed_for_its_age_is_not_merged(tmp_path: Path) -> None:
    table = OutcomeTable(str(tmp_path), merge_after=4, keep_days=1)
    for batch in range(6):
        table.write(rows(batch), QUERY, batch, DAY if batch < 2 else NEXT_DAY)
    assert [row // 100 for _, row in read(tmp_path)] == [2, 2, 3, 3, 4, 4, 5, 5]


def test_only_the_newest_days_are_kept_where_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "day=kept").mkdir(parents=True)
    table = OutcomeTable(str(tmp_path), merge_after=2, keep_days=2)
    days = [datetime(2026, 3, day, tzinfo=timezone.utc) for day in (1, 2, 3, 3, 5, 5)]
    for batch, day in enumerate(days):
        table.write(rows(batch), QUERY, batch, day)
    assert {day for day, _ in read(tmp_path)} == {"day=2026-03-03", "day=2026-03-05"}
    assert len(read(tmp_path)) == 8
    assert sorted(path.name for path in tmp_path.iterdir()) == ["day=2026-03-03", "day=2026-03-05", "day=kept"]
    # A clock that is a year ahead for a moment costs one day.
    table.write(rows(6), QUERY, 6, DAY.replace(year=2027))
    table.write(rows(7), QUERY, 7, days[-1])
    assert {day for day, _ in read(tmp_path)} == {"day=2026-03-05", "day=2027-03-01"}
    OutcomeTable(str(tmp_path)).write(rows(8), QUERY, 8, NEXT_DAY)
    assert len({day for day, _ in read(tmp_path)}) == 3
    OutcomeTable(str(tmp_path), keep_days=1).write(rows(9), QUERY, 9, NEXT_DAY)
    assert {day for day, _ in read(tmp_path)} == {"day=2026-03-02"}
