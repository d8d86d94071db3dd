"""`bookwarden follow` beside a test's deletion topics, as a process of its own or within this one; what it told."""

from __future__ import annotations

import logging
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from pyspark.sql import SparkSession

from bookwarden.cli.main import cli
from bookwarden.clusters.pulsar.references.node_snapshots import snapshot_of
from bookwarden.clusters.pulsar.references.pieces import LOGS, ReferencePieces
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.follow.table import FollowedNodes
from bookwarden.pipelines.follow import driver
from bookwarden.pipelines.follow.query import outcomes_location
from bookwarden.pipelines.follow.state import KeptState
from bookwarden.pipelines.metadata_source.columns import now_of
from bookwarden.pipelines.streams.outcome_table import read_outcomes
from bookwarden.wiring.cluster import Cluster
from bookwarden_dev.devcluster import DevCluster, ServerProcess, ServerSpec
from servers.deletion_site import DeletionSite
from servers.in_this_process import driving
from servers.waiting import eventually

GRACE_S = 15.0
# A busy machine starts Spark in a minute, and a batch may wait for its turn.
LATE_S = 240.0
_LOOKED = re.compile(r"looked at: (.*)$", re.MULTILINE)


def site_of(cluster: DevCluster, tenant: str, folder: Path) -> DeletionSite:
    """Make deletion topics in the namespace "n" of a tenant of its own, and a namespace "life" beside it."""
    with closing(PulsarAdmin(cluster.connection(), timeout_s=60)) as admin:
        admin.put(f"/tenants/{tenant}", {"allowedClusters": ["dev"]})
        for namespace in ("n", "life"):
            admin.put(f"/namespaces/{tenant}/{namespace}")
    made = DeletionSite.of(cluster, f"{tenant}/n", folder)
    made.create_topics()
    return made


class FollowingSite:
    """Follows what brokers drop, and reads what became of it."""

    def __init__(self, site: DeletionSite, *, grace_s: float = GRACE_S) -> None:
        folder = site.folder
        site.overrides = {
            **site.overrides,
            "follow.checkpoint": str(folder / "follow"),
            "follow.outcomes": str(folder / "follow-outcomes"),
            "follow.lock": f"/bookwarden/follow-{folder.name}",
            "follow.grace_seconds": str(grace_s),
        }
        self.site = site
        self._file = folder / "follow.yaml"
        folder.mkdir(parents=True, exist_ok=True)
        self._file.write_text(yaml.safe_dump(site.settings.model_dump(mode="json")))
        self.log = folder / "follow.log"
        self._line = [sys.executable, "-m", "bookwarden.cli", "--config", str(self._file), "follow"]
        spec = ServerSpec("follow", lambda: self._line, self.log, lambda _: True, folder, stop_seconds=90)
        self.process = ServerProcess(spec)

    def start(self) -> None:
        """Start it, and wait until it follows all nodes."""
        before = self.told("following ")
        self.process.start()
        eventually(lambda: self.told("following ") > before, LATE_S, pause=0.2)

    @contextmanager
    def running(self, spark: SparkSession) -> Iterator[None]:
        """Follow all nodes for the block, within this process; it is stopped in order."""
        before, logger = self.told("following "), logging.getLogger("bookwarden")
        handler, level = logging.FileHandler(self.log), logger.level
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        try:
            with driving(driver, lambda: driver.run_follow(spark, self.site.settings)) as running:
                eventually(lambda: self.told("following ") > before or not running.is_running(), LATE_S, pause=0.2)
                yield
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)
            handler.close()

    def run_once(self, *options: str) -> str:
        """Run the command until it ends, without Spark; return what it said in the end."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(driver, "follow_session", lambda _settings: pytest.fail("it starts a Spark"))
            ended = CliRunner().invoke(cli, ["--config", str(self._file), "follow", "--once", *options])
        assert ended.exit_code == 0, ended.output
        return ended.stdout

    def told(self, part: str) -> int:
        """Count the lines of its log that have this part."""
        return sum(part in line for line in self.log.read_text().splitlines()) if self.log.exists() else 0

    def looked_at(self) -> Counter[str]:
        """Count by outcome what was looked at since its log began."""
        counts = Counter[str]()
        for found in _LOOKED.finditer(self.log.read_text()):
            for part in found[1].split(", "):
                number, _, outcome = part.partition(" ")
                counts[outcome] += int(number)
        return counts

    def state(self) -> FollowedNodes:
        """Read its state."""
        # A file that is being replaced by one with everything may go in the midst of this.
        found = eventually(self._load)
        assert found is not None
        return found

    def _load(self) -> FollowedNodes | None:
        nodes, settings = FollowedNodes(0), self.site.settings
        try:
            kept = KeptState(settings.follow.checkpoint)
            begun = kept.load(nodes, {url: url for url in settings.metadata_store.urls})
        except FileNotFoundError:
            return None
        # One without any node is as true, but nothing that a test waits for.
        return nodes if begun and len(nodes) else None

    def is_settled(self) -> bool:
        """Return whether nothing is left that was dropped and not looked at."""
        return not self.state().timers

    def has_caught_up(self) -> bool:
        """Return whether it knows what all nodes name now."""
        settings = self.site.settings
        known = {path: naming for _, path, naming in self.state().items()}
        (url,) = settings.metadata_store.urls
        with Cluster(settings) as opened:
            pieces = ReferencePieces(opened.stores)
            for piece in pieces.pieces():
                if piece.kind == LOGS:
                    continue
                for nodes, _ in pieces.values(piece):
                    for node, value in nodes:
                        said = now_of(snapshot_of(node, value, url), url)
                        if not said.problem and known.get(said.path) != said.naming:
                            return False
        return True

    def outcomes(self) -> list[dict[str, Any]]:
        """Read the rows of all that was not simply gone, oldest first."""
        return read_outcomes(outcomes_location(self.site.settings))

    def marked(self, kind: str = "") -> list[int]:
        """List the ledgers marked, each as often as it was, or only those of a LedgerType."""
        rows = [row for row in self.outcomes() if row["outcome"] == "marked"]
        return sorted(row["ledger_id"] for row in rows if kind in ("", row["ledger_type"]))

    def with_outcome(self, outcome: str) -> set[int]:
        """List the ledgers with this outcome."""
        return {row["ledger_id"] for row in self.outcomes() if row["outcome"] == outcome}
