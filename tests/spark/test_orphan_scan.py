"""The orphan scan's files, stages and joins, on a local Spark and with pieces made by hand."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from bookwarden.errors import NotFoundError, RefusedError, StoreAccessError, StoreError
from bookwarden.ledgers.holders import CursorHolder, ManagedLedgerHolder
from bookwarden.ledgers.listing import ListedLedger, ListedReference
from bookwarden.ledgers.pending_deletion import LedgerComponent
from bookwarden.ledgers.references import Doubt, HoldersBelow, PlaceKind
from bookwarden.orphans.classify import Knowledge
from bookwarden.orphans.plan import Emptied
from bookwarden.orphans.summary import ForeignOwner
from bookwarden.pipelines import scan_lock
from bookwarden.pipelines.folders import Folder
from bookwarden.pipelines.orphan_join import LedgerJoin
from bookwarden.pipelines.scan_files import ScanFolder
from bookwarden.pipelines.scan_lock import alone
from bookwarden.pipelines.scan_stage import Stages
from bookwarden.pipelines.scan_tables import CHANGES, LEDGERS, REFERENCES, ChangedLedger, doubt_of, stored_doubt

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
    if piece > 1_000:
        raise OSError("no space left on device")
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
    folder.folder.write_json("stages/ledgers.json", [1, 2, 2_000, 4])
    with pytest.raises(StoreError, match=r"piece 2 cannot be kept in .*: no space left on device"):
        stages.run("ledgers", list, read_numbers)
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


NOW_MS = 100 * DAY_MS
TOPIC = "t/n/persistent/orders"


def data(ledger_id: int, topic: str = TOPIC, **fields: Any) -> ListedLedger:
    fields = {"state": "CLOSED", "length": 10, "ctime_ms": DAY_MS, **fields}
    return ledger(ledger_id, kind=LedgerComponent.MANAGED_LEDGER.name, holder=topic, **fields)


def named(ledger_id: int | None, topic: str = TOPIC, place: PlaceKind = PlaceKind.MANAGED_LEDGER) -> ListedReference:
    return ListedReference(ledger_id, place.value, topic, topic, f"/managed-ledgers/{topic}", "zk:one")


def fill(
    folder: ScanFolder,
    ledgers: list[ListedLedger],
    references: list[ListedReference],
    changes: list[ChangedLedger] | None = None,
    late: list[ListedReference] | None = None,
) -> None:
    """Write tables of two pieces each, as a scan would."""
    for table, columns, rows in (
        ("ledgers", LEDGERS, ledgers),
        ("references", REFERENCES, references),
        ("late_references", REFERENCES, late or []),
        ("changes", CHANGES, changes or []),
    ):
        for number in range(2):
            folder.write(table, number, columns.table(rows[number::2]), names=len(rows), digest="d")


def knowledge(**fields: Any) -> Knowledge:
    known = {"tenants": {"t"}, "namespaces": {"t/n"}, "existing": frozenset(), "cutoff_ms": NOW_MS - 3 * DAY_MS}
    return Knowledge(**{**known, **fields})


def test_every_ledger_is_joined_with_what_names_it_and_gets_one_class(spark: SparkSession, folder: ScanFolder) -> None:
    ledgers = [
        data(1),
        data(2),
        data(3, ctime_ms=NOW_MS),
        data(4, "other/n/persistent/x"),
        ledger(5, problem="no protobuf"),
        ledger(6, custom="application=bk-stream-storage-service"),
        ledger(7),
        data(8),
        data(8)._replace(path="/ledgers/000/0000/0000/0000/L0008"),
        data(9),
        data(10),
    ]
    references = [named(1), named(1, "t/n/persistent/shadow"), named(7, place=PlaceKind.LOG_SEGMENT), named(20)]
    fill(folder, ledgers, [*references, named(21)._replace(gone=True)], [ChangedLedger(9, True)], [named(10)])
    join = LedgerJoin(spark, folder, NOW_MS)
    known = knowledge(existing=join.existing())
    assert known.existing == {TOPIC}
    found = join.classify(known)
    classes = {row["ledger_id"]: row["ledger_class"] for row in found.others.collect()}
    assert classes == {
        2: "orphan",
        3: "too young",
        4: "foreign",
        5: "unparsable",
        6: "foreign",
        7: "foreign",
        8: "unparsable",
    }
    assert [row["ledger_id"] for row in found.referenced.orderBy("ledger_id").collect()] == [1, 10]
    assert [row["cause"] for row in found.orphans().collect()] == ["trimmed, never deleted"]
    assert [row["ledger_id"] for row in join.unnamed().collect()] == [20]
    cells = {(cell.ledger_class, cell.kind, cell.namespace, cell.age): cell.ledgers for cell in found.cells()}
    assert cells == {
        ("referenced", "MANAGED_LEDGER", "t/n", "<1y"): 2,
        ("orphan", "MANAGED_LEDGER", "t/n", "<1y"): 1,
        ("too young", "MANAGED_LEDGER", "t/n", "<3d"): 1,
        ("foreign", "MANAGED_LEDGER", "other/n", "<1y"): 1,
        ("foreign", "other", "(none)", "<1y"): 2,
        ("unparsable", "other", "(none)", "<1y"): 1,
        ("unparsable", "MANAGED_LEDGER", "t/n", "<1y"): 2,
    }
    assert ForeignOwner("no configured metadata root has the tenant other", 1, 10, (4,)) in found.foreign()
    assert len(found.foreign()) == 3
    join.close()


def test_what_would_be_left_without_a_ledger_is_named(spark: SparkSession, folder: ScanFolder) -> None:
    bare, gone = "t/bare/persistent/a", "t/n/persistent/gone"
    lost, offloaded = "t/n/persistent/lost", "t/n/persistent/offloaded"
    references = [named(None, bare), named(1), named(2), named(None, "t/n/persistent/empty")]
    # The one names a ledger that BookKeeper does not have, the other says itself that it is only in the object store.
    references += [named(99, lost), named(98, offloaded)._replace(gone=True)]
    ledgers = [
        data(1),
        data(2),
        data(3),
        data(4, bare),
        data(5, bare),
        data(6, gone),
        data(7, lost),
        data(8, offloaded),
    ]
    fill(folder, ledgers, references)
    join = LedgerJoin(spark, folder, NOW_MS)
    known = knowledge(existing=join.existing(), namespaces={"t/n", "t/bare"})
    found = join.classify(known)
    assert found.emptied_topics() == [Emptied("topic", bare, 2), Emptied("topic", lost, 1)]
    assert found.orphans_of(["t/bare", "t/none"]) == [Emptied("namespace", "t/bare", 2)]
    join.close()


def test_a_topic_that_no_root_knows_and_that_still_gets_ledgers_is_noticed(
    spark: SparkSession, folder: ScanFolder
) -> None:
    fill(folder, [data(1, "t/n/persistent/busy", ctime_ms=NOW_MS), data(2, ctime_ms=NOW_MS)], [named(None)])
    join = LedgerJoin(spark, folder, NOW_MS)
    assert join.alive(knowledge(existing=join.existing())) == {"t/n/persistent/busy"}
    join.close()


def test_a_doubt_comes_back_from_its_row_as_it_was() -> None:
    about = (ManagedLedgerHolder(TOPIC), CursorHolder(TOPIC, "c"), CursorHolder, HoldersBelow("t/n", (CursorHolder,)))
    doubt = Doubt("/managed-ledgers/t", "zk:one", "no answer", about)
    assert doubt_of(stored_doubt(doubt)) == doubt
    assert doubt_of(stored_doubt(Doubt("/p", "zk:one", "r"))) == Doubt("/p", "zk:one", "r")
