"""The sweep while brokers are switched: a batch goes by one epoch of the registry, and directives change nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from bookwarden.bookie_clusters.bookie_clusters import BookieClusters
from bookwarden.cli.main import cli
from bookwarden.clusters.bookkeeper.ledger_ids import LedgerIds
from bookwarden.clusters.pulsar.messages.switch_events import SWITCH_TOPIC
from bookwarden.clusters.pulsar.rest.topic_positions import read_positions, topic_path
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.ledgers.pending_deletion import mark_of_holder
from bookwarden.ledgers.switch_event import SwitchEvent
from bookwarden.pipelines.streams.outcome_table import OutcomeTable
from bookwarden.pipelines.sweep.driver import SweepEnd, run_sweep
from bookwarden.wire.switch_event import encode_switch_event
from bookwarden.wiring.cluster import Cluster
from servers.deletion_site import DeletionSite
from servers.pool import ServerPool
from servers.population import Population
from servers.switching.shared_site import ONE_BROKER, shared_site
from servers.switching.site import SwitchingSite

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def switching(pool: ServerPool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwitchingSite]:
    with shared_site(pool, tmp_path_factory, ONE_BROKER) as running:
        running.ensure("a")
        yield running


class Site(DeletionSite):
    """Deletion topics on a switching site, whose ledgers are all on bookie cluster a."""

    def __init__(self, switching: SwitchingSite, folder: Path, spark: SparkSession) -> None:
        (topic,) = switching.new_topics(1)
        connection = switching.connection
        namespace = topic.removeprefix("persistent://").rpartition("/")[0]
        super().__init__(
            *(connection.service_url, connection.admin_url, switching.servers.store_url, namespace, folder),
            # Every failure ends it.
            {"sweep.max_failures": "1", "sweep.max_rows_per_batch": "300"},
        )
        self.switching = switching
        self.spark = spark
        self.population = Population(switching.store)
        self.paths: list[str] = []
        self.init()
        # What earlier tests switched.
        self.sweep()

    def init(self) -> None:
        with Cluster(self.settings) as opened:
            topics = opened.deletion_topics
            topics.setup().run()

    def marked(self, count: int) -> None:
        """Make and mark so many ledgers that nothing names, three of each holder."""
        # A switch compares the ids that there are with those that were given.
        given = LedgerIds(self.switching.store, self.switching.registry().id_root)
        first = given.next_id()
        given.raise_to(first + count)
        ids = range(first, first + count)
        holders = {
            ledger_id: ManagedLedgerHolder(f"{self.namespace}/persistent/gone-{ledger_id // 3}") for ledger_id in ids
        }
        self.paths += [self.population.ledger(ledger_id, holder) for ledger_id, holder in holders.items()]
        self.mark(*(mark_of_holder(ledger_id, holder, "test") for ledger_id, holder in holders.items()))

    def left(self) -> int:
        """Count the ledgers that are still there."""
        return sum(node is not None for node in self.switching.store.get_many(self.paths))

    def sweep(self) -> SweepEnd:
        end = run_sweep(self.spark, self.settings, once=True)
        assert end.drained
        return end

    def directives(self) -> list[dict[str, Any]]:
        return [row for row in self.outcomes() if row["outcome"] == "directive"]

    def send(self, *payloads: bytes) -> None:
        """Send these to the topic of switch directives."""
        with closing(self.switching.connection.client()) as client:
            producer = client.create_producer(SWITCH_TOPIC, batching_enabled=False)
            for payload in payloads:
                producer.send(payload)

    def event(self) -> SwitchEvent:
        """Return the event of the last switch."""
        registry = self.switching.registry()
        assert registry.directive is not None
        last = registry.directive
        return SwitchEvent(last.source, last.target, last.origin, last.epoch, last.time_ms, registry.owner)

    def command(self, *words: str) -> str:
        chosen = [
            word
            for name in ("topic", "retry_topic", "dlq_topic")
            for word in ("--set", f"deletion.{name}={getattr(self.settings.deletion, name)}")
        ]
        ended = CliRunner().invoke(cli, [*self.switching.options, *chosen, *words])
        assert ended.exit_code == 0, ended.output
        return ended.stdout


@pytest.fixture
def site(switching: SwitchingSite, tmp_path: Path, spark: SparkSession) -> Site:
    return Site(switching, tmp_path, spark)


def test_a_switch_and_a_rollback_in_the_middle_of_a_backlog_repeat_a_batch_each(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The driver reads the epoch, and before its tasks do the registry is changed; of the rollback no event comes."""
    before = len(site.directives())
    caplog.set_level(logging.INFO, "bookwarden")
    for _ in range(6):
        site.marked(150)
    read, epochs = BookieClusters.epoch, list[int]()

    def changed_meanwhile(clusters: BookieClusters) -> int:
        epochs.append(read(clusters))
        if len(epochs) == 1:
            assert site.switching.command("switch", "--target", "b", "--yes")["phase"] == "DONE"
        elif len(epochs) == 3:
            site.switching.change(lambda registry: registry.switched("a", "test", 0))
        return epochs[-1]

    monkeypatch.setattr(BookieClusters, "epoch", changed_meanwhile)
    counts = site.sweep().counts
    assert (site.left(), site.backlog()) == (0, 0)
    assert counts["deleted"] + counts["already gone"] == 900
    assert set(counts) <= {"deleted", "already gone"}
    assert len(set(epochs)) == 3
    assert (
        sum("is carried out again: the registry of bookie clusters has epoch" in text for text in caplog.messages) == 2
    )
    assert site.sweep().counts == {"directive": 1}
    (row,) = site.directives()[before:]
    assert row["bookie_cluster"] == "b"
    assert (
        row["reason"]
        == f"it says that 'b' is active since epoch {epochs[1]}; bookie cluster a is active since epoch {epochs[3]}"
    )
    assert site.switching.registry().active == "a"


def test_a_forged_doubled_or_garbled_directive_changes_nothing_and_stops_nothing(site: Site) -> None:
    assert site.switching.command("switch", "--target", "b", "--yes")["phase"] == "DONE"
    site.marked(1)
    site.sweep()
    before = len(site.directives())
    event = site.event()
    forged = event._replace(target="a", epoch=event.epoch + 7)
    other = event._replace(owner="00000000")
    site.send(*map(encode_switch_event, (event, forged, other)), b"garbage", b"")
    site.marked(1)
    counts = site.sweep().counts
    assert counts == {"directive": 3, "malformed": 2, "deleted": 1}
    now = f"bookie cluster b is active since epoch {event.epoch}"
    assert sorted(row["reason"] for row in site.directives()[before:]) == [
        f"{now}, by {event.origin}",
        f"it is of the Pulsar cluster '00000000', and this one is '{event.owner}'; {now}",
        f"it says that 'a' is active since epoch {event.epoch + 7}; {now}",
    ]
    assert site.switching.registry().active == "b"
    assert unread(site) == 0
    assert SWITCH_TOPIC not in site.command("inflight")
    # What is no directive is no mark either.
    assert "no switch directive: payload of 7 bytes" in site.command("dlq", "list")
    site.command("dlq", "replay", "--all", "--yes")
    assert site.backlog_of_dlq() == 2
    site.command("dlq", "drop", "--all", "--yes")
    assert site.backlog_of_dlq() == 0


def unread(site: Site) -> int:
    """Count the directives that the sweep's subscription has not passed."""
    stats = site.switching.admin.get_json(f"{topic_path(SWITCH_TOPIC)}/stats", params={"getPreciseBacklog": True})
    backlog: int = stats["subscriptions"][site.settings.deletion.subscription]["msgBacklog"]
    return backlog


def test_the_batch_of_a_directive_is_replayed_and_has_one_row(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    before, write = len(site.directives()), OutcomeTable.write
    failed: list[Sequence[str]] = []

    def once_failing(table: OutcomeTable, rows: Any, query: str, batch: int) -> None:
        write(table, rows, query, batch)
        if not failed:
            failed.append(rows.column("outcome").to_pylist())
            raise OSError("the disk is full")

    site.overrides = {"sweep.max_failures": "3", "sweep.backoff_seconds": "0.1"}
    assert site.switching.command("switch", "--target", "b", "--yes")["phase"] == "DONE"
    monkeypatch.setattr(OutcomeTable, "write", once_failing)
    site.sweep()
    # It is alone in its batch.
    assert failed == [["directive"]]
    assert len(site.directives()) == before + 1


def test_the_topic_of_directives_may_be_deleted_and_made_again(site: Site) -> None:
    last = read_positions(site.switching.admin, SWITCH_TOPIC).latest
    site.switching.admin.delete(topic_path(SWITCH_TOPIC), params={"force": True})
    site.marked(1)
    assert site.sweep().counts == {"deleted": 1}
    site.init()
    assert read_positions(site.switching.admin, SWITCH_TOPIC).latest.ledger_id > last.ledger_id
    assert site.switching.command("switch", "--target", "b", "--yes")["phase"] == "DONE"
    site.marked(1)
    assert site.sweep().counts == {"deleted": 1, "directive": 1}
