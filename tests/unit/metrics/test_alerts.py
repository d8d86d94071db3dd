"""The alerts of conf/monitoring: what they name is there, and promtool sees each fire, and not fire."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from bookwarden.ledgers.bookie_report import FULL, NEARLY_FULL
from bookwarden.metrics.names import METRICS
from bookwarden.server.page import problems
from bookwarden.server.page.reading import _RUNBOOK

CHECKOUT = Path(__file__).parents[3]
FILE = CHECKOUT / "conf" / "monitoring" / "alerts.yaml"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(FILE.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]
]
PROMTOOL = shutil.which("promtool")
Series = Mapping[str, str]


class Case(NamedTuple):
    """Series with which an alert fires, and others with which it does not, each value of them a minute after the other.

    All are scraped from one target, unless they name another.
    """

    fires: Series
    quiet: Series
    at: str = "30m"
    interval: str = "1m"


def outcome(name: str) -> Case:
    """Marks of an outcome, and none; a series that is there from the start is what a rate needs."""
    series = f'bookwarden_outcomes_total{{outcome="{name}",ledger_type="LEDGER"}}'
    return Case({series: "0x20 1x40"}, {series: "1x60", series.replace(name, "deleted"): "0+5x60"}, "40m")


def above(series: str, bad: str, good: str = "0x60", at: str = "30m") -> Case:
    """One series, with values of both kinds."""
    return Case({series: bad}, {series: good}, at)


LAST_BATCH = "bookwarden_last_batch_timestamp_seconds"
INFLIGHT = 'bookwarden_inflight_entries{topic="deletion-partition-0"}'
PHASE = 'bookwarden_bookie_clusters_switch_phase{phase="DONE_WITH_FAILURES"}'
FREE = 'bookwarden_disk_bookie_free_bytes{bookie="b1:3181"}'
SIZE = 'bookwarden_disk_bookie_size_bytes{bookie="b1:3181"}'
PLANNED = "bookwarden_scan_plan_timestamp_seconds"
APPLIED = "bookwarden_apply_plan_timestamp_seconds"
LEAKED = 'bookwarden_scan_leaked_ledgers{cause="topic deleted"}'
DAY = 86_400

CASES: dict[str, Case] = {
    "BookwardenSweepStalled": Case(
        {INFLIGHT: "5x60", LAST_BATCH: "60x60"}, {INFLIGHT: "5x60", LAST_BATCH: "0+60x60"}, "40m"
    ),
    "BookwardenSweepAbsent": Case(
        {"bookwarden_follow_nodes": "1x60", LAST_BATCH: "0+60x60"},
        {'bookwarden_sweep_waiting_seconds{cause="returning ids"}': "0x60"},
    ),
    "BookwardenEntryUnreadable": above('bookwarden_source_stuck_seconds{topic="a"}', "0+60x60"),
    "BookwardenSweepWaits": above('bookwarden_sweep_waiting_seconds{cause="unreadable node"}', "0+60x60"),
    "BookwardenQueryFails": above("bookwarden_query_consecutive_failures", "3x60", "2x60"),
    "BookwardenQueryRestarts": above("bookwarden_query_restarts_total", "0+1x60", "3x60"),
    "BookwardenSweepFallsBehind": Case({INFLIGHT: "0+10x300"}, {INFLIGHT: "0+10x60 600-10x60 0x180"}, "4h"),
    "BookwardenDeletionsFail": Case(
        {
            'bookwarden_ledger_deletions_failed_total{ledger_type="LEDGER"}': "0+6x60",
            'bookwarden_pending_deletions_received_total{ledger_type="LEDGER"}': "0+10x60",
        },
        {
            'bookwarden_ledger_deletions_failed_total{ledger_type="LEDGER"}': "0+4x60",
            'bookwarden_pending_deletions_received_total{ledger_type="LEDGER"}': "0+10x60",
        },
    ),
    # Each value is an hour after the one before.
    "BookwardenMarksWait": Case(
        {'bookwarden_outcomes_total{outcome="waiting",ledger_type="LEDGER"}': "0+1x240"},
        {'bookwarden_outcomes_total{outcome="waiting",ledger_type="LEDGER"}': "0+1x48 48x192"},
        at="9d",
        interval="1h",
    ),
    "BookwardenDeadLetters": above(
        'bookwarden_pending_deletions_sent_total{destination="dlq",ledger_type="LEDGER"}', "0x10 1x50", "1x60"
    ),
    "BookwardenDlqKeepsNothing": above("bookwarden_dlq_keeps_nothing", "1x60"),
    "BookwardenListLostLedgers": outcome("inside the list"),
    "BookwardenNodeDamaged": outcome("damaged holder"),
    "BookwardenPoisonMessage": outcome("poisonous"),
    "BookwardenMarksForged": outcome("mismatch"),
    "BookwardenMetadataMigrationBlocks": above(
        'bookwarden_metadata_migration_blocked_seconds_total{store="zk:z"}', "0+60x60", "0x20 0+60x5 300x40"
    ),
    "BookwardenTrashKeepsNothing": Case(
        {"bookwarden_trash_lease_seconds": "0x60", "bookwarden_trash_rules": "2x60"},
        {"bookwarden_trash_lease_seconds": "0x60", "bookwarden_trash_rules": "0x60"},
    ),
    "BookwardenTrashLacksDisk": above("bookwarden_trash_missing_disk_bytes", "4096x60"),
    "BookwardenTrashOverdue": above("bookwarden_trash_overdue_seconds", "0+60x60", "1800x60", "40m"),
    "BookwardenOutboxNotEmptied": above("bookwarden_inflight_outbox_oldest_seconds", "0+60x60", "600x60"),
    "BookwardenOutboxWithoutTopic": above("bookwarden_outbox_waiting_for_topic", "1x60", "1x3 0x57"),
    "BookwardenUnmarkedWrites": above('bookwarden_unmarked_writes_total{reason="full"}', "0x10 1x50", "1x60"),
    "BookwardenBrokersDelete": above('bookwarden_left_to_sweep_limit_exceeded{limit="age"}', "1x60"),
    "BookwardenBrokersLeaveLedgers": above(
        'bookwarden_follow_still_there_total{kind="cursor",cause="replaced"}', "0x10 3x50", "3x60"
    ),
    "BookwardenFollowPending": above("bookwarden_follow_pending", "9000000x60", "7000000x60"),
    "BookwardenBrokersBehind": above("bookwarden_bookie_clusters_brokers_behind", "2x60"),
    "BookwardenBookieClusterEpochsDiffer": Case(
        {
            'bookwarden_bookie_clusters_epoch{job="broker",instance="b1"}': "3x60",
            'bookwarden_bookie_clusters_epoch{job="broker",instance="b2"}': "4x60",
        },
        {
            'bookwarden_bookie_clusters_epoch{job="broker",instance="b1"}': "4x60",
            'bookwarden_bookie_clusters_epoch{job="broker",instance="b2"}': "4x60",
        },
    ),
    "BookwardenBookieClusterUnreachable": above('bookwarden_bookie_clusters_unreachable{bookie_cluster="a"}', "1x60"),
    "BookwardenRegistryUnusable": above("bookwarden_bookie_clusters_registry_errors_total", "0x10 1x50", "1x60"),
    "BookwardenLedgersRefused": above(
        'bookwarden_bookie_clusters_refusals_total{reason="create_in_no_one_cluster"}', "0x10 1x50", "1x60"
    ),
    "BookwardenSwitchStopped": above("bookwarden_bookie_clusters_switch_stopped", "1x60"),
    "BookwardenSwitchFailures": above(PHASE, "1x60"),
    "BookwardenBuildStopped": above("bookwarden_bookie_clusters_build_stopped", "1x60"),
    "BookwardenBuildFailures": Case(
        {'bookwarden_bookie_clusters_build_outcomes{outcome="failed",kind="data"}': "2x60"},
        {'bookwarden_bookie_clusters_build_outcomes{outcome="copied",kind="data"}': "2x60"},
    ),
    "BookwardenCopiesNotWhole": Case(
        {'bookwarden_bookie_clusters_verified_ledgers{outcome="failed",kind="data"}': "2x60"},
        {'bookwarden_bookie_clusters_verified_ledgers{outcome="complete",kind="data"}': "2x60"},
    ),
    "BookwardenTopicsOutOfReach": Case(
        {'bookwarden_cluster_migration_topics{namespace="t/n",state="STRANDED"}': "1x60"},
        {'bookwarden_cluster_migration_topics{namespace="t/n",state="DRAINED"}': "9x60"},
    ),
    "BookwardenClientMoveUnknown": above("bookwarden_cluster_migration_troubles", "1x60", "1x10 0x50"),
    "BookwardenMetadataMigrationStalls": above(
        'bookwarden_metadata_migration_phase{store="zk:z",phase="PREPARATION"}', "1x60", "1x1 _x58"
    ),
    "BookwardenMetadataMigrationFailed": Case(
        {'bookwarden_metadata_migration_phase{store="zk:z",phase="FAILED"}': "1x60"},
        {'bookwarden_metadata_migration_phase{store="zk:z",phase="COMPLETED"}': "1x60"},
    ),
    "BookwardenMetadataDiffers": Case(
        {'bookwarden_metadata_verify_nodes{difference="missing"}': "1x60"},
        {
            'bookwarden_metadata_verify_nodes{difference="missing"}': "0x60",
            'bookwarden_metadata_verify_nodes{difference="changed after the switch"}': "7x60",
        },
    ),
    "BookwardenRunFailed": above('bookwarden_run_exit_code{command="undo"}', "7x60", "20x60"),
    "BookwardenScanMissing": above(PLANNED, f"0x{9 * 24}", f"{2 * DAY}x{9 * 24}", "9d")._replace(interval="1h"),
    "BookwardenLedgersMissing": above("bookwarden_scan_missing_ledgers", "1x60"),
    "BookwardenListGaps": above("bookwarden_scan_gap_ledgers", "1x60"),
    "BookwardenNodesUnreadable": above("bookwarden_scan_unreadable_nodes", "1x60"),
    "BookwardenPlanNotApplied": Case(
        {LEAKED: "5x120", PLANNED: "0+3600x120", APPLIED: "0x120"},
        {LEAKED: "5x120", PLANNED: "0+3600x120", APPLIED: "0+3600x120"},
        at="4d",
        interval="1h",
    ),
    "BookwardenBookieNearlyFull": Case({FREE: "9x60", SIZE: "100x60"}, {FREE: "11x60", SIZE: "100x60"}),
    "BookwardenBookieFull": Case({FREE: "4x60", SIZE: "100x60"}, {FREE: "6x60", SIZE: "100x60"}),
    "BookwardenDisksFullSoon": above("bookwarden_disk_full_timestamp_seconds", f"{14 * DAY}x60", f"{15 * DAY}x60"),
}


def named(rule: Mapping[str, Any]) -> str:
    return str(rule["alert"])


def test_each_alert_has_its_cases_and_its_name_once() -> None:
    names = [named(rule) for rule in RULES]
    assert len(names) == len(set(names))
    assert set(names) == set(CASES)
    assert all(name.startswith("Bookwarden") for name in names)


@pytest.mark.parametrize("rule", RULES, ids=named)
def test_an_alert_says_how_bad_it_is_and_where_to_read_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    notes = rule["annotations"]
    assert notes["summary"]
    assert not notes["summary"].endswith(".")
    assert notes["description"].endswith(".")
    # The page shows it by this.
    found = _RUNBOOK.search(notes["runbook_url"])
    assert found is not None
    page, _, section = found[1].partition("#")
    text = (CHECKOUT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    headings = [re.sub(r"[`*]", "", heading) for heading in re.findall(r"^#{1,6} (.+)$", text, re.MULTILINE)]
    assert section in {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("rule", RULES, ids=named)
def test_an_alert_and_its_cases_name_metrics_and_labels_of_the_table(rule: dict[str, Any]) -> None:
    metrics = set(re.findall(r"\bbookwarden_\w+", rule["expr"]))
    assert metrics
    assert metrics <= METRICS.keys()
    case = CASES[named(rule)]
    known = {label for name in metrics for label in METRICS[name].labels}
    assert set(re.findall(r"(\w+)(?:=~|!=|=)\"", rule["expr"])) <= known
    assert set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))) <= known
    for series in (*case.fires, *case.quiet):
        name, _, labels = series.partition("{")
        assert name in METRICS
        assert set(re.findall(r"(\w+)=\"", labels)) - {"instance", "job"} == set(METRICS[name].labels)


def test_thresholds_are_those_of_the_page() -> None:
    expressions = {named(rule): rule["expr"] for rule in RULES}
    assert f"> {problems._OVERDUE_MS // 1000}" in expressions["BookwardenSweepStalled"]
    assert f"> {problems._OUTBOX_MS // 1000} or" in expressions["BookwardenOutboxNotEmptied"]
    assert expressions["BookwardenBookieNearlyFull"].endswith(f">= {NEARLY_FULL}")
    assert expressions["BookwardenBookieFull"].endswith(f">= {FULL}")
    assert f"<= {problems._FORECAST_DAYS} * 86400" in expressions["BookwardenDisksFullSoon"]


def promtool(folder: Path, *arguments: str) -> tuple[int, str]:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian's package prometheus)")


@needs_promtool
def test_promtool_accepts_the_file(tmp_path: Path) -> None:
    assert promtool(tmp_path, "check", "rules", str(FILE))[0] == 0


def seen(case: Case, series: Series, name: str, number: int) -> dict[str, Any]:
    """Make a unit test of promtool: how many alerts of this name fire at the end."""
    return {
        "name": f"{name} {number}",
        "interval": case.interval,
        "input_series": [{"series": scraped(one), "values": values} for one, values in series.items()],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)',
                "eval_time": case.at,
                "exp_samples": [{"labels": "{}", "value": number}],
            }
        ],
    }


def scraped(series: str) -> str:
    """Add the labels of the target."""
    if "instance=" in series:
        return series
    name, _, labels = series.rstrip("}").partition("{")
    return f"{name}{{{', '.join([*([labels] if labels else []), _TARGET])}}}"


_TARGET = 'instance="driver:8088",job="bookwarden"'


@needs_promtool
@pytest.mark.parametrize("rule", RULES, ids=named)
def test_an_alert_fires_where_it_should_and_not_elsewhere(tmp_path: Path, rule: dict[str, Any]) -> None:
    name, case = named(rule), CASES[named(rule)]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "one", "rules": [rule]}]}))
    test = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": case.interval,
        "tests": [seen(case, case.fires, name, 1), seen(case, case.quiet, name, 0)],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(test))
    code, said = promtool(tmp_path, "test", "rules", "test.yaml")
    assert code == 0, said
