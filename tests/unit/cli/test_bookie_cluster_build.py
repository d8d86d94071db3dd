"""What `bookie-clusters build` refuses and says, and what `status` tells of a build, without Spark and brokers."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from uuid import uuid4

import pytest
from click.testing import CliRunner, Result

from bookwarden.bookie_clusters.moving.build import (
    Build,
    BuildLease,
    BuildReport,
    CopyCounts,
    CopyPace,
    UncopiedLedger,
    find_build,
)
from bookwarden.bookie_clusters.moving.scope import Scope
from bookwarden.bookie_clusters.registry import REGISTRY_PATH, Registry, serialize_registry
from bookwarden.cli.bookie_clusters.build import build_facts, describe_report
from bookwarden.cli.main import cli
from bookwarden.cli.shell.output import TextWriter
from bookwarden.errors import ConfigError, FormatError, NotFoundError, RefusedError
from bookwarden.exit_codes import MORE_LATER, SOME_FAILED
from bookwarden.ledgers.outcomes import CopyOutcome
from bookwarden.metastore.memory import MemoryStore, shared_memory_store
from bookwarden.pipelines.scan.files import ScanFolder
from bookwarden.records import record_fields
from servers.switching.ground import registry_of

DOCUMENT = Path(__file__).parents[3] / "docs" / "cli.md"
SWITCHED = registry_of().switched("b", "one", 1)


class Site:
    """A store with a registry, for one command, which closes it."""

    def __init__(self, registry: Registry | None = SWITCHED) -> None:
        name = uuid4().hex
        self.url = f"memory:{name}"
        self.store: MemoryStore = shared_memory_store(name)
        if registry is not None:
            self.store.create(REGISTRY_PATH, serialize_registry(registry), make_parents=True)

    def run(self, *arguments: str) -> Result:
        sets = ["--set", f"metadata_store.urls={json.dumps([self.url])}", "--set", "metadata_store.ledgers_root=/a"]
        return CliRunner().invoke(cli, [*sets, "bookie-clusters", *arguments])


def counts(*outcomes: CopyOutcome) -> CopyCounts:
    found = CopyCounts()
    for outcome in outcomes:
        found.add(outcome, "schema", 2048)
    return found


def begun(folder: Path, **changes: object) -> None:
    """Begin a build in this folder, as another process does."""
    header = {
        "source": "a",
        "target": "b",
        "source_instance": "instance-a",
        "target_instance": "instance-b",
        "scope": record_fields(Scope()),
        "started_ms": 1,
    }
    ScanFolder(str(folder)).begin({**header, **changes})


@pytest.mark.parametrize(
    ("registry", "arguments", "code", "reason"),
    [
        (None, (), RefusedError.exit_code, "no bookie cluster is registered"),
        (SWITCHED, ("--src-cluster", "b"), RefusedError.exit_code, "cannot be both source and target"),
        (SWITCHED, ("--target", "c", "--dry-run"), RefusedError.exit_code, "no bookie cluster 'c' is registered"),
        (SWITCHED.with_deprecated("a", True), ("--target", "a"), RefusedError.exit_code, "DEPRECATED"),
        (SWITCHED, ("--resume",), NotFoundError.exit_code, "no build was stopped"),
        (SWITCHED, ("--resume", "--all"), 2, "for new ones"),
        (SWITCHED, ("--verify", "--dry-run"), 2, "goes with none of"),
        (SWITCHED, ("--verify", "--max-ledgers-per-second", "1"), 2, "goes with none of"),
        (SWITCHED, ("--max-bytes-per-second", "0"), 2, "not in the range"),
        (SWITCHED, ("--max-bytes-per-second", "inf"), ConfigError.exit_code, "must be above 0"),
        (SWITCHED, ("--topic", "a/b"), FormatError.exit_code, "too few parts"),
    ],
)
def test_what_cannot_be_copied_is_refused(
    registry: Registry | None, arguments: tuple[str, ...], code: int, reason: str
) -> None:
    result = Site(registry).run("build", *arguments)
    assert (result.exit_code, reason in " ".join(result.output.split())) == (code, True), result.output


def test_a_folder_is_new_or_resumed(tmp_path: Path) -> None:
    def refused(*arguments: str) -> tuple[int, str]:
        result = Site().run("build", "--folder", str(tmp_path), *arguments)
        return result.exit_code, " ".join(result.output.split())

    assert refused("--resume")[0] == NotFoundError.exit_code
    begun(tmp_path)
    assert refused()[0] == RefusedError.exit_code
    assert "--resume" in refused()[1]
    assert "has --src-cluster a, not b" in refused("--resume", "--src-cluster", "b", "--target", "b")[1]
    begun(tmp_path, source_instance="another")
    assert "registered again" in refused("--resume")[1]
    ScanFolder(str(tmp_path)).begin({"scan_id": "of orphans"})
    assert "has no build" in refused("--resume")[1]
    begun(tmp_path, verify=True)
    assert "copies that were verified, and no build" in refused("--resume")[1]
    ScanFolder(str(tmp_path)).folder.write_json("result.json", {})
    assert "is through" in refused("--resume")[1]


def test_another_build_is_not_disturbed(tmp_path: Path) -> None:
    site = Site()
    with BuildLease(site.store) as lease:
        lease.take(Build("a", "b", Scope(), "/elsewhere", 1))
        folder = tmp_path / "new"
        result = site.run("build", "--folder", str(folder))
    assert result.exit_code == RefusedError.exit_code, result.output
    assert "a build from a to b is under way" in result.output
    assert not folder.exists()


def test_the_status_tells_how_far_a_build_is() -> None:
    def told(*options: str) -> str:
        site = Site()
        with BuildLease(site.store) as lease:
            one = Build("a", "b", Scope(), "/builds/one", 1, is_listed=True, ledgers=9, size=9 << 20, looked_at=3)
            lease.take(one)
            lease.end(replace(one, ended_ms=1_700_000_000_000, counts=counts(CopyOutcome.COPIED, CopyOutcome.FAILED)))
        with BuildLease(site.store) as lease:
            lease.take(replace(one, size_looked_at=1 << 20, folder="/builds/two", pace=CopyPace(2.0, 1 << 20)))
        return site.run("status", *options).stdout

    text = " ".join(told().split())
    for part in (
        "cursor, schema from a to b: 3 of 9 ledgers, 1.0 MiB of 9.0 MiB, stopped; go on with",
        "build --resume` in /builds/two",
        "through at 2023-11-14 22:13:20Z: 1 ledger there, 2.0 KiB, 1 failed",
    ):
        assert part in text
    found = json.loads(told("-o", "json"))["build"]
    assert (found["underWay"]["ledgersLookedAt"], found["underWay"]["isHeld"]) == (3, False)
    # Nobody goes on with it, so nothing is said of its end.
    assert (found["underWay"]["ledgersPerSecond"], found["underWay"]["secondsLeft"]) == (2.0, None)
    assert found["last"]["ended"] == 1_700_000_000_000
    assert json.loads(Site().run("status", "-o", "json").stdout)["build"] is None


def test_a_build_that_has_only_begun_is_told_too() -> None:
    store = MemoryStore()
    with BuildLease(store) as lease:
        lease.take(Build("a", "b", Scope(), "/builds/one", 1))
        (pair,) = build_facts(find_build(store))
        assert "ledgers are listed, by " in pair[1]
    with BuildLease(store) as lease:
        lease.take(
            Build("a", "b", Scope(), "/builds/two", 1, is_listed=True, ledgers=9, looked_at=3, pace=CopyPace(2.0, 0.0))
        )
        (pair,) = build_facts(find_build(store))
    assert "3 of 9 ledgers, 0 B of 0 B, 2 ledgers/s, 0 B/s, 0:00:03 left, by " in pair[1]


def shown(report: BuildReport) -> str:
    output = StringIO()
    TextWriter(output, output).write(describe_report(report))
    return " ".join(output.getvalue().split())


def test_a_report_says_what_stays_and_what_to_do() -> None:
    one = Build("a", "b", Scope(), "/builds/one", 1, counts=counts(*CopyOutcome))
    stays = (UncopiedLedger(7, CopyOutcome.FAILED, "schema", "schema:t/n/x", "entry 3 is damaged"),)
    text = shown(BuildReport(one, stays, 1.0))
    for part in (
        "7 failed schema:t/n/x entry 3 is damaged",
        "1 ledger failed: they stay where they are: look at each",
        "1 ledger open: `bookwarden bookie-clusters unload` unloads",
        "1 ledger deferred: nothing is wrong with them",
        "/builds/one/copies",
        "All others asked for are in b, whole.",
    ):
        assert part in text
    whole = BuildReport(replace(one, counts=counts(CopyOutcome.COPIED)), (), 1.0)
    assert "Everything asked for is in b, whole." in shown(whole)
    dry = shown(replace(whole, is_dry_run=True))
    assert "would copy schema 1 2.0 KiB" in dry
    assert "Nothing was copied." in dry
    assert "Nothing of cursor, schema is in a." in shown(replace(whole, build=replace(one, counts=CopyCounts())))


def test_a_verification_says_what_is_not_proven() -> None:
    found = counts(CopyOutcome.COMPLETE, CopyOutcome.FAILED)
    stays = (UncopiedLedger(7, CopyOutcome.FAILED, "schema", "schema:t/n/x", "not proven: bookie 1 does not answer"),)
    report = BuildReport(Build("a", "b", Scope(), "/f", 1, counts=found), stays, 1.0, is_verification=True)
    text = shown(report)
    for part in (
        "verified against a",
        "7 failed schema:t/n/x not proven: bookie 1 does not answer",
        "1 ledger failed: cleanup keeps what the former cluster has of them",
        "1 copy of b read back whole",
    ):
        assert part in text
    assert (report.exit_code, report.as_json()["verify"]) == (SOME_FAILED, True)


def test_the_exit_codes_are_documented() -> None:
    lines = DOCUMENT.read_text("utf-8").splitlines()
    for code in (MORE_LATER, SOME_FAILED):
        assert any(line.startswith(f"| {code} | `build` |") for line in lines)
