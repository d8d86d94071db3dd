"""Every query of the dashboards finds something in a real Prometheus, or what it is of does not run here."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import urllib3
import yaml

from bookwarden.ledgers.kinds import LedgerComponent, ManagedLedgerHolder
from bookwarden.ledgers.pending_deletion import LedgerType, PendingDeletion
from bookwarden.metastore.urls import open_store
from bookwarden.metrics.names import METRICS, Program
from bookwarden_dev.boards import BOARDS, Query
from bookwarden_dev.devcluster import DevCluster, ServerProcess, ServerSpec
from bookwarden_dev.devcluster.ports import LOOPBACK, free_ports
from servers.class_archives import QUICK_BOOKWARDEN
from servers.deletion_site import DeletionSite
from servers.population import Population
from servers.waiting import eventually

PROMETHEUS = shutil.which("prometheus")
pytestmark = [
    pytest.mark.servers,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus on this machine (Debian's package prometheus)"),
]
#: What publishes metrics here; others need brokers with the jar, several bookie clusters, a move, or something to undo.
RUNNING = {Program.SWEEP, Program.FOLLOW, Program.SERVE, Program.RUN, Program.SCAN, Program.DISK}
#: Queries of programs that run here which find nothing, by what they ask for.
EMPTY = {
    "disk_full": "no day is foreseen before there are seven days of growth",
    "build_left": "no build is under way",
    "build_outcomes": "no build has begun",
    "build_ended": "no build has ended",
    "clusters_move": "no ledgers are moved offline",
    "promoted": "nothing was promoted",
    "cluster_migration": "no clients are moved to another cluster",
}


class Textfiles(BaseHTTPRequestHandler):
    """Serves the files of a folder together, as node_exporter does."""

    folder: Path

    def do_GET(self) -> None:
        """Answer with all of them."""
        content = b"".join(file.read_bytes() for file in sorted(self.folder.glob("*.prom")))
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing of each request."""


@contextmanager
def textfiles_of(folder: Path) -> Iterator[int]:
    with ThreadingHTTPServer((LOOPBACK, 0), type("Handler", (Textfiles,), {"folder": folder})) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def answers(port: int, path: str) -> bool:
    try:
        return urllib3.request("GET", f"http://{LOOPBACK}:{port}{path}", timeout=5.0, retries=False).status == 200
    except urllib3.exceptions.HTTPError:
        return False


class Ground:
    """Commands with the settings of a site, and a Prometheus that scrapes them."""

    def __init__(self, site: DeletionSite, stack: ExitStack) -> None:
        self._stack = stack
        self._folder = site.folder
        self._settings = site.folder / "bookwarden.yaml"
        self._settings.write_text(yaml.safe_dump(site.settings.model_dump(mode="json")), encoding="utf-8")

    def start(self, command: str, port_setting: str) -> int:
        """Start a command that serves metrics; return its port."""
        (port,) = free_ports(1)
        line = [*QUICK_BOOKWARDEN, "--config", str(self._settings), "--set", f"{port_setting}={port}", command]
        self._run(command, line, port, "/metrics")
        return port

    def run(self, *arguments: str) -> None:
        """Run a command that ends, whatever it finds."""
        line = [*QUICK_BOOKWARDEN, "--config", str(self._settings), *arguments]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert done.returncode == 0 or 20 <= done.returncode < 30, done.stderr

    def scrape(self, targets: dict[str, int]) -> int:
        """Start a Prometheus that scrapes these jobs by their ports; return its own."""
        file = self._folder / "prometheus.yaml"
        jobs = [
            {"job_name": job, "static_configs": [{"targets": [f"{LOOPBACK}:{port}"]}]} for job, port in targets.items()
        ]
        settings = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": jobs}
        file.write_text(yaml.safe_dump(settings), encoding="utf-8")
        (port,) = free_ports(1)
        line = [str(PROMETHEUS), f"--config.file={file}", f"--storage.tsdb.path={self._folder / 'series'}"]
        self._run("prometheus", [*line, f"--web.listen-address={LOOPBACK}:{port}"], port, "/-/ready")
        return port

    def _run(self, name: str, line: list[str], port: int, path: str) -> None:
        log = self._folder / f"{name}.log"
        process = ServerProcess(ServerSpec(name, lambda: line, log, lambda _: answers(port, path), self._folder))
        self._stack.callback(process.kill)
        process.start()


@pytest.fixture
def prometheus(pulsar_cluster: DevCluster, namespace: str, tmp_path: Path) -> Iterator[int]:
    """The port of one that scraped a sweep, follow, serve, a scan and an account of the disks."""
    site = DeletionSite.of(pulsar_cluster, namespace, tmp_path)
    textfiles = tmp_path / "textfiles"
    textfiles.mkdir()
    site.overrides = {
        "metrics.textfile_folder": str(textfiles),
        "orphans.min_age_days": "0",
        "orphans.longest_compaction_hours": "0",
        **{f"{part}.folder": str(tmp_path / part) for part in ("orphans", "disk")},
        **{f"follow.{part}": str(tmp_path / "follow" / part) for part in ("checkpoint", "outcomes")},
    }
    site.create_topics()
    holder = ManagedLedgerHolder(f"{namespace}/persistent/orders")
    ledger_id = 1_400_000_000 + (hash(namespace) % 100_000) * 1000
    with closing(open_store(site.store_url)) as store:
        population = Population(store)
        population.ledger(ledger_id, holder)
        population.ledger(ledger_id + 1, holder)
        population.names(holder, [ledger_id + 1])
        population.ledger(ledger_id + 2, ManagedLedgerHolder(f"{namespace}/persistent/deleted"))
    with ExitStack() as stack:
        ground = Ground(site, stack)
        ground.run("orphans", "scan")
        ground.run("disk")
        targets = {command: ground.start(command, "metrics.port") for command in ("sweep", "follow")}
        targets["serve"] = ground.start("serve", "serve.port")
        targets["node"] = stack.enter_context(textfiles_of(textfiles))
        port = ground.scrape(targets)
        site.mark(PendingDeletion(holder.name, LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, ledger_id))
        eventually(lambda: site.counts() == {"deleted": 1}, 120)
        yield port


def found_by(port: int, query: Query) -> list[Any]:
    text = query.selected.replace("$__rate_interval", "1m").replace("$cluster", ".*").replace("$job", ".*")
    url = f"http://{LOOPBACK}:{port}/api/v1/query?{urlencode({'query': text})}"
    answer = json.loads(urllib3.request("GET", url, timeout=10.0, retries=False).data)
    assert answer["status"] == "success", answer
    found: list[Any] = answer["data"]["result"]
    return found


def test_every_query_finds_something(prometheus: int) -> None:
    queries = [
        query
        for board in BOARDS
        for panel in board.panels
        for query in panel.queries
        if all(RUNNING.intersection(METRICS[name].programs) for name in query.metrics)
    ]
    assert len(queries) > 60

    def unexpected() -> list[str]:
        empty = [query.promql for query in queries if not found_by(prometheus, query)]
        return [promql for promql in empty if not any(one in promql for one in EMPTY)]

    # A rate needs two scrapes.
    with suppress(AssertionError):
        eventually(lambda: not unexpected(), 30)
    assert not unexpected(), "\n".join(unexpected())
    for one in EMPTY:
        assert any(one in query.promql and not found_by(prometheus, query) for query in queries), one
