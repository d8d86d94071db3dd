"""What the commands of the orphan scan say of plans, and the exit codes they end with."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner, Result

from bookwarden.cli import orphans
from bookwarden.cli.main import cli
from bookwarden.cli.orphans_output import describe_applied
from bookwarden.config import load_settings
from bookwarden.errors import SparkError
from bookwarden.orphans.applying import ApplyResult, NamedCandidate
from bookwarden.orphans.classes import LedgerClass
from bookwarden.orphans.copy_plan import CopyCandidate, StoreCopies
from bookwarden.orphans.plan import Candidate, EmptiedScope, PlanCounts, PlanManifest, ScannedCluster
from bookwarden.orphans.progress import ApplyProgress
from bookwarden.orphans.summary import Cell, ForeignOwner, InsideList, MissingLedger, ScanFindings, summarize
from bookwarden.pipelines.plan_files import CANDIDATES, SUMMARY
from bookwarden.pipelines.scan import driver as scan_driver
from bookwarden.pipelines.scan.driver import ScanPaused
from bookwarden.pipelines.scan.folder import plan_folder, plans_of, scan_folder
from bookwarden.pipelines.scan.lock import alone
from bookwarden.pipelines.scan.planning import ScanResult

CANDIDATE = Candidate(
    4711, "MANAGED_LEDGER", "t/n/persistent/a", "topic deleted", "/ledgers/4711", 1, 5, None, 2_048, "CLOSED", 9
)
CELLS = [
    Cell("referenced", "MANAGED_LEDGER", "t/n", "", "<7d", 90, 900),
    Cell("orphan", "MANAGED_LEDGER", "t/n", "topic deleted", "older", 1, 2_048),
]
INSIDE = Cell("inside the list", "MANAGED_LEDGER", "t/n", "", "older", 3, 6_144)

Run = Callable[..., Result]


def copy(number: int) -> CopyCandidate:
    return CopyCandidate(
        number, "S3", "b", "", "http://e", UUID(int=2**127 + number), 90_000 + number, "t/n/persistent/a",
        "offload failed or replaced", 2, 0, 1_024, 5_000, 9_000,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "orphans"


@pytest.fixture
def run(folder: Path) -> Run:
    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(cli, ["--set", f"orphans.folder={folder}", *arguments])

    return invoke


def made(
    folder: Path,
    plan_id: str = "p1",
    cells: list[Cell] = CELLS,
    copies: Sequence[CopyCandidate] = (),
    **findings: Any,
) -> ScanResult:
    """Write a plan as a scan does."""
    summary = summarize(
        cells,
        ScanFindings(**findings),
        plan_id=plan_id,
        scan_id=f"s-{plan_id}",
        created_ms=9,
        cutoff_ms=5,
        cluster="0f1e",
    )
    counts = PlanCounts(91, 2_948, references=90, candidates=0, candidate_bytes=0, missing=summary.missing_total)
    cluster = ScannedCluster.of("0f1e", "zk:a", "/ledgers", ["zk:a"])
    emptied = (EmptiedScope("topic", "t/n/persistent/a", 1),)
    stores = (StoreCopies("S3 b", 9, len(copies), sum(one.length for one in copies)),)
    manifest = PlanManifest(
        plan_id, f"s-{plan_id}", "0.1", 8, 9, 5, cluster, counts, (), emptied=emptied, copies=stores
    )
    rows = [CANDIDATES.table([CANDIDATE])] if summary.total(LedgerClass.ORPHAN)[0] else []
    plan = plans_of(load_settings(overrides={"orphans.folder": str(folder)})).write(
        manifest, rows, {SUMMARY: summary.encode()}, copies
    )
    return ScanResult(plan, summary)


def test_what_lists_lost_is_shown_with_its_topics_and_bytes(folder: Path, run: Run) -> None:
    lost = InsideList(4712, 2048, "t/n/persistent/a", "its topic lists older ledgers, from 12 on")
    made(folder, "p1", [*CELLS, INSIDE], inside_lists=[lost])
    shown = run("orphans", "plan", "show").output
    for text in ("inside the list: 3, 6.0 KiB", "4712", "from 12 on", "3 ledgers with 6.0 KiB lost by the list"):
        assert text in " ".join(shown.split()), text
    found = json.loads(run("orphans", "plan", "show", "p1", "--output", "json").output)
    assert found["summary"]["inside_lists"][0]["ledger_id"] == 4712


def test_outdated_entries_of_shadow_topics_are_told_apart_from_lost_data(folder: Path, run: Run) -> None:
    result = made(folder, "p1", CELLS[:1], outdated=[MissingLedger(12, ("shadow topic t/n/persistent/s",))])
    assert (result.missing, result.summary.outdated_total) == (0, 1)
    shown = " ".join(run("orphans", "plan", "show").output.split())
    for text in ("outdated entries of shadow topics: 1 (no data is lost", "shadow topic t/n/persistent/s"):
        assert text in shown, text
    assert "data is lost, see" not in shown
    assert "missing" not in shown


def test_the_newest_plan_is_shown_with_classes_causes_and_candidates(folder: Path, run: Run) -> None:
    owner = ForeignOwner("no configured metadata root has the tenant x", 2, 20, (7, 8))
    made(folder, "p1")
    made(folder, "p2", missing=[MissingLedger(12, ("managed ledger t/n/persistent/b",))], foreign=[owner])
    shown = run("orphans", "plan", "show")
    assert shown.exit_code == 0
    for text in ("p2", "referenced", "topic deleted", "4711", "2.0 KiB", "missing: 1", "tenant x", "7, 8"):
        assert text in shown.output, text
    assert "t/n/persistent/a" in shown.output.partition("--allow-emptied")[2]
    assert "trash restore TOPIC --from-ledgers" in shown.output
    found = json.loads(run("orphans", "plan", "show", "p1", "--output", "json").output)
    assert (found["plan"]["plan_id"], found["candidates"][0]["ledger_id"]) == ("p1", 4711)
    assert found["summary"]["by_cause"][0]["key"] == "topic deleted"


def test_the_offloaded_copies_of_a_plan_are_shown_as_many_as_asked_for(folder: Path, run: Run) -> None:
    made(folder, "p1", copies=[copy(number) for number in range(3)])
    shown = run("orphans", "plan", "show", "--candidates", "2").output
    table = shown.partition("the first offloaded copies")[2]
    for text in (str(copy(0).uuid), str(copy(1).uuid), "90001", "offload failed or replaced", "1.0 KiB", "S3 b http"):
        assert text in table, text
    assert str(copy(2).uuid) not in shown
    assert "3 orphaned offloaded copies, 3.0 KiB" in shown
    found = json.loads(run("orphans", "plan", "show", "--candidates", "2", "--output", "json").output)
    assert [one["uuid"] for one in found["copies"]] == [str(copy(0).uuid), str(copy(1).uuid)]
    assert found["copies"][1]["managed_ledger"] == "t/n/persistent/a"
    none = json.loads(run("orphans", "plan", "show", "--candidates", "0", "--output", "json").output)
    assert (none["candidates"], none["copies"]) == ([], [])


def test_how_far_ledgers_and_copies_of_a_plan_were_applied_is_shown(folder: Path, run: Run) -> None:
    plan = made(folder, "p1", copies=[copy(0)]).plan
    plans = plans_of(load_settings(overrides={"orphans.folder": str(folder)}))
    assert "applied" not in run("orphans", "plan", "show").output.partition("\n\n")[0]
    plans.record(plan, ApplyProgress("p1", marked=41, updated_ms=1_000))
    plans.record_copies(plan, ApplyProgress("p1", marked=7, updated_ms=2_000))
    shown = [line.split() for line in run("orphans", "plan", "show").output.splitlines()]
    assert ["applied", "41", "marked,", "last", "1970-01-01", "00:00:01Z"] in shown
    assert ["copies", "applied", "7", "marked,", "last", "1970-01-01", "00:00:02Z"] in shown


def test_a_plan_of_a_snapshot_that_is_not_of_one_moment_says_so(folder: Path, run: Run) -> None:
    made(folder, "p1", fuzzy="/x/snapshot.1: the logs after its start are not there")
    shown = run("orphans", "plan", "show").output
    assert "Not the state of one moment: /x/snapshot.1: the logs after its start are not there. Do not believe" in shown
    found = json.loads(run("orphans", "plan", "show", "--output", "json").output)
    assert found["summary"]["fuzzy"] == "/x/snapshot.1: the logs after its start are not there"
    made(folder, "p2")
    assert "Not the state" not in run("orphans", "plan", "show").output


def test_plans_and_scans_without_one_are_listed(folder: Path, run: Run) -> None:
    made(folder, "p1")
    settings = load_settings(overrides={"orphans.folder": str(folder)})
    for scan_id in ("s-p1", "s-killed"):
        scan_folder(settings, scan_id).begin({})
    assert json.loads(run("orphans", "list", "--output", "json").output)["unfinished"] == ["s-killed"]
    listed = run("orphans", "plan", "list").output
    assert "p1" in listed
    assert "s-killed" in listed


def test_a_damaged_plan_does_not_hide_the_others(folder: Path, run: Run) -> None:
    made(folder, "p1")
    made(folder, "p2")
    manifest = folder / "plans" / "p1" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b"p1", b"p7", 1))
    done = run("orphans", "list", "--output", "json")
    told = json.loads(done.output)
    assert [one["plan"]["plan_id"] for one in told["plans"]] == ["p2"]
    assert list(told["damaged"]) == ["p1"]
    assert "p1" in run("orphans", "list").output


def test_without_a_plan_the_next_step_is_told(run: Run) -> None:
    shown = run("orphans", "plan", "show")
    assert shown.exit_code == 4
    assert "`bookwarden orphans scan` makes one" in shown.stderr
    assert run("orphans", "list").exit_code == 0


@pytest.mark.parametrize(
    ("cells", "findings", "code"),
    [
        (CELLS[:1], {}, 0),
        (CELLS, {}, 20),
        (CELLS, {"missing": [MissingLedger(1, ("x",))]}, 21),
        (CELLS[:1], {"missing": [MissingLedger(1, ("x",))]}, 21),
        (CELLS[:1], {"outdated": [MissingLedger(1, ("shadow topic x",))]}, 0),
        (CELLS, {"outdated": [MissingLedger(1, ("shadow topic x",))]}, 20),
        ([*CELLS, INSIDE], {}, 21),
        ([CELLS[0], INSIDE], {}, 21),
    ],
)
def test_a_scan_tells_a_schedule_what_it_found(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch, cells: list[Cell], findings: dict[str, Any], code: int
) -> None:
    given: list[Any] = []

    def scanned(settings: Any, **options: Any) -> ScanResult:
        given.append(settings.orphans.max_reads_per_second)
        options["progress"]("ledgers", 1, 1)
        return made(folder, cells=cells, **findings)

    monkeypatch.setattr(scan_driver, "run_scan", scanned)
    monkeypatch.setattr(orphans, "require_spark", lambda: None)
    monkeypatch.setattr(orphans, "require_stores", lambda _: None)
    done = run("orphans", "scan", "--max-reads-per-second", "50", "--output", "json")
    assert done.exit_code == code
    assert json.loads(done.stdout)["plan"]["plan_id"] == "p1"
    assert given == [50]


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (SparkError("Spark does not start"), 11, "Spark does not start"),
        (ScanPaused("paused; go on with: bookwarden orphans scan --resume s1"), 130, "--resume s1"),
    ],
)
def test_a_scan_that_fails_or_is_paused_is_told_from_one_that_found_something(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, text: str
) -> None:
    def failing(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(scan_driver, "run_scan", failing)
    monkeypatch.setattr(orphans, "require_spark", lambda: None)
    monkeypatch.setattr(orphans, "require_stores", lambda _: None)
    done = run("orphans", "scan")
    assert (done.exit_code, done.stdout) == (code, "")
    assert text in done.stderr


def test_a_scan_publishes_what_it_found_and_how_it_ended(
    folder: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any, **__: Any) -> None:
        raise SparkError("Spark does not start")

    def published(name: str) -> str:
        return (tmp_path / f"bookwarden_{name}orphans_scan.prom").read_text()

    monkeypatch.setattr(orphans, "require_spark", lambda: None)
    monkeypatch.setattr(orphans, "require_stores", lambda _: None)
    monkeypatch.setattr(scan_driver, "run_scan", lambda *_, **__: made(folder))
    to_files = ("--set", f"metrics.textfile_folder={tmp_path}", "orphans", "scan")
    assert run(*to_files).exit_code == 20
    assert '\nbookwarden_run_exit_code{command="orphans-scan"} 20.0\n' in published("run_")
    found = published("")
    assert '\nbookwarden_scan_ledgers{class="orphan",tenant="t"} 1.0\n' in found
    assert '\nbookwarden_scan_leaked_bytes{cause="topic deleted"} 2048.0\n' in found
    monkeypatch.setattr(scan_driver, "run_scan", failing)
    assert run(*to_files).exit_code == 11
    assert '\nbookwarden_run_exit_code{command="orphans-scan"} 11.0\n' in published("run_")
    assert published("") == found


def test_a_snapshot_belongs_to_a_new_scan(run: Run) -> None:
    done = run("orphans", "scan", "--resume", "s1", "--from", "zk-snapshot:/x")
    assert done.exit_code == 2


def test_what_was_not_marked_is_told_with_its_reason() -> None:
    result = ApplyResult(
        "p1",
        executed=True,
        candidates=4,
        marked=1,
        marked_bytes=10,
        failed=(NamedCandidate(3, "no answer"),),
        held_back_by={"not an orphan in two scans": 2},
        stopped="three batches in a row were not confirmed",
    )
    document = describe_applied(result)
    text = str(document.parts)
    for part in ("no answer", "not an orphan in two scans", "three batches", "The sweep verifies"):
        assert part in text
    assert document.data["done"] is False  # type: ignore[index]
    assert "--execute" in str(describe_applied(ApplyResult("p1", executed=False, candidates=1, marked=1)).parts)


def test_only_one_process_applies_a_plan(folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    made(folder)
    monkeypatch.setattr(orphans, "require_marking", lambda _: None)
    settings = load_settings(overrides={"orphans.folder": str(folder)})
    with alone(plan_folder(settings, "p1")):
        done = run("orphans", "apply", "--plan", "p1", "--execute")
    assert (done.exit_code, "another process works on" in done.stderr) == (5, True)
    assert run("orphans", "apply", "--plan", "p2", "--execute").exit_code == 4
    assert not (folder / "plans" / "p2").exists()


def test_a_report_is_written_for_the_newest_plan_or_the_one_that_is_named(
    folder: Path, run: Run, tmp_path: Path
) -> None:
    made(folder, "p1")
    made(folder, "p2")
    page = tmp_path / "orphans.html"
    done = run("orphans", "report", "--html", str(page))
    assert (done.exit_code, done.output) == (0, f"plan p2 is reported in {page}\n")
    assert "1 ledger is an orphan and holds 2.0 KiB." in page.read_text()
    assert run("orphans", "report", "--plan", "p1", "--html", str(page)).exit_code == 0
    assert "orphans apply --plan p1" in page.read_text()


def test_a_report_that_cannot_be_written_or_has_no_plan_says_so(folder: Path, run: Run, tmp_path: Path) -> None:
    none = run("orphans", "report", "--html", str(tmp_path / "page.html"))
    assert none.exit_code == 4
    made(folder)
    nowhere = run("orphans", "report", "--html", str(tmp_path / "absent" / "page.html"))
    assert (nowhere.exit_code, "plan p1 cannot be written" in nowhere.stderr) == (17, True)
