"""A small cluster's metadata in a ZooKeeper of its own, a stand-in for its broker's clock, and scans of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from pyspark.sql import SparkSession

from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.config import Settings, load_settings
from bookwarden.ledgers.kinds import Holder, ManagedLedgerHolder
from bookwarden.metastore.urls import open_store
from bookwarden.pipelines.scan.folder import plans_of
from bookwarden.pipelines.scan.operation import OrphanScan
from bookwarden.pipelines.scan.planning import ScanResult
from bookwarden.pipelines.scan.stage import Progress
from servers.population import ROOT, Population


class ScannedSite:
    """Ledgers and references below a path of its own; ``admin_url`` is of whoever tells the broker's time."""

    def __init__(self, hosts: str, chroot: str, admin_url: str, folder: Path) -> None:
        with_root = open_store(f"zk:{hosts}")
        # Sites of other tests there have ledgers of the same ids and topics, and each its own BookKeeper.
        others = [f"zk:{hosts}/{name}" for name in with_root.list_children("/") if name.startswith("s-")]
        with_root.create(chroot, b"")
        with_root.close()
        self.url = f"zk:{hosts}{chroot}"
        self.folder = folder
        self.overrides = {
            "metadata_store.urls": f"['{self.url}']",
            "metadata_store.separate_roots": str(others),
            "pulsar.admin_url": admin_url,
            "orphans.folder": str(folder),
            "orphans.min_age_days": "0",
            "orphans.longest_compaction_hours": "0",
            "orphans.max_clock_skew_seconds": "3600",
        }
        self.store = open_store(self.url)
        self.population = Population(self.store)
        self.store.create(f"{ROOT}/INSTANCEID", b"0f1e-2d3c")
        self.namespace("t/n")

    @property
    def settings(self) -> Settings:
        return load_settings(overrides=self.overrides)

    def namespace(self, name: str) -> None:
        """Give the namespace policies, as one that exists has."""
        self.store.create(f"/admin/policies/{name}", b"{}", make_parents=True)

    def topic(self, name: str, ledger_ids: Sequence[int], *, existing: bool = True) -> ManagedLedgerHolder:
        """Let a topic name these ledgers, which exist unless told otherwise."""
        holder = ManagedLedgerHolder(name)
        if existing:
            self.ledgers(holder, ledger_ids)
        self.population.names(holder, ledger_ids)
        return holder

    def ledgers(self, holder: Holder, ledger_ids: Sequence[int]) -> None:
        """Make ledgers that nobody names yet."""
        for ledger_id in ledger_ids:
            self.population.ledger(ledger_id, holder)

    def remove(self, ledger_id: int) -> None:
        """Remove the ledger's metadata as BookKeeper does."""
        path = ledger_path(ROOT, ledger_id)
        node = self.store.get(path)
        assert node is not None
        self.store.delete_many([(path, node.version)])

    def scan(self, spark: SparkSession, progress: Progress = lambda *_: None) -> ScanResult:
        """Make one scan of it all."""
        scan = OrphanScan(spark, self.settings, progress)
        return scan.run(scan.begin())

    def candidates(self, result: ScanResult) -> dict[int, str]:
        """Give the cause of each candidate of the plan."""
        return {one.ledger_id: one.cause for one in plans_of(self.settings).all_candidates(result.plan)}

    def plan_ids(self) -> list[str]:
        return plans_of(self.settings).plan_ids()

    def close(self) -> None:
        self.store.close()


@contextmanager
def broker_telling_the_time(ahead_seconds: float = 0.0) -> Iterator[str]:
    """Answer with an empty list, and with the time of a clock that is so far ahead; give the URL. It has no topics."""

    class Answering(BaseHTTPRequestHandler):
        def date_time_string(self, timestamp: float | None = None) -> str:
            return super().date_time_string((time.time() if timestamp is None else timestamp) + ahead_seconds)

        def do_GET(self) -> None:
            self.send_response(404 if "/persistent/" in self.path else 200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"[]")

        def log_message(self, format: str, *arguments: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    thread = threading.Thread(target=server.serve_forever, name="broker's clock")
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
