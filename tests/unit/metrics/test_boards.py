"""Grafana's dashboards in conf/monitoring/boards: every metric is on one, and promtool takes every query."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from bookwarden.metrics.names import METRICS
from bookwarden_dev.boards import BOARDS, FOLDER, Board, Query, board_json

CHECKOUT = Path(__file__).parents[3]
PROMTOOL = shutil.which("promtool")
#: Labels that are not of the table: Prometheus's, and that of a histogram's buckets.
OTHERS = frozenset({"instance", "job", "le"})
QUERIES = [query for board in BOARDS for panel in board.panels for query in panel.queries]


def promql_of(query: Query) -> str:
    """Put values where Grafana puts them."""
    text = query.selected.replace("$__rate_interval", "1m")
    return text.replace("$cluster", ".*").replace("$job", ".*")


def test_every_metric_is_on_a_board_and_nothing_else_is() -> None:
    assert {name for query in QUERIES for name in query.metrics} == METRICS.keys()


def test_labels_are_those_of_the_metrics() -> None:
    for query in QUERIES:
        known = OTHERS.union(*(METRICS[name].labels for name in query.metrics))
        grouped = [label for labels in re.findall(r"by \(([^)]*)\)", query.promql) for label in labels.split(", ")]
        shown = re.findall(r"\{\{(\w+)\}\}", query.legend)
        assert known.issuperset(grouped), query
        assert set(shown) <= set(grouped), query


def test_each_name_is_selected_by_cluster_and_job() -> None:
    assert Query('sum(bookwarden_a) / b(bookwarden_b{x!="y"})').selected == (
        'sum(bookwarden_a{cluster=~"$cluster",job=~"$job"}) / b(bookwarden_b{cluster=~"$cluster",job=~"$job",x!="y"})'
    )


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_titles_are_given_once_in_a_row(board: Board) -> None:
    for row in board.rows:
        titles = [panel.title for panel in row.panels]
        assert len(titles) == len(set(titles)), row.title


def test_a_number_that_is_zero_is_green() -> None:
    numbers = [panel for board in BOARDS for panel in board.panels if panel.red_from is not None]
    assert numbers
    # Grafana's thresholds hold from their value on.
    assert [panel.title for panel in numbers if panel.red_from == 0] == []


@pytest.mark.skipif(sys.version_info < (3, 11), reason="grafana-foundation-sdk needs Python 3.11")
@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_the_files_are_up_to_date(board: Board) -> None:
    text = board_json(board)
    assert (CHECKOUT / FOLDER / f"{board.name}.json").read_text(encoding="utf-8") == text, "make docs"
    found = json.loads(text)
    targets = [target["expr"] for panel in found["panels"] for target in panel.get("targets", ())]
    assert targets == [query.selected for panel in board.panels for query in panel.queries]
    assert [one["name"] for one in found["templating"]["list"]] == ["source", "cluster", "job"]


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian's package prometheus)")
def test_promtool_takes_every_query(tmp_path: Path) -> None:
    rules = [{"record": f"query:{number}", "expr": promql_of(query)} for number, query in enumerate(QUERIES)]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "boards", "rules": rules}]}), encoding="utf-8")
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, "check", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
