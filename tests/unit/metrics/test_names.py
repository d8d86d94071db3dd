"""The table of metrics: every program publishes what it says of it, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from bookwarden.bookie_clusters.documents import Overview
from bookwarden.bookie_clusters.operation import SwitchState
from bookwarden.bookie_clusters.order import Phase
from bookwarden.cluster_migration.observing import MigrationSnapshot
from bookwarden.metrics import findings
from bookwarden.metrics.instruments import gauge
from bookwarden.metrics.names import METRICS, Kind, Program
from bookwarden.pipelines.follow.metrics import FollowMetrics
from bookwarden.pipelines.metrics import MarkMetrics, SweepMetrics
from bookwarden.server.metrics import OverviewCollector, _LookCollector

BROKER = Path(__file__).parents[3] / "broker" / "src" / "main" / "java"
_METRIC = re.compile(
    r"(Gauge|Counter)\.build\(\s*\"(\w+)\",\s*\"[^\"]*\"\)\s*(?:\.labelNames\(([^)]*)\))?\s*\.register", re.DOTALL
)


def of(program: Program) -> set[str]:
    return {one.name for one in METRICS.values() if program in one.programs}


def published(metrics: Iterable[Metric]) -> set[str]:
    found = {f"{one.name}_total" if one.type == "counter" else one.name for one in metrics}
    return {name for name in found if name.startswith("bookwarden_")}


def test_a_name_has_a_meaning_of_one_line_and_a_counter_ends_as_one() -> None:
    for name, one in METRICS.items():
        assert re.fullmatch(r"bookwarden_[a-z0-9_]+", name)
        assert (one.kind is Kind.COUNTER) == name.endswith("_total")
        assert one.meaning
        assert "\n" not in one.meaning
        assert one.programs
        assert not re.search(r"[`\[\]]", one.help)
        # Prometheus's own names for the parts of a histogram.
        assert not name.endswith(("_count", "_sum", "_bucket"))


def test_streams_publish_what_the_table_has_of_them() -> None:
    sweep, follow, marks = SweepMetrics(), FollowMetrics(), CollectorRegistry()
    for metrics in (sweep, follow):
        metrics.show_migrations(dict)
    MarkMetrics(marks)
    assert published(sweep.registry.collect()) == of(Program.SWEEP)
    assert published(follow.registry.collect()) == of(Program.FOLLOW)
    assert published(marks.collect()) == of(Program.PHASE_ONE)


def test_serve_publishes_what_the_table_has_of_it() -> None:
    nothing = Overview(SwitchState(Phase.NOT_REGISTERED, None, None, ()), None, None, None)
    clients = MigrationSnapshot(0)
    found = published([*OverviewCollector(nothing).collect(), *_LookCollector(clients).collect()])
    # Without a build there is no ledger of an outcome.
    assert found | {"bookwarden_bookie_clusters_build_outcomes"} == of(Program.SERVE)


def test_brokers_publish_what_the_table_has_of_them() -> None:
    found = {}
    for file in ("Metrics.java", "marks/MarkMetrics.java"):
        text = (BROKER / "bookwarden" / "broker" / file).read_text(encoding="utf-8")
        text = re.sub(r"\"\s*\+\s*\"", "", text).replace("(LABEL)", '("bookie_cluster")')
        found.update(
            {name: (kind, tuple(re.findall(r'"(\w+)"', labels))) for kind, name, labels in _METRIC.findall(text)}
        )
        assert len(_METRIC.findall(text)) == text.count(".build(")
    assert found == {name: (METRICS[name].kind.value.capitalize(), METRICS[name].labels) for name in of(Program.BROKER)}


def test_what_commands_find_is_published_by_the_names_of_the_table() -> None:
    source = Path(findings.__file__).read_text(encoding="utf-8")
    literal = set(re.findall(r"\"(bookwarden_\w+)\"", source))
    literal |= {f"bookwarden_disk_{what}" for what in ("bytes", "unnamed_bytes", "ledgers")}
    commands = set(Program) - {
        *(Program.SWEEP, Program.FOLLOW, Program.PHASE_ONE, Program.BROKER, Program.SERVE, Program.RUN)
    }
    assert literal == {name for program in commands for name in of(program)}


def test_no_metric_is_made_that_is_not_in_the_table_or_of_another_kind() -> None:
    with pytest.raises(KeyError):
        gauge("bookwarden_other", CollectorRegistry())
    with pytest.raises(ValueError, match="is a counter, not a gauge"):
        gauge("bookwarden_outcomes_total", CollectorRegistry())
