"""The orphan scan's files, stages and joins, on a local Spark and with pieces made by hand."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from bookwarden.deletion.node_check import NodeDoubt
from bookwarden.errors import FileError, NotFoundError, RefusedError, StoreAccessError
from bookwarden.ledgers.kinds import CursorHolder, LedgerComponent, ManagedLedgerHolder, PlaceKind
from bookwarden.ledgers.listing import ListedLedger, ListedReference
from bookwarden.ledgers.references import Doubt, HoldersBelow
from bookwarden.orphans.classify import Knowledge
from bookwarden.orphans.plan import EmptiedScope
from bookwarden.orphans.summary import ForeignOwner, InsideList
from bookwarden.pipelines.columns.tables import (
    CHANGES,
    HOLDERS,
    LEDGERS,
    REFERENCES,
    ChangedLedger,
    HolderName,
    doubt_of,
    stored_doubt,
)
from bookwarden.pipelines.folders import Folder
from bookwarden.pipelines.plan_files import ORPHANS
from bookwarden.pipelines.scan import lock as scan_lock
from bookwarden.pipelines.scan.classes import Classification, ClassifyPiece
from bookwarden.pipelines.scan.files import ScanFolder, Seal
from bookwarden.pipelines.scan.ids import compare_ids
from bookwarden.pipelines.scan.join import LedgerJoin
from bookwarden.pipelines.scan.lock import alone
from bookwarden.pipelines.scan.planning import absent_references, pieces_with_references
from bookwarden.pipelines.scan.reading import HOLDER_TABLES, OF_LOGS, SAID_GONE, holders_in
from bookwarden.pipelines.scan.rows import read_table
from bookwarden.pipelines.scan.stage import Stages

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
    assert read_table(spark, folder, "ledgers", LEDGERS).count() == 100
    assert read_table(spark, folder, "copies", LEDGERS).count() == 0
    assert [times_read(folder, number) for number in range(50)] == [1] * 50


def test_a_stage_that_failed_goes_on_with_what_is_not_finished(spark: SparkSession, folder: ScanFolder) -> None:
    stages = Stages(spark, folder)
    with pytest.raises(StoreAccessError, match="piece -7 is not for us"):
        stages.run("ledgers", lambda: [1, 2, -7, 4], read_numbers)
    folder.folder.write_json("stages/ledgers.json", [1, 2, 2_000, 4])
    with pytest.raises(FileError, match=r"piece 2 cannot be kept in .*: no space left on device"):
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
    *,
    with_lists: bool = False,
) -> dict[str, list[Seal]]:
    """Write tables of two pieces each, as a scan would; give their seals."""
    for table in (*HOLDER_TABLES, "ledgers", "references", "late_references", "changes"):
        folder.folder.make(table)
    return {
        table: [
            folder.write(
                table,
                number,
                columns.table(rows[number::2]),
                names=len(rows),
                digest="d",
                others=known(holders, rows[number::2], with_lists) if holders else {},
                notes=notes_of(rows[number::2]) if holders else {},
            )
            for number in range(2)
        ]
        for table, columns, rows, holders in (
            ("ledgers", LEDGERS, ledgers, None),
            ("references", REFERENCES, references, HOLDER_TABLES[0]),
            ("late_references", REFERENCES, late or [], HOLDER_TABLES[1]),
            ("changes", CHANGES, changes or [], None),
        )
    }


def notes_of(references: list[ListedReference]) -> dict[str, int]:
    return {OF_LOGS: sum("log" in row.place for row in references), SAID_GONE: sum(row.gone for row in references)}


def known(table: str, references: list[ListedReference], with_lists: bool) -> dict[str, pa.Table]:
    if with_lists:
        return {table: holders_in(REFERENCES.table(references))}
    return {table: HOLDERS.table([HolderName(row.holder) for row in references])}


@dataclass
class Joined:
    """A scan whose ledgers and references were joined."""

    spark: SparkSession
    folder: ScanFolder
    seals: dict[str, list[Seal]]

    def __post_init__(self) -> None:
        self.stages = Stages(self.spark, self.folder)
        self.ids = compare_ids(self.folder, self.seals)
        cutoff_ms = NOW_MS - 3 * DAY_MS
        self.join = LedgerJoin(self.stages, self.folder, self.ids, now_ms=NOW_MS, cutoff_ms=cutoff_ms)

    def absent(self) -> list[int]:
        pieces = pieces_with_references(self.seals)
        found = [absent_references(self.folder, stage, number) for stage, number in pieces]
        return [ledger_id for rows in found for ledger_id in rows.column("ledger_id").to_pylist()]

    def classify(self, known: Knowledge, doubted: Collection[int] = ()) -> Classification:
        def doubts(ledgers: Sequence[ListedLedger]) -> list[NodeDoubt | None]:
            return [NodeDoubt("/m", f"odd {one.ledger_id}") if one.ledger_id in doubted else None for one in ledgers]

        task = ClassifyPiece(self.spark.sparkContext.broadcast(known), NOW_MS, doubts)
        return Classification(self.spark, self.stages, self.folder, self.join.left_over, task)


def orphans_of(found: Classification) -> list[dict[str, Any]]:
    tables = list(found.orphans())
    assert all(table.schema.equals(ORPHANS.arrow) for table in tables)
    return [row for table in tables for row in table.to_pylist()]


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
    references.append(named(21)._replace(gone=True))
    joined = Joined(spark, folder, fill(folder, ledgers, references, [ChangedLedger(9, True)], [named(10)]))
    known = knowledge(existing=joined.join.existing())
    assert known.existing == {TOPIC}
    found = joined.classify(known)
    classes = {row["ledger_id"]: row["ledger_class"] for row in found.others().collect()}
    assert classes == {
        2: "orphan",
        3: "too young",
        4: "foreign",
        5: "unparsable",
        6: "foreign",
        7: "foreign",
        8: "unparsable",
    }
    assert [(one["ledger_id"], one["cause"]) for one in orphans_of(found)] == [(2, "trimmed, never deleted")]
    assert joined.absent() == [20]
    assert found.damaged() == []
    doubted = joined.classify(known, [2])
    assert orphans_of(doubted) == []
    assert doubted.damaged() == [Doubt("/m", "", "it may be damaged: odd 2")]
    (kept,) = (row for row in doubted.others().collect() if row["ledger_id"] == 2)
    assert (kept["ledger_class"], kept["detail"]) == ("references unknown", "the node /m may be damaged: odd 2")
    # Of a holder that has no node there is none to be damaged.
    assert [one["ledger_id"] for one in orphans_of(joined.classify(knowledge(), [2]))] == [2]
    found = joined.classify(known)
    cells = {(cell.ledger_class, cell.kind, cell.namespace, cell.age): cell.ledgers for cell in found.cells}
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


def test_what_all_places_call_deleted_and_is_there_was_left_behind(spark: SparkSession, folder: ScanFolder) -> None:
    shadow = "t/n/persistent/shadow"
    compacted = {"kind": LedgerComponent.COMPACTED_LEDGER.name, "holder": f"compacted:{TOPIC}"}
    ledgers = [data(1), data(2), data(3), data(4), data(5, ctime_ms=NOW_MS), data(6, "t/n/persistent/doubtful")]
    ledgers += [ledger(7, **compacted, length=5, ctime_ms=DAY_MS), ledger(8, **compacted, ctime_ms=DAY_MS)]
    gone = [named(ledger_id)._replace(gone=True) for ledger_id in (1, 2, 3, 4, 5, 6, 99)]
    gone += [named(ledger_id, place=PlaceKind.COMPACTED)._replace(gone=True) for ledger_id in (7, 8)]
    # One is of a shadow that still reads it in BookKeeper, and one of a log; one is the compacted ledger in use.
    others = [named(2, shadow, PlaceKind.SHADOW_TOPIC), named(3, place=PlaceKind.LOG_SEGMENT)]
    others += [named(8, place=PlaceKind.COMPACTED_NOW), named(1, shadow, PlaceKind.SHADOW_TOPIC)._replace(gone=True)]
    joined = Joined(spark, folder, fill(folder, ledgers, [*gone, *others]))
    doubt = Doubt("/x", "zk:one", "refused", (ManagedLedgerHolder("t/n/persistent/doubtful"),))
    found = joined.classify(knowledge(existing=joined.join.existing(), doubts=(doubt,)))
    assert [(one["ledger_id"], one["cause"], one["length"]) for one in orphans_of(found)] == [
        (1, "offloaded, never deleted", 10),
        (4, "offloaded, never deleted", 10),
        (7, "compacted ledger replaced, never deleted", 5),
    ]
    counted = Counter[str]()
    for cell in found.cells:
        counted[cell.ledger_class] += cell.ledgers
    assert counted == {"left behind": 3, "referenced": 5}
    assert joined.absent() == []


def test_ledgers_that_their_topics_lists_lost_are_a_class_of_their_own(spark: SparkSession, folder: ScanFolder) -> None:
    nothing, dead, twice = (f"t/n/persistent/{name}" for name in ("nothing", "dead", "twice"))
    references = [named(12), named(14), named(None, nothing), named(40, twice)]
    late = [
        named(30, twice)._replace(root="zk:two"),
        named(None, TOPIC, PlaceKind.CURSOR)._replace(holder=f"{TOPIC}/c"),
    ]
    ledgers = [
        *(data(ledger_id) for ledger_id in range(11, 16)),
        data(16)._replace(length=0),
        data(17)._replace(length=0, state="OPEN"),
        data(20, nothing),
        data(21, dead),
        *(data(ledger_id, twice) for ledger_id in (29, 30, 35, 40)),
    ]
    joined = Joined(spark, folder, fill(folder, ledgers, references, late=late, with_lists=True))
    known = knowledge(existing=joined.join.existing(), first_listed=joined.join.first_listed())
    assert known.first_listed == {TOPIC: 12, nothing: -1, twice: 30}
    assert joined.join.holey() == {TOPIC, nothing, twice}
    found = joined.classify(known)
    assert [(one["ledger_id"], one["cause"]) for one in orphans_of(found)] == [
        (11, "trimmed, never deleted"),
        (16, "created, never listed"),
        (17, "created, never listed"),
        (21, "topic deleted"),
        (29, "trimmed, never deleted"),
    ]
    assert found.inside_lists() == [
        InsideList(13, 10, TOPIC, "its topic lists older ledgers, from 12 on"),
        InsideList(15, 10, TOPIC, "its topic lists older ledgers, from 12 on"),
        InsideList(20, 10, nothing, "its topic lists no ledger at all"),
        InsideList(35, 10, twice, "its topic lists older ledgers, from 30 on"),
    ]
    # They are not what the topic would be left without.
    assert found.emptied_topics() == []


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
    joined = Joined(spark, folder, fill(folder, ledgers, references))
    found = joined.classify(knowledge(existing=joined.join.existing(), namespaces={"t/n", "t/bare"}))
    assert found.emptied_topics() == [EmptiedScope("topic", bare, 2), EmptiedScope("topic", lost, 1)]
    assert found.orphans_of(["t/bare", "t/none"]) == [EmptiedScope("namespace", "t/bare", 2)]


def test_a_topic_that_no_root_knows_and_that_still_gets_ledgers_is_noticed(
    spark: SparkSession, folder: ScanFolder
) -> None:
    busy, quiet = "t/n/persistent/busy", "t/n/persistent/quiet"
    ledgers = [data(1, busy, ctime_ms=NOW_MS), data(2, ctime_ms=NOW_MS), data(3, quiet), data(4, busy)]
    join = Joined(spark, folder, fill(folder, ledgers, [named(None)])).join
    assert join.alive(knowledge(existing=join.existing())) == {busy}


def test_the_schema_of_a_topic_that_is_alive_elsewhere_is_held_back(spark: SparkSession, folder: ScanFolder) -> None:
    of_schemas = {"kind": LedgerComponent.SCHEMA_STORAGE.name, "state": "CLOSED", "length": 10, "ctime_ms": DAY_MS}
    ledgers = [
        data(1, "t/n/persistent/busy-partition-2", ctime_ms=NOW_MS),
        data(2, "t/n/persistent/single", ctime_ms=NOW_MS),
        ledger(3, **of_schemas, holder="schema:t/n/busy"),
        ledger(4, **of_schemas, holder="schema:t/n/single"),
        ledger(5, **of_schemas, holder="schema:t/n/quiet"),
    ]
    joined = Joined(spark, folder, fill(folder, ledgers, [named(None)]))
    known = knowledge(existing=joined.join.existing())
    found = joined.classify(replace(known, alive=joined.join.alive(known)))
    assert [one["ledger_id"] for one in orphans_of(found)] == [5]


def test_of_a_topic_whose_list_lost_ledgers_nothing_is_planned(spark: SparkSession, folder: ScanFolder) -> None:
    part, sound = "t/n/persistent/cut-partition-1", "t/n/persistent/sound"
    of_schemas = {"kind": LedgerComponent.SCHEMA_STORAGE.name, "state": "CLOSED", "length": 10, "ctime_ms": DAY_MS}
    ledgers = [
        *(data(ledger_id, part) for ledger_id in (1, 4)),
        *(data(ledger_id, sound) for ledger_id in (2, 5)),
        ledger(6, **of_schemas, holder="schema:t/n/cut"),
        ledger(7, **of_schemas, holder="schema:t/n/sound"),
        data(8, sound)._replace(length=0),
    ]
    references = [named(3, part), named(6, sound)]
    joined = Joined(spark, folder, fill(folder, ledgers, references, with_lists=True))
    known = knowledge(existing=joined.join.existing(), first_listed=joined.join.first_listed())
    assert joined.join.holey() == {part, "t/n/persistent/cut"}
    found = joined.classify(replace(known, holey=joined.join.holey()))
    assert [one["ledger_id"] for one in orphans_of(found)] == [2, 5, 7, 8]


def test_orphans_come_by_growing_id_from_pieces_that_overlap(spark: SparkSession, folder: ScanFolder) -> None:
    ledgers = [data(ledger_id) for ledger_id in range(1, 40)]
    joined = Joined(spark, folder, fill(folder, ledgers, [named(8), named(9)]))
    found = joined.classify(knowledge(existing=joined.join.existing()))
    assert [one["ledger_id"] for one in orphans_of(found)] == [*range(1, 8), *range(10, 40)]


def test_a_join_that_was_broken_off_is_made_anew(spark: SparkSession, folder: ScanFolder) -> None:
    seals = fill(folder, [data(1), data(2)], [])
    before = Joined(spark, folder, seals)
    assert len(orphans_of(before.classify(knowledge()))) == 2
    seals = fill(folder, [data(1), data(2)], [named(2)])
    found = Joined(spark, folder, seals).classify(knowledge())
    assert [one["ledger_id"] for one in orphans_of(found)] == [1]


HOLDERS_OF_EACH_KIND = [
    ("MANAGED_LEDGER", "t/n/persistent/a", "t/n"),
    ("MANAGED_LEDGER", "t/c/n/persistent/a", "t/c/n"),
    ("MANAGED_CURSOR", "t/n/persistent/a/c", "t/n"),
    ("COMPACTED_LEDGER", "compacted:t/n/persistent/a", "t/n"),
    ("DELAYED_INDEX_BUCKET", "buckets:t/n/persistent/a/c", "t/n"),
    ("SCHEMA_STORAGE", "schema:t/n/a", "t/n"),
]


def test_referenced_ledgers_are_counted_under_the_same_headings_as_others(
    spark: SparkSession, folder: ScanFolder
) -> None:
    rows = [
        ledger(number, kind=kind, holder=holder, length=3, ctime_ms=NOW_MS - age)
        for number, ((kind, holder, _), age) in enumerate(
            product(HOLDERS_OF_EACH_KIND, (-5, 0, 3 * DAY_MS - 1, 3 * DAY_MS, 90 * DAY_MS, 366 * DAY_MS))
        )
    ]
    rows = [row._replace(created_ms=0) for row in rows]
    cells = []
    for name, references in (("named", [named(row.ledger_id) for row in rows]), ("unnamed", [])):
        of_one = ScanFolder(f"{folder.folder.location}/{name}")
        joined = Joined(spark, of_one, fill(of_one, rows, references))
        found = joined.classify(knowledge()).cells
        counted = Counter[tuple[str, str, str]]()
        for cell in found:
            counted[cell.kind, cell.namespace, cell.age] += cell.ledgers
            assert cell.logical_bytes == 3 * cell.ledgers
        cells.append(counted)
        assert {cell.namespace for cell in found} == {namespace for *_, namespace in HOLDERS_OF_EACH_KIND}
    assert cells[0] == cells[1]


def test_a_doubt_comes_back_from_its_row_as_it_was() -> None:
    about = (ManagedLedgerHolder(TOPIC), CursorHolder(TOPIC, "c"), CursorHolder, HoldersBelow("t/n", (CursorHolder,)))
    doubt = Doubt("/managed-ledgers/t", "zk:one", "no answer", about)
    assert doubt_of(stored_doubt(doubt)) == doubt
    assert doubt_of(stored_doubt(Doubt("/p", "zk:one", "r"))) == Doubt("/p", "zk:one", "r")
