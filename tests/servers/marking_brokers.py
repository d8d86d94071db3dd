"""Brokers that mark by the jar, on real servers: their options, their outbox, and what they sent."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Any, Final

import pulsar
from click.testing import CliRunner

from bookwarden.cli.main import cli
from bookwarden.clusters.bookkeeper.ledger_paths import ledger_id_of
from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.ledgers.kinds.managed_ledger import MANAGED_LEDGER
from bookwarden.ledgers.metadata import DeleteResult
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.ledgers.pending_deletion import PendingDeletion
from bookwarden.metastore.interface import MetadataStore
from bookwarden.wire.avro import PendingDeletionCodec
from bookwarden.wire.broker_marks import OUTBOX_ROOT, decode_outbox_node
from bookwarden.wiring.cluster import Cluster
from bookwarden_dev.devcluster import ClusterOptions
from servers.deletion_site import DeletionSite
from servers.metadata_tree import nodes_below
from servers.pool import ENTRIES_PER_LEDGER
from servers.sweeping_site import SweepingSite
from servers.switching.broker_jar import broker_jar
from servers.topic_contents import acknowledge_each, listed, managed_ledger_of, send
from servers.waiting import eventually

MARKS: Final = "bookwarden.broker.marks.MarkingManagedLedgerStorage"


#: Of a broker that marks; its trims are seconds apart.
MARKING_SETTINGS: Final = {
    "managedLedgerStorageClassName": MARKS,
    "defaultRetentionTimeInMinutes": "0",
    "retentionCheckIntervalInSeconds": "1",
    "managedLedgerCursorMaxEntriesPerLedger": "10",
}
#: Delayed messages are kept in buckets, of few each.
BUCKETS: Final = {
    "delayedDeliveryTrackerFactoryClassName": "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory",
    "delayedDeliveryMinIndexCountPerBucket": "5",
    "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": "2",
}
#: Messages of a round, which fill two ledgers.
ROUND: Final = 2 * ENTRIES_PER_LEDGER
_SKIPPED: Final = 12


def marking(options: ClusterOptions | None = None, **lines: str) -> ClusterOptions:
    """Return the options of a cluster whose broker marks, with lines of broker.conf."""
    return dataclasses.replace(
        options or ClusterOptions(),
        max_entries_per_ledger=ENTRIES_PER_LEDGER,
        broker_jar=str(broker_jar()),
        broker_settings={**MARKING_SETTINGS, **lines},
    )


def two_phase(options: ClusterOptions | None = None) -> ClusterOptions:
    """Return the options of a cluster in mode two-phase that several files share (servers.pool)."""
    return marking(options, bookwardenMarks="two-phase", forceDeleteNamespaceAllowed="true", **BUCKETS)


def outbox(store: MetadataStore) -> dict[int, int]:
    """Return when each data ledger that is in the outbox came there, by the store's clock."""
    found = {}
    for folder in store.list_children(OUTBOX_ROOT):
        for block in store.list_children(f"{OUTBOX_ROOT}/{folder}"):
            for name in store.list_children(f"{OUTBOX_ROOT}/{folder}/{block}"):
                node = store.get(f"{OUTBOX_ROOT}/{folder}/{block}/{name}")
                for mark in decode_outbox_node(node.value, "") if node else ():
                    found[mark.ledger_id] = node.created_ms
    return found


def nodes_in_outbox(store: MetadataStore) -> int:
    """Return how many there are, of all brokers."""
    folders = [f"{OUTBOX_ROOT}/{folder}" for folder in store.children_of(OUTBOX_ROOT)]
    blocks = [f"{folder}/{block}" for folder in folders for block in store.children_of(folder)]
    return sum(len(store.children_of(block)) for block in blocks)


def consume(client: pulsar.Client, topic: str, count: int) -> None:
    consumer = client.subscribe(topic, "sub", initial_position=pulsar.InitialPosition.Earliest)
    for _ in range(count):
        consumer.acknowledge(consumer.receive(timeout_millis=30_000))
    consumer.close()


def release(store: MetadataStore, paths: Iterable[str]) -> None:
    """Delete the nodes below ledgers that kept the broker from deleting these."""
    for path in paths:
        node = store.get(path)
        assert node is not None
        assert store.delete_many([(path, node.version)]) == [DeleteResult.DELETED]


def run(site: DeletionSite, *arguments: str, codes: Sequence[int] = (0,)) -> Any:
    """Run a command of `broker-marks`; return what it writes for programs."""
    settings = {
        "metadata_store.urls": f"['{site.store_url}']",
        "pulsar.service_url": site.service_url,
        "pulsar.admin_url": site.admin_url,
        "deletion.topic": site.settings.deletion.topic,
    }
    options = [option for name, value in settings.items() for option in ("--set", f"{name}={value}")]
    result = CliRunner().invoke(cli, ["-o", "json", *options, "broker-marks", *arguments])
    assert result.exit_code in codes, result.output
    return json.loads(result.stdout or result.stderr)


def received(connection: PulsarConnection, site: DeletionSite, expected: set[int]) -> list[PendingDeletion]:
    """Wait until the marks of these ledgers are on the deletion topic; return all that are there."""
    deletion, codec, marks = site.settings.deletion, PendingDeletionCodec(), []
    with closing(connection.client()) as client:
        consumer = client.subscribe(deletion.topic, deletion.subscription, consumer_type=pulsar.ConsumerType.Shared)
        until = time.monotonic() + 120
        while not expected <= {mark.ledger_id for mark in marks} and time.monotonic() < until:
            try:
                message = consumer.receive(timeout_millis=1000)
            except pulsar.Timeout:
                continue
            marks.append(codec.decode(message.data()))
            assert message.partition_key() == str(marks[-1].holder())
            consumer.acknowledge(message)
    missing = expected - {mark.ledger_id for mark in marks}
    assert not missing, f"no mark of {sorted(missing)} of {sorted(expected)}"
    return marks


def ledgers_of(site: SweepingSite, topic: str, *, root: str = "/ledgers") -> dict[int, bool]:
    """Return all ledgers that say that they are of this managed ledger, and whether of one of its cursors."""
    ids = [number for path in nodes_below(site.opened.store, root) if (number := ledger_id_of(root, path)) is not None]
    found = site.new_ledgers(ids)
    return {
        ledger.ledger_id: "pulsar/cursor" in ledger.metadata.custom
        for ledger in found
        if ledger.metadata.custom.get(MANAGED_LEDGER, b"").decode() == topic
    }


class MarkingGround:
    """A deletion topic of a test's own, which the brokers know, and all ledgers of its topics that ever were.

    ``roots`` are where ledgers can be, in the metadata store of the brokers. ``new``: the topics are to be made.
    """

    def __init__(
        self,
        connection: PulsarConnection,
        site: DeletionSite,
        roots: Sequence[str] = ("/ledgers",),
        *,
        new: bool = True,
    ) -> None:
        self.connection = connection
        self.site = site
        self._roots = roots
        self.admin = PulsarAdmin(connection, timeout_s=60)
        if new:
            site.create_topics()
            acknowledge_each(self.admin, site.namespace)
        with Cluster(site.settings) as opened:
            topics = opened.deletion_topics
            topics.publish()
        self.swept = SweepingSite(site.settings)
        #: By id: whether it was a cursor's.
        self.ever: dict[int, bool] = {}

    def close(self) -> None:
        self.swept.close()
        self.admin.close()

    def topic(self, name: str) -> str:
        return f"persistent://{self.site.namespace}/{name}"

    def look(self, topic: str) -> None:
        """Note which ledgers there are of a topic."""
        for root in self._roots:
            self.ever |= ledgers_of(self.swept, managed_ledger_of(topic), root=root)

    def trim(self, client: pulsar.Client, topic: str) -> set[int]:
        """Send, receive, and wait until the first ledgers are gone from the list; return these."""
        before = set(listed(self.swept, topic))
        send(client, topic, ROUND)
        before |= set(listed(self.swept, topic))
        self.look(topic)
        # Each is an entry of the cursor's ledger, which is full with ten.
        for _ in range(_SKIPPED):
            self.admin.post(f"{topic_path(topic)}/subscription/sub/skip/1")
        self.look(topic)
        consume(client, topic, ROUND - _SKIPPED)
        self.look(topic)
        return eventually(lambda: before - set(listed(self.swept, topic)), 60)

    def gone(self) -> list[int]:
        """Return those of all ledgers that are not there any more."""
        return [ledger_id for ledger_id in self.ever if not self.swept.exists(ledger_id)]

    def sweep_all(self, ledgers: set[int]) -> None:
        """Wait for the marks of these ledgers, sweep them, and see that they are gone."""
        marks = {mark.ledger_id: mark for mark in received(self.connection, self.site, ledgers)}
        rows = self.swept.sweep(*(marks[ledger_id] for ledger_id in sorted(ledgers)))
        others = {row.ledger_id: (row.outcome, row.reason) for row in rows if row.outcome is not Outcome.DELETED}
        assert not others, others
        assert not any(self.swept.exists(ledger_id) for ledger_id in ledgers)
