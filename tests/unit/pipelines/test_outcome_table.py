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
