"""Undo on the real servers: a deleted ledger is read again, and one that the bookie has dropped is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulsar
import pytest
from click.testing import CliRunner

from bookwarden.cli.main import cli
from bookwarden.clusters.bookkeeper.bookies.probe import Bookie
from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.pulsar.metadata.managed_ledgers import ManagedLedgers
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topics import Topics
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.pending_deletion import mark_of_holder
from bookwarden.ledgers.received import ReceivedMark
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.deletion import cluster_to_sweep, sweep_of
from bookwarden.wiring.pulsar import connection_of
from bookwarden_dev.devcluster import DevCluster
from servers.deletion_site import DeletionSite
from servers.pool import COLLECTING, Clusters
from servers.pulsar_topics import unload
from servers.waiting import eventually

pytestmark = pytest.mark.servers

RUN = "a-query/7"
MESSAGES = [f"message {number}".encode() for number in range(30)]


@dataclass
class Deleted:
    """A topic of three ledgers whose first two its managed ledger no longer lists, and the sweep has deleted."""

    site: DeletionSite
    topic: str
    ledgers: list[int]
    listed: bytes
    raw: dict[int, bytes]

    @property
    def options(self) -> list[str]:
        settings = self.site.settings
        values = {
            "pulsar.service_url": settings.pulsar.service_url,
            "pulsar.admin_url": settings.pulsar.admin_url,
            "metadata_store.urls": f"['{self.site.store_url}']",
            "sweep.journal": settings.sweep.journal,
            "deletion.topic": settings.deletion.topic,
            "deletion.retry_topic": settings.deletion.retry_topic,
            "deletion.dlq_topic": settings.deletion.dlq_topic,
            "deletion.unlisted_grace_seconds": str(settings.deletion.unlisted_grace_seconds),
        }
        return [part for name, value in values.items() for part in ("--set", f"{name}={value}")]

    def command(self, *arguments: str, exit_code: int = 0) -> Any:
        result = CliRunner().invoke(cli, [*self.options, "-o", "json", *arguments])
        assert result.exit_code == exit_code, result.output
        return json.loads(result.stdout) if result.stdout else None

    def entries(self, ledger_id: int) -> int:
        """Count the entries that `ledger read` reads off the bookie."""
        result = CliRunner().invoke(cli, [*self.options, "-o", "json", "ledger", "read", str(ledger_id)])
        assert result.exit_code == 0, result.output
        return len(result.stdout.splitlines())

    def sweep(self) -> list[str]:
        """Sweep a mark of each of the ledgers, made long ago; what became of them."""
        holder = ManagedLedgerHolder(TopicName.parse(self.topic).managed_ledger)
        marks = [
            ReceivedMark("topic", f"1:{number}:0", None, b"", {}, 1, mark=mark_of_holder(ledger_id, holder, "test"))
            for number, ledger_id in enumerate(self.ledgers)
        ]
        with cluster_to_sweep(self.site.settings) as opened:
            return [row.outcome.value for rows in sweep_of(opened).process(marks, RUN) for row in rows]

    def nodes(self) -> dict[int, bytes]:
        with Cluster(self.site.settings) as opened:
            paths = [ledger_path("/ledgers", ledger_id) for ledger_id in self.ledgers]
            found = opened.store.get_many(paths)
        return {ledger_id: node.value for ledger_id, node in zip(self.ledgers, found, strict=True) if node}


def delete_two_ledgers(cluster: DevCluster, namespace: str, folder: Path) -> Deleted:
    site = DeletionSite.of(cluster, namespace, folder)
    topic = f"persistent://{namespace}/orders"
    _fill(site, topic)
    holder = ManagedLedgerHolder(TopicName.parse(topic).managed_ledger)
    with Cluster(site.settings) as opened:
        managed_ledgers = ManagedLedgers(opened.store)
        before = managed_ledgers.read(holder.name)
        assert before is not None
        ids = [ledger.ledger_id for ledger in before.info.ledgers][:2]
        managed_ledgers.remove_ledgers(before, ids)
        deleted = Deleted(site, topic, ids, before.raw, {})
        deleted.raw = deleted.nodes()
    assert len(deleted.raw) == 2
    assert deleted.sweep() == ["deleted"] * 2
    assert deleted.nodes() == {}
    return deleted


def _fill(site: DeletionSite, topic: str) -> None:
    """Make three full ledgers and leave the topic unloaded, so that nobody else writes its node."""
    admin = PulsarAdmin(connection_of(site.settings.pulsar), timeout_s=60)
    client = connection_of(site.settings.pulsar).client()
    try:
        Topics(admin).create(topic)
        client.subscribe(topic, "keeps", initial_position=pulsar.InitialPosition.Earliest).close()
        for start in range(0, len(MESSAGES), 10):
            producer = client.create_producer(topic)
            for message in MESSAGES[start : start + 10]:
                producer.send(message)
            producer.close()
            unload(admin, topic)
    finally:
        client.close()
        admin.close()


def test_deleted_ledgers_come_back_and_are_read_again_by_us_and_by_the_topic(
    pulsar_cluster: DevCluster, namespace: str, tmp_path: Path
) -> None:
    deleted = delete_two_ledgers(pulsar_cluster, namespace, tmp_path)
    (run,) = deleted.command("undo", "--list")["runs"]
    assert (run["run"], run["ledgers"]) == (RUN, 2)
    planned = deleted.command("undo", "--run", "a-query", "--dry-run")
    assert planned["counts"] == {"would restore": 2}
    deleted.command("undo", "--run", RUN, exit_code=5)
    assert deleted.nodes() == {}
    done = deleted.command("undo", "--run", RUN, "--yes")
    assert done["counts"] == {"restored": 2}
    assert deleted.nodes() == deleted.raw
    assert [deleted.entries(ledger_id) for ledger_id in deleted.ledgers] == [10, 10]
    # The marks that deleted them come once more, as from the DLQ: the topic names neither.
    assert deleted.sweep() == ["undone", "undone"]
    assert deleted.nodes() == deleted.raw
    explained = deleted.command("ledger", "explain", str(deleted.ledgers[0]))
    assert (explained["outcome"], run["run"]) == ("undone", RUN)
    again = deleted.command("undo", "--ledger", str(deleted.ledgers[0]), "--yes")
    assert again["counts"] == {"restored": 1}
    with Cluster(deleted.site.settings) as opened:
        # What an operator would do next, the topic unloaded: list the ledgers again.
        managed_ledgers = ManagedLedgers(opened.store)
        found = managed_ledgers.read(TopicName.parse(deleted.topic).managed_ledger)
        assert found is not None
        opened.store.put(found.path, deleted.listed, found.version)
    client = connection_of(deleted.site.settings.pulsar).client()
    try:
        reader = client.create_reader(deleted.topic, pulsar.MessageId.earliest)
        assert [reader.read_next(30_000).data() for _ in MESSAGES] == MESSAGES
    finally:
        client.close()


def test_a_ledger_that_was_undone_goes_again_when_it_is_marked_by_its_id(
    pulsar_cluster: DevCluster, namespace: str, tmp_path: Path
) -> None:
    deleted = delete_two_ledgers(pulsar_cluster, namespace, tmp_path)
    deleted.site.create_topics()
    assert deleted.command("undo", "--run", RUN, "--yes")["counts"] == {"restored": 2}
    assert deleted.sweep() == ["undone", "undone"]
    marked = deleted.command("mark", "ledger", str(deleted.ledgers[0]), "--yes")
    assert [row["state"] for row in marked["ledgers"]] == ["marked"]
    assert deleted.command("ledger", "explain", str(deleted.ledgers[0]))["outcome"] == "deleted"
    assert deleted.sweep() == ["deleted", "undone"]
    assert list(deleted.nodes()) == [deleted.ledgers[1]]


@pytest.mark.slow
def test_a_ledger_that_the_bookie_has_collected_is_lost_and_leaves_nothing_behind(
    clusters: Clusters, make_namespace: Callable[[DevCluster], str], tmp_path: Path
) -> None:
    cluster = clusters.shared(COLLECTING)
    deleted = delete_two_ledgers(cluster, make_namespace(cluster), tmp_path)
    with Cluster(deleted.site.settings) as opened:
        bookie = Bookie(f"127.0.0.1:{cluster.ports.bookie}", opened.bookkeeper.bookies)
        eventually(lambda: not any(bookie.holds(deleted.ledgers).values()), 120)
    done = deleted.command("undo", "--run", RUN, "--yes", exit_code=1)
    assert done["counts"] == {"lost": 2}
    assert deleted.nodes() == {}
