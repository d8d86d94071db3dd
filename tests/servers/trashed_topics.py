"""Topics of a test that are deleted, and kept in the trash by their broker."""

from __future__ import annotations

from bookwarden.clusters.pulsar.metadata.paths import managed_ledger_path
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.trash import KeepRule
from bookwarden.trash.keeper import TrashKeeper
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.deletion import marker_of
from bookwarden_dev.demo.trash_story import keeps_dropped
from servers.marking_brokers import nodes_in_outbox
from servers.waiting import eventually


def keep_dropped(opened: Cluster, namespace: str) -> TrashKeeper:
    """Have brokers keep for an hour what they drop of a namespace; return what the sweep would run, once they do."""
    topic = opened.settings.deletion.topic
    keeper = TrashKeeper(opened.store, marker_of(opened), topic, (KeepRule(namespace, 3600),), 10**9, "a test")
    assert keeper.run().lease_until_ms > 0
    eventually(keeps_dropped(opened, f"persistent://{namespace}/probe"), 30)
    return keeper


def delete(opened: Cluster, topic: str, partitions: int = 0) -> None:
    """Have the broker delete a topic, with its partitions if it has any, and wait until the trash has it."""
    opened.admin.delete(f"{topic_path(topic)}{'/partitions' if partitions else ''}?force=true")
    for name in [f"{topic}-partition-{number}" for number in range(partitions)] or [topic]:
        path = managed_ledger_path(TopicName.parse(name).managed_ledger)
        eventually(lambda path=path: opened.store.get(path) is None, 30)
    eventually(lambda: nodes_in_outbox(opened.store) == 0, 30)
