"""What commands found, as values of metrics."""

from __future__ import annotations

from collections import defaultdict

from bookwarden.cluster_migration.finishing import MigrationVerification, TopicVerification
from bookwarden.deletion.undo.rows import UndoOutcome
from bookwarden.ledgers.disk_growth import Forecast
from bookwarden.ledgers.disk_use import BookieUse, Use
from bookwarden.ledgers.references import Doubt
from bookwarden.metrics.findings import TENANTS, of_apply, of_clients, of_disk, of_scan, of_undo
from bookwarden.metrics.names import METRICS, OTHER_TENANTS, Sample
from bookwarden.orphans.applying import ApplyResult, NamedCandidate
from bookwarden.orphans.copy_plan import StoreCopies
from bookwarden.orphans.plan import PlanCounts, PlanManifest, ScannedCluster
from bookwarden.orphans.summary import Cell, MissingLedger, ScanFindings, Summary, summarize

PLAN = PlanManifest(
    *("p1", "s1", "0.1", 8_000, 9_000, 5_000),
    cluster=ScannedCluster.of("0f1e", "zk:a", "/ledgers", ["zk:a"]),
    counts=PlanCounts(91, 2_948, references=90, candidates=3, candidate_bytes=40),
    candidates=(),
    copies=(StoreCopies("S3 a", 9, 2, 700), StoreCopies("S3 b", 9, 1, 11)),
)


def summary(cells: list[Cell], **found: object) -> Summary:
    findings = ScanFindings(**found)  # type: ignore[arg-type]  # each of the field's own type
    return summarize(cells, findings, plan_id="p1", scan_id="s1", created_ms=9_000, cutoff_ms=5_000, cluster="0f1e")


def by_name(samples: list[Sample]) -> dict[str, dict[tuple[str, ...], float]]:
    """Return the values by name and labels; each series is there once, with the labels of the table."""
    found: dict[str, dict[tuple[str, ...], float]] = defaultdict(dict)
    for sample in samples:
        assert sample.labels not in found[sample.name]
        assert len(sample.labels) == len(METRICS[sample.name].labels)
        found[sample.name][sample.labels] = sample.value
    return found


def test_a_scan_is_counted_by_class_tenant_and_cause() -> None:
    cells = [
        Cell("referenced", "MANAGED_LEDGER", "sales/eu", "", "<7d", 4, 400),
        Cell("referenced", "SCHEMA", "sales/us", "", "<7d", 5, 50),
        Cell("orphan", "MANAGED_LEDGER", "sales/eu", "topic deleted", "older", 2, 30),
        Cell("left behind", "MANAGED_LEDGER", "ads/eu", "topic deleted", "older", 1, 10),
        Cell("inside the list", "MANAGED_LEDGER", "ads/eu", "", "older", 6, 60),
        Cell("foreign", "other", "(none)", "", "older", 7, 0),
    ]
    doubts = [Doubt("/managed-ledgers/t/n/persistent/a", "zk:a", "it is damaged")]
    found = by_name([*of_scan(PLAN, summary(cells, missing=[MissingLedger(1, ("x",))] * 3, doubts=doubts))])
    assert found["bookwarden_scan_ledgers"] == {
        ("referenced", "sales"): 9,
        ("orphan", "sales"): 2,
        ("left behind", "ads"): 1,
        ("inside the list", "ads"): 6,
        ("foreign", OTHER_TENANTS): 7,
    }
    assert found["bookwarden_scan_bytes"]["referenced", "sales"] == 450
    assert found["bookwarden_scan_leaked_ledgers"] == {("topic deleted",): 3}
    assert found["bookwarden_scan_leaked_bytes"] == {("topic deleted",): 40}
    single = {name: of[()] for name, of in found.items() if () in of}
    assert single == {
        "bookwarden_scan_begun_timestamp_seconds": 8,
        "bookwarden_scan_plan_timestamp_seconds": 9,
        "bookwarden_scan_leaked_copies": 3,
        "bookwarden_scan_leaked_copy_bytes": 711,
        "bookwarden_scan_missing_ledgers": 3,
        "bookwarden_scan_gap_ledgers": 6,
        "bookwarden_scan_unreadable_nodes": 1,
    }


def test_of_very_many_tenants_those_with_the_most_orphans_are_named_and_none_is_lost() -> None:
    cells = [Cell("referenced", "MANAGED_LEDGER", f"t{number}/n", "", "<7d", 1, 1_000) for number in range(400)]
    cells += [Cell("orphan", "MANAGED_LEDGER", f"t{number}/n", "trimmed", "older", 1, 1) for number in range(390, 400)]
    found = by_name([*of_scan(PLAN, summary(cells))])["bookwarden_scan_ledgers"]
    tenants = {tenant for _, tenant in found}
    assert len(tenants) == TENANTS + 1
    assert {f"t{number}" for number in range(390, 400)} <= tenants
    assert found["referenced", OTHER_TENANTS] == 350
    assert sum(found.values()) == 410


def test_what_came_of_a_plan_adds_up() -> None:
    ledgers = ApplyResult(
        "p1",
        executed=True,
        candidates=21,
        earlier=6,
        marked=5,
        failed=(NamedCandidate(1, "no answer"),) * 4,
        dropped_total=3,
        held_back_by={"young": 2},
    )
    found = by_name([*of_apply(PLAN, ledgers, ApplyResult("p1", executed=True, candidates=1, marked=1))])
    assert found["bookwarden_apply_plan_timestamp_seconds"] == {(): 9}
    of_ledgers = {
        outcome: value for (kind, outcome), value in found["bookwarden_apply_candidates"].items() if kind == "ledger"
    }
    expected = {"marked before": 6, "marked": 5, "failed": 4, "dropped": 3, "held back": 2, "left": 1}
    assert of_ledgers == expected
    assert found["bookwarden_apply_candidates"]["copy", "marked"] == 1
    assert ("copy", "marked") not in by_name([*of_apply(PLAN, ledgers, None)])["bookwarden_apply_candidates"]


def test_topics_of_a_move_are_counted_once_each() -> None:
    def topic(**fields: tuple[str, ...]) -> TopicVerification:
        return TopicVerification("t", "DRAINED", 1, 1, 0, 1, **fields)

    topics = (topic(), topic(), topic(faults=("unread",), late=("s",)), topic(late=("s",)))
    found = by_name([*of_clients(MigrationVerification(topics))])["bookwarden_cluster_migration_verify_topics"]
    assert found == {("done",): 2, ("not done",): 1, ("late",): 1}


def test_every_outcome_of_an_undo_has_a_value() -> None:
    counts = {outcome: 2 if outcome is UndoOutcome.RESTORED else 0 for outcome in UndoOutcome}
    found = by_name([*of_undo(counts.items())])["bookwarden_undo_ledgers"]
    assert found == {(outcome.value,): counts[outcome] for outcome in UndoOutcome}


def test_disk_use_is_by_tenant_and_bookie_with_the_day_on_which_disks_are_full() -> None:
    uses = [Use(f"t{number}", ledgers=1, disk_bytes=100 - number, unnamed_bytes=1) for number in range(60)]
    bookies = [BookieUse("b1", 1, 1, 0, 0, 0, total=100, free=40), BookieUse("b2", 1, 1, 0, 0, 0, error="no answer")]
    found = by_name(
        [*of_disk(5_000, [Use("", disk_bytes=7), *uses], bookies, Forecast(1, 0, "2026-12-01", None, None))]
    )
    assert len(found["bookwarden_disk_bytes"]) == TENANTS + 1
    assert found["bookwarden_disk_bytes"]["t0",] == 100
    assert sum(found["bookwarden_disk_bytes"].values()) == 7 + sum(use.disk_bytes for use in uses)
    assert sum(found["bookwarden_disk_ledgers"].values()) == sum(found["bookwarden_disk_unnamed_bytes"].values()) == 60
    assert found["bookwarden_disk_bookie_size_bytes"] == {("b1",): 100}
    assert found["bookwarden_disk_bookie_free_bytes"] == {("b1",): 40}
    assert found["bookwarden_disk_measured_timestamp_seconds"] == {(): 5}
    assert found["bookwarden_disk_full_timestamp_seconds"] == {(): 1_796_083_200}
    assert "bookwarden_disk_full_timestamp_seconds" not in by_name([*of_disk(5_000, uses, bookies, None)])
