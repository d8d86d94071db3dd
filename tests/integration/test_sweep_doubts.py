"""A doubt about very many marks, on real servers: the batch waits, goes on after the cure, and ends when asked to."""

from __future__ import annotations

import logging
import os
import signal
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from bookwarden.cli.main import cli
from bookwarden.errors import SharedDoubtError
from bookwarden.ledgers.kinds import CursorHolder, ManagedLedgerHolder
from bookwarden.ledgers.pending_deletion import mark_of_holder
from bookwarden.metastore.interface import MetadataStore
from bookwarden.pipelines.sweep import driver
from bookwarden.pipelines.sweep.driver import run_sweep
from bookwarden.wiring.cluster import Cluster
from bookwarden_dev.devcluster.ports import LOOPBACK, free_ports
from servers.deletion_site import DeletionSite
from servers.population import Population
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.timeout(400)]

MARKS, LIMIT = 12, 5
# Promised, not measured: the sweep goes on within a minute of the cure.
SOON = 60.0


class Doubtful:
    """A topic's node that cannot be read, and marks of another topic and of a cursor."""

    def __init__(self, site: DeletionSite, store: MetadataStore) -> None:
        self.site = site
        self.store = store
        self.broken = ManagedLedgerHolder(f"{site.namespace}/persistent/broken")
        self.path = f"/managed-ledgers/{self.broken.name}"
        self.population = Population(store)
        self._next = 6_000_000_000 + int.from_bytes(os.urandom(3), "big") * 100
        (port,) = free_ports(1)
        site.overrides = {
            "sweep.max_waiting_marks": str(LIMIT),
            "sweep.stop_timeout_seconds": "120",
            "metrics.port": str(port),
        }
        store.create(self.path, b"\x47\x78broken", make_parents=True)

    def marked(self) -> tuple[list[str], list[str]]:
        """Make and mark ledgers that nothing names: of a topic, and of a cursor; return their paths."""
        data = ManagedLedgerHolder(f"{self.site.namespace}/persistent/orders")
        cursor = CursorHolder(data.name, "billing")
        first, self._next = self._next, self._next + MARKS + 2
        holders = dict.fromkeys(range(first, first + MARKS), data) | {
            first + MARKS: cursor,
            first + MARKS + 1: cursor,
        }
        paths = [self.population.ledger(ledger_id, holder) for ledger_id, holder in holders.items()]
        self.site.mark(*(mark_of_holder(ledger_id, holder, "test") for ledger_id, holder in holders.items()))
        return paths[:MARKS], paths[MARKS:]

    def left(self, paths: list[str]) -> int:
        return sum(node is not None for node in self.store.get_many(paths))

    def mend(self) -> None:
        self.population.names(self.broken, [1])

    def waited(self) -> float:
        """Return the metric: for how many seconds the batch has waited; 0 before the endpoint is there."""
        try:
            with urllib.request.urlopen(f"http://{LOOPBACK}:{self.site.settings.metrics.port}/metrics") as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return 0.0
        series = 'bookwarden_sweep_waiting_seconds{cause="unreadable node"} '
        (value,) = [line.removeprefix(series) for line in lines if line.startswith(series)]
        return float(value)

    def on_retry_topic(self) -> int:
        with Cluster(self.site.settings) as opened:
            topics = opened.deletion_topics
            return sum(behind.entries for topic, behind in topics.entries().items() if "-RETRY-" in topic)

    def command(self, *arguments: str) -> str:
        settings = [
            f"--set={name}={value}"
            for name, value in {
                "metadata_store.urls": f"['{self.site.store_url}']",
                "pulsar.service_url": self.site.service_url,
                "pulsar.admin_url": self.site.admin_url,
            }.items()
        ]
        result = CliRunner().invoke(cli, [*settings, *arguments])
        assert result.exit_code == 0, result.output
        return result.output


@pytest.fixture(autouse=True)
def _looked_at_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the driver look at a batch every second, and soon: every 15 s, and after 20 s."""
    monkeypatch.setattr(driver, "_WATCH_SECONDS", 1.0)
    monkeypatch.setattr(driver, "_BATCH_ASKED_AFTER_S", 2.0)


@pytest.fixture
def doubtful(site: DeletionSite, store: MetadataStore) -> Iterator[Doubtful]:
    made = Doubtful(site, store)
    yield made
    # Others sweep on this cluster after us.
    for path in (made.path, *_records(store)):
        node = store.get(path)
        if node is not None:
            store.delete_many([(path, node.version)])


def _records(store: MetadataStore) -> list[str]:
    return [f"/bookwarden/no-shadow/{name}" for name in store.children_of("/bookwarden/no-shadow")]


def sweep_while(spark: SparkSession, site: DeletionSite, operate: Callable[[], None]) -> None:
    """Sweep in this thread, where signals arrive, while an operator does something; then SIGTERM ends it."""

    def operate_and_stop() -> None:
        try:
            operate()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    with ThreadPoolExecutor(1) as pool:
        operator = pool.submit(operate_and_stop)
        run_sweep(spark, site.settings)
        operator.result()


@pytest.mark.parametrize("taken", [False, True], ids=["mended", "taken as no shadow"])
def test_the_batch_waits_with_all_else_carried_out_and_goes_on_within_a_minute(
    doubtful: Doubtful, spark: SparkSession, taken: bool, caplog: pytest.LogCaptureFixture
) -> None:
    data, cursors = doubtful.marked()

    def operate() -> None:
        eventually(lambda: doubtful.left(cursors) == 0, 60)
        eventually(lambda: doubtful.waited() > 0, 120)
        assert doubtful.left(data) == MARKS
        # The five that went there are due long since, and go round no more.
        assert doubtful.on_retry_topic() == LIMIT
        if taken:
            assert doubtful.path in doubtful.command("no-shadow", "list")
            doubtful.command("no-shadow", "add", doubtful.path, "--why", "a test's", "--yes")
        else:
            doubtful.mend()
        eventually(lambda: doubtful.left(data) == 0, SOON)
        eventually(lambda: doubtful.waited() == 0, 60)
        if taken:
            assert "a test's" in doubtful.command("no-shadow", "list")

    with caplog.at_level(logging.INFO):
        sweep_while(spark, doubtful.site, operate)
    warnings = [record.getMessage() for record in caplog.records if record.name.endswith("sweep.driver")]
    assert doubtful.path in warnings[0]
    assert len([text for text in warnings if "the batch waits" in text]) == 1
    assert doubtful.site.counts() == {"deleted": MARKS + 2, "waiting": LIMIT}
    assert doubtful.site.backlog() == 0


def test_a_sweep_that_is_stopped_while_it_waits_leaves_its_batch_to_the_next(
    doubtful: Doubtful, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    data, cursors = doubtful.marked()
    with caplog.at_level(logging.INFO):
        sweep_while(spark, doubtful.site, lambda: void(eventually(lambda: doubtful.waited() > 0, 120)))
    # It ended by itself, before the stop timeout ran out.
    assert "the running batch waits, and is not waited for" in caplog.text
    assert "did not end in" not in caplog.text
    assert (doubtful.left(data), doubtful.left(cursors)) == (MARKS, 0)
    with pytest.raises(SharedDoubtError, match="bookwarden no-shadow") as caught:
        run_sweep(spark, doubtful.site.settings, once=True)
    assert doubtful.path in str(caught.value)
    assert caught.value.exit_code == 16
    assert doubtful.left(data) == MARKS
    assert doubtful.on_retry_topic() == LIMIT
    doubtful.mend()

    def is_done() -> bool:
        run_sweep(spark, doubtful.site.settings, once=True)
        return doubtful.left(data) == 0 and doubtful.site.backlog() == 0

    eventually(is_done, 120)


def void(_: object) -> None:
    """Return nothing of what an operator waited for."""
