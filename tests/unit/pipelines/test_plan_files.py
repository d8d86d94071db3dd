"""Plans in a folder: whole or not there, read only as they were written, and known to later ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from bookwarden.errors import FileError, FormatError, NotFoundError, RefusedError
from bookwarden.orphans.copy_plan import COPIES, CopyCandidate, StoreCopies
from bookwarden.orphans.plan import Candidate, PlanCounts, PlanManifest, ScannedCluster
from bookwarden.orphans.progress import ApplyProgress
from bookwarden.orphans.summary import Cell, ScanFindings, summarize
from bookwarden.pipelines.folders import Folder
from bookwarden.pipelines.plan_files import CANDIDATES as COLUMNS
from bookwarden.pipelines.plan_files import SUMMARY, PlanFiles, carry_over

CLUSTER = ScannedCluster.of("0f1e", "zk:a", "/ledgers", ["zk:a"])
COUNTS = PlanCounts(ledgers=1_000, logical_bytes=10_000, references=900, candidates=0, candidate_bytes=0)
CANDIDATES = [
    Candidate(3, "MANAGED_LEDGER", "t/n/persistent/ü", "trimmed", "/l/3", 1, 5, None, 10, None, 100),
    Candidate(2**62, "SCHEMA_STORAGE", "schema:t/n/a", "deleted", "/l/4", 0, 6, 7, 20, "CLOSED", 200),
    Candidate(2**63 - 1, "MANAGED_LEDGER", "t/n/persistent/b", "trimmed", "/l/5", 0, 8, 9, 0, "OPEN", 300),
]


def table(*candidates: Candidate) -> pa.Table:
    return COLUMNS.table(candidates)


TABLES = [table(*CANDIDATES)]


def draft(plan_id: str = "p1", **fields: Any) -> PlanManifest:
    return replace(PlanManifest(plan_id, "s1", "0.1", 900, 1_000, 500, CLUSTER, COUNTS, ()), **fields)


@pytest.fixture(params=["path", "elsewhere"])
def files(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlanFiles:
    """Plans in a folder of this machine, and in one that is written as any other file system is."""
    if request.param == "elsewhere":
        monkeypatch.setattr(Folder, "local_path", None)
    return PlanFiles(str(tmp_path / "orphans" / "plans"), candidates_per_file=2)


def path_of(files: PlanFiles, plan_id: str, name: str) -> Path:
    return Path(files.folder.location) / plan_id / name


def test_a_plan_is_read_back_as_it_was_written(files: PlanFiles) -> None:
    summary = summarize(
        [Cell("orphan", "k", "t/n", "c", "<7d", 3, 30)],
        ScanFindings(),
        plan_id="p1",
        scan_id="s1",
        created_ms=1,
        cutoff_ms=1,
        cluster="c",
    )
    written = files.write(draft(), TABLES, {SUMMARY: summary.encode()})
    assert files.manifest("p1") == written
    assert (written.counts.candidates, written.counts.candidate_bytes) == (3, 30)
    assert [file.rows for file in written.candidates] == [2, 1]
    assert list(files.all_candidates(written)) == CANDIDATES
    assert list(files.candidates(written, 2)) == [CANDIDATES[:2], CANDIDATES[2:]]
    assert files.summary(written) == summary
    assert files.plan_ids() == ["p1"]
    files.verify(written)
    left = {path.name for path in (Path(files.folder.location) / "p1").iterdir()}
    assert left == {"manifest.json", SUMMARY, "candidates-00000.parquet", "candidates-00001.parquet"}


def test_the_offloaded_copies_of_a_plan_are_read_back_and_no_other_ones(files: PlanFiles) -> None:
    fields = ("S3", "b", "", "http://e", UUID(int=7), 3, "t/n/persistent/a", "trimmed", 2, 0, 10, 5, 6)
    copies = [CopyCandidate(number, *fields) for number in range(3)]
    written = files.write(draft(copies=(StoreCopies("s", 9, 3, 30),)), TABLES, {}, copies)
    assert files.manifest("p1") == written
    assert list(files.copies(written, 2)) == [copies[:2], copies[2:]]
    progress = ApplyProgress("p1", done_through=1)
    files.record_copies(written, progress)
    assert (files.copy_progress(written), files.progress(written)) == (progress, ApplyProgress("p1"))
    path = path_of(files, "p1", COPIES)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(FormatError, match="changed or damaged"):
        next(files.all_copies(written))
    with pytest.raises(FormatError, match="changed or damaged"):
        files.verify(written)


def test_a_plan_without_candidates_is_a_plan(files: PlanFiles) -> None:
    written = files.write(draft(), [])
    assert list(files.candidates(files.manifest("p1"), 10)) == []
    with pytest.raises(NotFoundError, match="has no summary"):
        files.summary(written)


@pytest.mark.parametrize(
    "name", ["candidates-00000.parquet", "candidates-00001.parquet", "extra.json", "manifest.json"]
)
@pytest.mark.parametrize("how", ["changed", "cut off", "emptied", "removed", "exchanged"])
def test_a_file_that_is_not_as_it_was_written_is_refused(files: PlanFiles, name: str, how: str) -> None:
    plan = files.write(draft(), TABLES, {"extra.json": b"{}"})
    files.write(
        draft("p2", counts=replace(COUNTS, references=8)), [table(CANDIDATES[0]._replace(length=9), *CANDIDATES[1:])]
    )
    path = path_of(files, "p1", name)
    raw = path.read_bytes()
    if how == "removed":
        path.unlink()
    elif how == "exchanged":
        other = path_of(files, "p2", name)
        path.write_bytes(other.read_bytes() if other.exists() and other.read_bytes() != raw else b"{ }")
    else:
        middle = len(raw) // 2
        changed = raw[:middle] + bytes([raw[middle] ^ 1]) + raw[middle + 1 :]
        path.write_bytes({"changed": changed, "cut off": raw[:-1], "emptied": b""}[how])
    with pytest.raises((FormatError, NotFoundError)) as caught:
        files.verify(files.manifest("p1"))
    assert "bookwarden orphans" in str(caught.value)
    if name.startswith("candidates"):
        with pytest.raises(FormatError):
            list(files.all_candidates(plan))


def test_half_a_plan_is_none(files: PlanFiles) -> None:
    def breaks_off() -> Iterator[pa.Table]:
        yield from TABLES
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        files.write(draft(), breaks_off())
    assert files.plan_ids() == []
    with pytest.raises(NotFoundError, match="there is no finished plan p1"):
        files.manifest("p1")


def test_a_scan_without_references_makes_no_plan(files: PlanFiles) -> None:
    with pytest.raises(RefusedError, match="no reference was found"):
        files.write(draft(counts=replace(COUNTS, references=0)), TABLES)
    assert files.plan_ids() == []


def test_candidates_out_of_order_make_no_plan(files: PlanFiles) -> None:
    with pytest.raises(FormatError, match="out of order"):
        files.write(draft(), [table(*CANDIDATES[1:]), table(CANDIDATES[0])])
    assert files.plan_ids() == []


def test_candidates_of_files_out_of_order_are_refused(files: PlanFiles) -> None:
    plan = files.write(draft(), TABLES)
    with pytest.raises(FormatError, match="out of order: ledger 3 comes after ledger 9223372036854775807"):
        list(files.all_candidates(replace(plan, candidates=plan.candidates[::-1])))


@pytest.mark.parametrize("cuts", [[0, 5], [0, 1, 2, 3, 4, 5], [0, 0, 3, 3, 5], [0, 2, 4, 5], [0, 4, 5, 5]], ids=str)
def test_the_files_are_the_same_whatever_tables_the_candidates_come_in(files: PlanFiles, cuts: list[int]) -> None:
    rows = [CANDIDATES[0]._replace(ledger_id=number, holder=f"t/n/persistent/{number}") for number in range(5)]
    first = files.write(draft(), [table(*rows[:2]), table(*rows[2:4]), table(rows[4])])
    tables = [table(*rows[start:end]).replace_schema_metadata({"of": "a piece"}) for start, end in pairwise(cuts)]
    assert files.write(draft("p2"), tables).candidates == first.candidates
    assert [file.rows for file in first.candidates] == [2, 2, 1]
    assert list(files.all_candidates(first)) == rows


def test_a_large_file_is_the_same_whatever_tables_its_candidates_come_in(tmp_path: Path) -> None:
    # So many that the file has several pages.
    whole = table(*(CANDIDATES[0]._replace(ledger_id=number, path=f"/l/{number}") for number in range(140_000)))
    files, counts = PlanFiles(str(tmp_path), candidates_per_file=250_000), replace(COUNTS, ledgers=whole.num_rows)
    first = files.write(draft(counts=counts), [whole])
    parts = [whole.slice(start, 1_000) for start in range(0, whole.num_rows, 1_000)]
    assert files.write(draft("p2", counts=counts), parts).candidates == first.candidates
    assert len(first.candidates) == 1


def test_candidates_with_other_columns_make_no_plan(files: PlanFiles) -> None:
    with pytest.raises(ValueError, match="field names"):
        files.write(draft(), [TABLES[0].drop_columns(["first_seen_ms"])])
    assert files.plan_ids() == []


def test_lengths_may_add_up_to_more_than_64_bits(files: PlanFiles) -> None:
    written = files.write(draft(), [table(*(one._replace(length=2**63 - 1) for one in CANDIDATES))])
    assert files.manifest("p1").counts.candidate_bytes == written.counts.candidate_bytes == 3 * (2**63 - 1)


def test_a_plan_is_written_once(files: PlanFiles) -> None:
    written = files.write(draft(), TABLES)
    with pytest.raises(RefusedError, match="written once"):
        files.write(draft(), [])
    assert files.manifest("p1") == written


@pytest.mark.parametrize("plan_id", ["../p1", "", "a/b"])
def test_an_id_that_leads_elsewhere_is_refused(files: PlanFiles, plan_id: str) -> None:
    with pytest.raises(FormatError):
        files.manifest(plan_id)
    with pytest.raises(FormatError):
        files.write(draft(plan_id), TABLES)


def test_a_plan_under_the_name_of_another_is_refused(files: PlanFiles) -> None:
    files.write(draft("p1"), TABLES)
    os.rename(Path(files.folder.location) / "p1", Path(files.folder.location) / "p2")
    with pytest.raises(FormatError, match="has plan p1 in it"):
        files.manifest("p2")


def test_progress_is_kept_and_replaced(files: PlanFiles) -> None:
    plan = files.write(draft(), TABLES)
    assert files.progress(plan) == ApplyProgress("p1")
    for progress in (ApplyProgress("p1", 3, (1,), 1), ApplyProgress("p1", 5, (), 2)):
        files.record(plan, progress)
        assert files.progress(plan) == progress
    files.verify(plan)
    path_of(files, "p1", "applied.json").write_bytes(b"{")
    with pytest.raises(FormatError, match="delete the file"):
        files.progress(plan)


def test_progress_that_cannot_be_written_leaves_that_of_before(
    files: PlanFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = files.write(draft(), TABLES)
    files.record(plan, ApplyProgress("p1", 3))

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    if files.folder.local_path is None:
        write = Folder.write
        monkeypatch.setattr(Folder, "write", lambda folder, name, _, **more: write(folder, name, full, **more))
    else:
        monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FileError, match="No space left"):
        files.record(plan, ApplyProgress("p1", 5))
    assert files.progress(plan) == ApplyProgress("p1", 3)
    assert not [path for path in (Path(files.folder.location) / "p1").iterdir() if path.name.startswith("_")]


def test_progress_is_exchanged_in_one_step(files: PlanFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = files.write(draft(), TABLES)
    files.record(plan, ApplyProgress("p1", 3))
    before = path_of(files, "p1", "applied.json").read_bytes()
    seen: list[bytes] = []
    write = Folder.write

    def watched(folder: Folder, name: str, write_to: Callable[[Any], object], **more: Any) -> None:
        def watching(sink: Any) -> None:
            write_to(sink)
            sink.flush()
            seen.append(path_of(files, "p1", "applied.json").read_bytes())

        write(folder, name, watching, **more)

    monkeypatch.setattr(Folder, "write", watched)
    files.record(plan, ApplyProgress("p1", 5))
    assert seen == [before]
    assert files.progress(plan) == ApplyProgress("p1", 5)


def test_the_newest_plan_of_the_same_cluster_is_carried_over(files: PlanFiles) -> None:
    assert files.newest(CLUSTER) is None
    files.write(draft("p1"), TABLES)
    second = files.write(draft("p2"), TABLES)
    files.write(draft("p3", cluster=replace(CLUSTER, instance_id="another")), [])
    assert files.newest(CLUSTER) == second
    found = [table(one).drop_columns(["first_seen_ms"]) for one in CANDIDATES]
    assert pa.concat_tables(carry_over(found, files.candidate_tables(second), 999)).equals(TABLES[0])


@pytest.mark.parametrize("name", ["manifest.json", "candidates-00000.parquet"])
def test_a_damaged_plan_breaks_the_series(files: PlanFiles, name: str) -> None:
    files.write(draft("p1"), TABLES)
    files.write(draft("p2"), TABLES)
    path_of(files, "p2", name).write_bytes(b"damaged")
    assert files.newest(CLUSTER) is None


def test_an_unfinished_plan_does_not_break_the_series(files: PlanFiles) -> None:
    first = files.write(draft("p1"), TABLES)
    with pytest.raises(RefusedError):
        files.write(draft("p2", counts=replace(COUNTS, references=0)), [])
    assert files.newest(CLUSTER) == first
