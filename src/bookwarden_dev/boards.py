"""Makes Grafana's dashboards in conf/monitoring/boards: deletion, storage, moves.

Queries are PromQL with the names of the table of metrics; the selection of cluster and job is added to each name.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from bookwarden.metrics.names import METRICS

FOLDER: Final = Path("conf/monitoring/boards")
#: What each metric is selected by. All values of a variable are `.*`, which a series without the label matches too.
SELECTION: Final = 'cluster=~"$cluster",job=~"$job"'
_METRIC: Final = re.compile(r"\b(bookwarden_[a-z0-9_]+)(?:\{([^}]*)\})?")
_SUFFIX: Final = re.compile(r"_(bucket|sum|count)$")
#: Width and height in Grafana's cells: of a panel with one number, and of one with series.
_SIZES: Final = {True: (4, 4), False: (8, 8)}


class Query(NamedTuple):
    """A query, and the legend of its series: a text, or labels as ``{{label}}``."""

    promql: str  #: Without the selection of cluster and job.
    legend: str = ""

    @property
    def selected(self) -> str:
        """The query with the selection of cluster and job."""
        return _METRIC.sub(lambda found: f"{found[1]}{{{','.join(filter(None, (SELECTION, found[2])))}}}", self.promql)

    @property
    def metrics(self) -> list[str]:
        """The names of its metrics, as in the table."""
        names = [found[1] for found in _METRIC.finditer(self.promql)]
        return [name if name in METRICS else _SUFFIX.sub("", name) for name in names]


class Panel(NamedTuple):
    """A panel: one number that has to be looked at, or series over time."""

    title: str
    unit: str  #: One of Grafana's.
    queries: tuple[Query, ...]
    red_from: float | None = None  #: One number is shown, which is red from this one on; None: series are.
    is_red_below: bool = False  #: It is red below that number instead.

    @property
    def description(self) -> str:
        """What its metrics mean, as in docs/metrics.md."""
        names = dict.fromkeys(name for query in self.queries for name in query.metrics)
        return "\n\n".join(f"{name}: {METRICS[name].help}" for name in names)


class Row(NamedTuple):
    """Panels that belong together."""

    title: str
    panels: tuple[Panel, ...]


class Board(NamedTuple):
    """A dashboard."""

    name: str  #: Of its file.
    title: str
    rows: tuple[Row, ...]

    @property
    def panels(self) -> Iterator[Panel]:
        """All of its panels."""
        return (panel for row in self.rows for panel in row.panels)


def _number(title: str, unit: str, promql: str, red_from: float = 1, *, is_red_below: bool = False) -> Panel:
    return Panel(title, unit, (Query(promql),), red_from, is_red_below)


def _series(title: str, unit: str, *queries: Query) -> Panel:
    return Panel(title, unit, queries)


def _by(labels: str, promql: str) -> Query:
    return Query(f"sum by ({labels}) ({promql})", " ".join(f"{{{{{label}}}}}" for label in labels.split(", ")))


def _rate(labels: str, counter: str) -> Query:
    return _by(labels, f"rate({counter}[$__rate_interval])")


def _phase(labels: str, gauge: str) -> Query:
    """Show the phase that holds: the gauge is 1 for it, and 0 for the others."""
    return Query(f"max by ({labels}) ({gauge}) == 1", " ".join(f"{{{{{label}}}}}" for label in labels.split(", ")))


DELETION: Final = Board(
    "deletion",
    "bookwarden: deletion",
    (
        Row(
            "Is all well",
            (
                _number("in flight", "short", "sum(bookwarden_inflight_entries)", 1_000_000),
                _number("since the last batch", "s", "time() - max(bookwarden_last_batch_timestamp_seconds)", 86_400),
                _number("an entry cannot be read", "s", "max(bookwarden_source_stuck_seconds)"),
                _number("waits for a doubt", "s", "max(bookwarden_sweep_waiting_seconds)"),
                _number("the query fails", "short", "max(bookwarden_query_consecutive_failures)"),
                _number("no DLQ", "short", "max(bookwarden_dlq_keeps_nothing)"),
            ),
        ),
        Row(
            "Sweep",
            (
                _series("in flight by partition", "short", _by("topic", "bookwarden_inflight_entries")),
                _series(
                    "marks",
                    "ops",
                    Query("sum(rate(bookwarden_pending_deletions_received_total[$__rate_interval]))", "received"),
                    Query("sum(rate(bookwarden_pending_deletions_acked_total[$__rate_interval]))", "acknowledged"),
                ),
                _series("outcomes", "ops", _rate("outcome", "bookwarden_outcomes_total")),
                _series("deleted", "ops", _rate("ledger_type", "bookwarden_ledgers_deleted_total")),
                _series(
                    "bytes deleted",
                    "binBps",
                    Query("sum(rate(bookwarden_ledger_bytes_deleted_total[$__rate_interval]))", "bytes"),
                ),
                _series(
                    "time of a batch",
                    "s",
                    *(
                        Query(
                            f"histogram_quantile({share}, sum by (le) "
                            "(rate(bookwarden_batch_seconds_bucket[$__rate_interval])))",
                            f"p{share[2:]}",
                        )
                        for share in ("0.50", "0.95")
                    ),
                ),
                _series(
                    "failed",
                    "ops",
                    _rate("ledger_type", "bookwarden_ledger_deletions_failed_total"),
                    Query("sum(rate(bookwarden_pending_deletions_max_retry_total[$__rate_interval]))", "given up"),
                ),
                _series("sent", "ops", _rate("destination", "bookwarden_pending_deletions_sent_total")),
                _series("restarts of the query", "ops", _rate("job", "bookwarden_query_restarts_total")),
            ),
        ),
        Row(
            "Brokers that mark",
            (
                _series("outbox, nodes", "short", Query("sum(bookwarden_inflight_outbox_nodes)", "nodes")),
                _series("outbox, bytes", "bytes", Query("sum(bookwarden_inflight_outbox_bytes)", "bytes")),
                _series("outbox, oldest", "s", Query("max(bookwarden_inflight_outbox_oldest_seconds)", "oldest")),
                _series(
                    "outbox by broker, nodes",
                    "short",
                    _by("instance", "bookwarden_outbox_nodes"),
                ),
                _series("outbox by broker, bytes", "bytes", _by("instance", "bookwarden_outbox_bytes")),
                _series("outbox by broker, oldest", "s", _by("instance", "bookwarden_outbox_oldest_seconds")),
                _series(
                    "ledgers",
                    "ops",
                    _rate("kind", "bookwarden_outbox_ledgers_stored_total"),
                    Query("sum(rate(bookwarden_outbox_ledgers_gone_total[$__rate_interval]))", "gone by itself"),
                ),
                _series("unmarked writes", "ops", _rate("reason", "bookwarden_unmarked_writes_total")),
                _series("marks that failed", "ops", _rate("ledger_type", "bookwarden_marks_failed_total")),
                _series("no topic that keeps marks", "short", _by("instance", "bookwarden_outbox_waiting_for_topic")),
                _series(
                    "left to the sweep",
                    "short",
                    Query("sum(bookwarden_left_to_sweep_ledgers)", "ledgers"),
                ),
                _series(
                    "not deleted by brokers",
                    "ops",
                    Query("sum(rate(bookwarden_ledgers_left_to_sweep_total[$__rate_interval]))", "left to the sweep"),
                    Query("sum(rate(bookwarden_ledgers_kept_in_trash_total[$__rate_interval]))", "kept in the trash"),
                ),
                _series("left to the sweep, bytes", "bytes", Query("sum(bookwarden_left_to_sweep_bytes)", "bytes")),
                _series(
                    "left to the sweep, oldest", "s", Query("max(bookwarden_left_to_sweep_oldest_seconds)", "oldest")
                ),
                _series("beyond a limit", "short", _by("limit", "bookwarden_left_to_sweep_limit_exceeded")),
            ),
        ),
        Row(
            "Follow",
            (
                _series("dropped", "ops", _rate("kind, cause", "bookwarden_follow_dropped_total")),
                _series("would have leaked", "ops", _rate("kind, cause", "bookwarden_follow_still_there_total")),
                _series("outcomes", "ops", _rate("outcome", "bookwarden_follow_outcomes_total")),
                _series("to look at", "short", Query("sum(bookwarden_follow_pending)", "ledgers")),
                _series("lag", "s", Query("max(bookwarden_follow_lag_seconds)", "oldest change")),
                _series("nodes", "short", Query("sum(bookwarden_follow_nodes)", "nodes")),
                _series(
                    "marked twice, unreadable",
                    "ops",
                    Query("sum(rate(bookwarden_follow_doubles_total[$__rate_interval]))", "marked twice"),
                    Query("sum(rate(bookwarden_follow_unreadable_nodes_total[$__rate_interval]))", "unreadable nodes"),
                ),
            ),
        ),
        Row(
            "Trash",
            (
                _series(
                    "records",
                    "short",
                    Query("sum(bookwarden_trash_records)", "records"),
                    Query("max(bookwarden_trash_rules)", "rules"),
                ),
                _series("bytes", "bytes", Query("sum(bookwarden_trash_bytes)", "kept")),
                _series(
                    "oldest, lease",
                    "s",
                    Query("max(bookwarden_trash_oldest_seconds)", "oldest"),
                    Query("min(bookwarden_trash_lease_seconds)", "lease"),
                    Query("max(bookwarden_trash_overdue_seconds)", "overdue"),
                ),
                _series("bookies lack", "bytes", Query("max(bookwarden_trash_missing_disk_bytes)", "bytes")),
            ),
        ),
    ),
)

STORAGE: Final = Board(
    "storage",
    "bookwarden: storage",
    (
        Row(
            "Is all well",
            (
                _number("missing ledgers", "short", "sum(bookwarden_scan_missing_ledgers)"),
                _number("lists lost", "short", "sum(bookwarden_scan_gap_ledgers)"),
                _number("unreadable nodes", "short", "sum(bookwarden_scan_unreadable_nodes)"),
                _number("age of the scan", "s", "time() - max(bookwarden_scan_begun_timestamp_seconds)", 8 * 86_400),
                _number("age of its plan", "s", "time() - max(bookwarden_scan_plan_timestamp_seconds)", 8 * 86_400),
                _number(
                    "full in",
                    "s",
                    "min(bookwarden_disk_full_timestamp_seconds) - time()",
                    30 * 86_400,
                    is_red_below=True,
                ),
            ),
        ),
        Row(
            "Disks",
            (
                _series("on disks by tenant", "bytes", _by("tenant", "bookwarden_disk_bytes")),
                _series("of these, named by nothing", "bytes", _by("tenant", "bookwarden_disk_unnamed_bytes")),
                _series("ledgers by tenant", "short", _by("tenant", "bookwarden_disk_ledgers")),
                _series(
                    "used share of a bookie's disks",
                    "percentunit",
                    Query(
                        "1 - sum by (bookie) (bookwarden_disk_bookie_free_bytes) / "
                        "sum by (bookie) (bookwarden_disk_bookie_size_bytes)",
                        "{{bookie}}",
                    ),
                ),
                _series("free on a bookie", "bytes", _by("bookie", "bookwarden_disk_bookie_free_bytes")),
                _series(
                    "since the account", "s", Query("time() - max(bookwarden_disk_measured_timestamp_seconds)", "age")
                ),
            ),
        ),
        Row(
            "Scan",
            (
                _series("ledgers by class", "short", _by("class", "bookwarden_scan_ledgers")),
                _series("bytes by class", "bytes", _by("class", "bookwarden_scan_bytes")),
                _series("leaked by cause", "short", _by("cause", "bookwarden_scan_leaked_ledgers")),
                _series("leaked bytes by cause", "bytes", _by("cause", "bookwarden_scan_leaked_bytes")),
                _series("leaked copies", "short", Query("sum(bookwarden_scan_leaked_copies)", "copies")),
                _series("leaked copies, bytes", "bytes", Query("sum(bookwarden_scan_leaked_copy_bytes)", "bytes")),
                _series("applied", "short", _by("kind, outcome", "bookwarden_apply_candidates")),
                _series(
                    "age of the plan applied last",
                    "s",
                    Query("time() - max(bookwarden_apply_plan_timestamp_seconds)", "age"),
                ),
                _series("undone", "short", _by("outcome", "bookwarden_undo_ledgers")),
            ),
        ),
        Row(
            "Commands that end",
            (
                _series("exit codes", "short", Query("max by (command) (bookwarden_run_exit_code)", "{{command}}")),
                _series(
                    "since the end",
                    "s",
                    Query("time() - max by (command) (bookwarden_run_ended_timestamp_seconds)", "{{command}}"),
                ),
                _series(
                    "took",
                    "s",
                    Query(
                        "max by (command) (bookwarden_run_ended_timestamp_seconds - "
                        "bookwarden_run_started_timestamp_seconds) >= 0",
                        "{{command}}",
                    ),
                ),
            ),
        ),
    ),
)

MOVES: Final = Board(
    "moves",
    "bookwarden: moves",
    (
        Row(
            "Is all well",
            (
                _number("switch without a process", "short", "max(bookwarden_bookie_clusters_switch_stopped)"),
                _number("brokers behind", "short", "max(bookwarden_bookie_clusters_brokers_behind)"),
                _number("clusters not reached", "short", "max(bookwarden_bookie_clusters_unreachable)"),
                _number("build stopped", "short", "max(bookwarden_bookie_clusters_build_stopped)"),
                _number(
                    "metadata differs",
                    "short",
                    'sum(bookwarden_metadata_verify_nodes{difference!="changed after the switch"})',
                ),
                _number("troubles of clients' move", "short", "max(bookwarden_cluster_migration_troubles)"),
            ),
        ),
        Row(
            "Bookie clusters",
            (
                _series("phase of the switch", "short", _phase("phase", "bookwarden_bookie_clusters_switch_phase")),
                _series("takes new ledgers", "short", _phase("bookie_cluster", "bookwarden_bookie_clusters_active")),
                _series(
                    "epochs",
                    "short",
                    Query("max(bookwarden_bookie_clusters_registry_epoch)", "registry"),
                    Query("min(bookwarden_bookie_clusters_epoch)", "the last broker"),
                ),
                _series(
                    "ledgers created",
                    "ops",
                    _rate("bookie_cluster", "bookwarden_bookie_clusters_ledgers_created_total"),
                ),
                _series(
                    "metadata read", "ops", _rate("bookie_cluster", "bookwarden_bookie_clusters_ledger_reads_total")
                ),
                _series(
                    "refused, errors",
                    "ops",
                    _rate("reason", "bookwarden_bookie_clusters_refusals_total"),
                    Query(
                        "sum(rate(bookwarden_bookie_clusters_registry_errors_total[$__rate_interval]))",
                        "registry not read",
                    ),
                ),
            ),
        ),
        Row(
            "Moved ledgers",
            (
                _series(
                    "build",
                    "percentunit",
                    Query(
                        "max(bookwarden_bookie_clusters_build_bytes_done) / "
                        "max(bookwarden_bookie_clusters_build_bytes)",
                        "bytes",
                    ),
                    Query(
                        "max(bookwarden_bookie_clusters_build_ledgers_done) / "
                        "max(bookwarden_bookie_clusters_build_ledgers)",
                        "ledgers",
                    ),
                ),
                _series("time left", "s", Query("max(bookwarden_bookie_clusters_build_left_seconds)", "left")),
                _series("outcomes", "short", _by("outcome", "bookwarden_bookie_clusters_build_outcomes")),
                _series("a build runs", "short", Query("max(bookwarden_bookie_clusters_build_running)", "runs")),
                _series(
                    "since the last build",
                    "s",
                    Query("time() - (max(bookwarden_bookie_clusters_build_ended_timestamp_seconds) > 0)", "ago"),
                ),
                _series("read back", "short", _by("outcome", "bookwarden_bookie_clusters_verified_ledgers")),
                _series("phase of the offline move", "short", _phase("phase", "bookwarden_bookie_clusters_move_phase")),
                _series(
                    "promoted up to",
                    "s",
                    Query("time() - (max(bookwarden_bookie_clusters_promoted_timestamp_seconds) > 0)", "ago"),
                ),
            ),
        ),
        Row(
            "Metadata store",
            (
                _series("phase", "short", _phase("store, phase", "bookwarden_metadata_migration_phase")),
                _series(
                    "state of sweep and follow",
                    "short",
                    _phase("job, store, state", "bookwarden_metadata_migration_state"),
                ),
                _series("kept from writing", "s", _rate("job", "bookwarden_metadata_migration_blocked_seconds_total")),
                _series(
                    "nodes",
                    "short",
                    _by("difference", "bookwarden_metadata_verify_nodes"),
                    Query("sum(bookwarden_metadata_verify_compared_nodes)", "compared"),
                ),
            ),
        ),
        Row(
            "Clients",
            (
                _series("topics", "short", _by("namespace, state", "bookwarden_cluster_migration_topics")),
                _series("left to read", "short", _by("namespace", "bookwarden_cluster_migration_unread_entries")),
                _series("sent to green", "short", _by("namespace", "bookwarden_cluster_migration_flagged")),
                _series("verified", "short", _by("result", "bookwarden_cluster_migration_verify_topics")),
            ),
        ),
    ),
)

BOARDS: Final = (DELETION, STORAGE, MOVES)


def board_json(board: Board) -> str:
    """Return the dashboard as Grafana imports it: any of 11.6 or newer."""
    # Late, since it is of the extra dev, and needs Python 3.11.
    from grafana_foundation_sdk.builders import dashboard, prometheus, stat, timeseries
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models import dashboard as models

    source = models.DataSourceRef(type_val="prometheus", uid="$source")

    def panel_of(panel: Panel) -> stat.Panel | timeseries.Panel:
        made: stat.Panel | timeseries.Panel
        if panel.red_from is None:
            made = timeseries.Panel()
        else:
            below, above = ("red", "green") if panel.is_red_below else ("green", "red")
            steps = [models.Threshold(None, below), models.Threshold(panel.red_from, above)]
            limits = dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)
            made = stat.Panel().thresholds(limits)
        width, height = _SIZES[panel.red_from is not None]
        made = made.title(panel.title).description(panel.description).unit(panel.unit).datasource(source)
        made = made.span(width).height(height)
        for query in panel.queries:
            target = prometheus.Dataquery().expr(query.selected).legend_format(query.legend or "__auto")
            made = made.with_target(target)
        return made

    def selecting(label: str) -> dashboard.QueryVariable:
        return (
            dashboard.QueryVariable(label)
            .datasource(source)
            .query(f'label_values({{__name__=~"bookwarden_.+"}}, {label})')
            .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .multi(True)
            .include_all(True)
            .all_value(".*")
        )

    made = (
        dashboard.Dashboard(board.title)
        .uid(f"bookwarden-{board.name}")
        .tags(["bookwarden", "pulsar"])
        .time("now-6h", "now")
        .refresh("30s")
        .timezone("browser")
        .with_variable(dashboard.DatasourceVariable("source").type("prometheus"))
        .with_variable(selecting("cluster"))
        .with_variable(selecting("job"))
    )
    for row in board.rows:
        made = made.with_row(dashboard.Row(row.title))
        for panel in row.panels:
            made = made.with_panel(panel_of(panel))
    return f"{JSONEncoder(sort_keys=True, indent=2).encode(made.build())}\n"


def main(checkout: Path) -> None:
    """Write the files of all boards."""
    for board in BOARDS:
        (checkout / FOLDER / f"{board.name}.json").write_text(board_json(board), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
