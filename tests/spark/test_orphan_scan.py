"""The orphan scan's files, stages and joins, on a local Spark and with pieces made by hand."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from bookwarden.errors import NotFoundError, RefusedError, StoreAccessError
from bookwarden.ledgers.listing import ListedLedger
from bookwarden.pipelines import scan_lock
from bookwarden.pipelines.folders import Folder
from bookwarden.pipelines.scan_files import ScanFolder
from bookwarden.pipelines.scan_lock import alone
from bookwarden.pipelines.scan_stage import Stages
from bookwarden.pipelines.scan_tables import LEDGERS

# Spark's workers cannot import the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

DAY_MS = 86_400_000


def ledger(ledger_id: int, **fields: Any) -> ListedLedger:
    return ListedLedger(ledger_id, f"/ledgers/00/0000/L{ledger_id:04d}", 0, DAY_MS, **fields)


def read_numbers(folder: ScanFolder, number: int, piece: Any) -> None:
    """Read a piece of two ledgers; a piece with a minus cannot be read, and says so."""
    with (Path(folder.folder.location) / f"read-{number}").open("a") as file:
        file.write("read\n")
    if piece < 0:
        raise StoreAccessError(f"piece {piece} is not for us")
    rows = LEDGERS.table([ledger(10 * piece), ledger(10 * piece + 1)])
    folder.write("ledgers", number, rows, names=2, digest=f"d{piece}", others={"copies": LEDGERS.table([])})


@pytest.fixture
def folder(tmp_path: Path) -> ScanFolder:
    return ScanFolder(str(tmp_path / "scan"))


def times_read(folder: ScanFolder, number: int) -> int:
    return len((Path(folder.folder.location) / f"read-{number}").read_text().splitlines())


def test_a_stage_reads_every_piece_once_and_tells_how_far_it_is(spark: SparkSession, folder: ScanFolder) -> None:
    told: list[tuple[str, int, int]] = []
    stages = Stages(spark, folder, lambda *progress: told.append(progress))
    seals = stages.run("ledgers", lambda: list(range(50)), read_numbers, ["copies"])
    assert [seal.digest for seal in seals] == [f"d{piece}" for piece in range(50)]
    assert sum(seal.rows for seal in seals) == 100
    assert (told[0], told[-1]) == (("ledgers", 0, 50), ("ledgers", 50, 50))
    found = spark.read.schema(LEDGERS.spark).parquet(folder.folder.for_spark("ledgers"))
    assert found.count() == 100
    assert spark.read.schema(LEDGERS.spark).parquet(folder.folder.for_spark("copies")).count() == 0
    assert [times_read(folder, number) for number in range(50)] == [1] * 50


def test_a_stage_that_failed_goes_on_with_what_is_not_finished(spark: SparkSession, folder: ScanFolder) -> None:
    stages = Stages(spark, folder)
    with pytest.raises(StoreAccessError, match="piece -7 is not for us"):
        stages.run("ledgers", lambda: [1, 2, -7, 4], read_numbers)
    folder.folder.write_json("stages/ledgers.json", [1, 2, 3, 4])
    finished = folder.finished("ledgers")
    assert 2 not in finished
    seals = stages.run("ledgers", lambda: pytest.fail("the pieces are known"), read_numbers)
    assert [seal.digest for seal in seals] == ["d1", "d2", "d3", "d4"]
    assert all(times_read(folder, number) == 1 for number in finished)


def test_a_piece_whose_file_was_cut_off_is_read_again(spark: SparkSession, folder: ScanFolder) -> None:
    stages = Stages(spark, folder)
    stages.run("ledgers", lambda: [1, 2], read_numbers)
    file = Path(folder.folder.location, "ledgers", "piece-00001.parquet")
    file.write_bytes(file.read_bytes()[:-20])
    seals = stages.run("ledgers", list, read_numbers)
    assert (times_read(folder, 0), times_read(folder, 1), seals[1].rows) == (1, 2, 2)


def test_rows_that_an_unfinished_attempt_wrote_to_other_tables_do_not_stay(folder: ScanFolder) -> None:
    rows = LEDGERS.table([ledger(1)])
    folder.write("references", 0, rows, names=1, digest="a", others={"copies": rows})
    folder.write("references", 0, rows, names=1, digest="a", others={"copies": LEDGERS.table([])})
    with pytest.raises(FileNotFoundError):
        folder.read("copies", 0)


def test_half_a_file_is_never_seen(folder: ScanFolder) -> None:
    def break_off(sink: pa.NativeFile) -> None:
        sink.write(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        folder.folder.write("ledgers/piece-00000.parquet", break_off)
    assert folder.finished("ledgers") == set()
    assert list(Path(folder.folder.location, "ledgers").iterdir()) == []


def test_a_folder_without_a_scan_is_named(folder: ScanFolder) -> None:
    with pytest.raises(NotFoundError, match="there is no scan in"):
        folder.header()


@pytest.fixture(params=["path", "uri"])
def shared_folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """A folder on this machine, and one that could be anywhere."""
    if request.param == "uri":
        monkeypatch.setattr(Folder, "local_path", None)
    return Folder(str(tmp_path))


def test_two_processes_do_not_work_on_one_scan(shared_folder: Folder) -> None:
    with alone(shared_folder), pytest.raises(RefusedError, match=r"work(s)? on"), alone(shared_folder):
        pytest.fail("both have it")
    with alone(shared_folder):
        pass


def test_a_lock_that_was_not_written_for_long_is_taken_over_and_its_holder_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Folder, "local_path", None)
    monkeypatch.setattr(scan_lock, "DEAD_AFTER_SECONDS", 0.0)
    folder = Folder(str(tmp_path))
    with pytest.raises(RefusedError, match="took over"), alone(folder), alone(folder):
        pass
