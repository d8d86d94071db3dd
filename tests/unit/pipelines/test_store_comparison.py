"""A comparison in rounds, as Spark's tasks do it, without Spark: each node once, and what one process finds."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest

from bookwarden.config import load_settings
from bookwarden.metastore.memory import MemoryStore, shared_memory_store
from bookwarden.migration.comparison.differences import Difference, DifferenceClass, Side
from bookwarden.migration.comparison.findings import Report, VersionRule
from bookwarden.migration.comparison.rows import difference_of, row_of
from bookwarden.migration.walking import WHOLE_TREE, Directory, Unvisited
from bookwarden.pipelines.per_process import PerProcess
from bookwarden.pipelines.scan.files import ScanFolder
from bookwarden.pipelines.verification import store_comparison
from bookwarden.pipelines.verification.difference_tables import (
    DIFFERENCES,
    difference_table,
    unvisited_in,
    unvisited_table,
)
from bookwarden.pipelines.verification.store_comparison import ComparedStores, StoreComparison
from bookwarden.wiring.migration import VerificationContext
from unit.pipelines.one_after_another import OneAfterAnother

LEDGERS = [f"/ledgers/00/{directory:04d}/L{number:04d}" for directory in range(9) for number in range(70)]
FLAT = [f"/managed-ledgers/t/n/persistent/topic-{number:04d}" for number in range(700)]


@pytest.fixture
def stores() -> tuple[str, str]:
    """A store and its damaged copy."""
    name = uuid4().hex
    source, target = (shared_memory_store(f"{name}-{side}") for side in "ab")
    for store in (source, target):
        for path in (*LEDGERS, *FLAT):
            store.create(path, path.encode(), make_parents=True)
    damage(target)
    source.create("/available", b"")
    target.create("/available", b"")
    source.ephemeral_sequential("/available/bookie-", b"here")
    return f"memory:{name}-a", f"memory:{name}-b"


def damage(target: MemoryStore) -> None:
    target.delete_many([(path, 0) for path in (*LEDGERS[5::100], *FLAT[100::190])])
    for path in (*LEDGERS[9::120], FLAT[7], FLAT[8]):
        target.put(path, path.encode() + b"!", 0)
    for path in FLAT[20:25]:
        target.put(path, path.encode(), 0)
    for path in ("/new", "/new/below", f"{LEDGERS[2]}/below"):
        target.create(path, b"")


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_comparison, "_FIRST_NODES", 20)
    monkeypatch.setattr(store_comparison, "_NODES", 60)
    monkeypatch.setattr(store_comparison, "_MOST_ROWS_IN_PIECE", 40)
    monkeypatch.setattr(store_comparison, "_contexts", PerProcess())
    # Of many nodes, as of few.
    monkeypatch.setattr("bookwarden.migration.walking._BATCH", 10)


def compared(stores: tuple[str, str], rule: VersionRule) -> ComparedStores:
    return ComparedStores(load_settings(), *stores, None, rule, None)


def plain(stores: tuple[str, str], rule: VersionRule) -> tuple[Report, list[Difference]]:
    found: list[Difference] = []
    context = VerificationContext(load_settings().metadata_store, source=stores[0], target=stores[1])
    report = context.comparison(versions=rule, switched_ms=None, keep=1_000, sink=found.extend).run()
    return report, found


def found_in(folder: ScanFolder, rounds: int) -> list[Difference]:
    tables = [f"differences/{number:04d}" for number in range(1, rounds + 1)]
    rows = [
        row for table in tables for piece in folder.finished(table) for row in folder.read(table, piece).to_pylist()
    ]
    return [difference_of(row) for row in rows]


@pytest.mark.parametrize("rule", [VersionRule.REQUIRED, VersionRule.IGNORED])
def test_rounds_find_what_one_pass_finds(stores: tuple[str, str], tmp_path: Path, rule: VersionRule) -> None:
    expected, differences = plain(stores, rule)
    folder = ScanFolder(str(tmp_path))
    stages, told = OneAfterAnother(folder), list[int]()
    report = StoreComparison(stages, folder, compared(stores, rule), 2, told.append).run(keep=1_000)  # type: ignore[arg-type]
    assert (report.compared, report.equal, report.ephemeral, report.other_versions, report.counts, report.first) == (
        expected.compared,
        expected.equal,
        expected.ephemeral,
        expected.other_versions,
        expected.counts,
        expected.first,
    )
    assert report.versions_kept is (rule is VersionRule.REQUIRED)
    assert sorted(found_in(folder, len(stages.pieces_of)), key=lambda one: one.path) == sorted(
        differences, key=lambda one: one.path
    )
    assert len(stages.pieces_of) > 3
    assert max(stages.pieces_of.values()) > 5
    assert told[-1] == report.compared
    assert told == sorted(told)


def test_a_comparison_that_is_killed_again_and_again_goes_on(stores: tuple[str, str], tmp_path: Path) -> None:
    expected, differences = plain(stores, VersionRule.REQUIRED)
    folder = ScanFolder(str(tmp_path))
    kills, report = 0, None
    while report is None:
        stages = OneAfterAnother(folder, kill_at=7)
        try:
            report = StoreComparison(stages, folder, compared(stores, VersionRule.REQUIRED), 2).run(keep=3)  # type: ignore[arg-type]
        except KeyboardInterrupt:
            kills += 1
    assert kills > 3
    assert (report.compared, report.counts) == (expected.compared, expected.counts)
    assert len(found_in(folder, len(stages.pieces_of))) == len(differences)
    assert [len(report.first[kind]) for kind in DifferenceClass] == [
        min(3, expected.counts[kind]) for kind in DifferenceClass
    ]


def test_what_is_left_and_what_was_found_come_back_from_their_tables() -> None:
    left = Unvisited(["/a", "/ü%2F"], [Directory("/b", 7), Directory("/c")])
    assert unvisited_in(unvisited_table(left)) == left
    assert unvisited_in(unvisited_table(Unvisited())) == Unvisited([], [])
    side = Side(1, 2, 3, 4, 5)
    differences = [
        Difference(DifferenceClass.BYTES, "/a", side, side._replace(size=9), 3),
        Difference(DifferenceClass.MISSING, "/b", side, None),
        Difference(DifferenceClass.EXTRA, "/c", None, side),
    ]
    table = difference_table(differences)
    assert table.schema == DIFFERENCES
    assert [difference_of(row) for row in table.to_pylist()] == differences
    assert [difference_of(row_of(one)) for one in differences] == differences
    assert difference_table([]).equals(pa.Table.from_pylist([], schema=DIFFERENCES))


def test_the_whole_tree_is_the_first_piece(stores: tuple[str, str]) -> None:
    context = VerificationContext(load_settings().metadata_store, source=stores[0], target=stores[1])
    report, left = context.comparison(versions=VersionRule.IGNORED, switched_ms=None).run_part(WHOLE_TREE, 1)
    assert report.compared > 0
    assert left.paths or left.directories
