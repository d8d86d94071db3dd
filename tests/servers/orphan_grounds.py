"""The cluster on which orphans are made: its topics and its metadata."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pulsar

from bookwarden.clusters.bookkeeper.bookies.probe import Bookie
from bookwarden.clusters.pulsar.metadata.managed_ledgers import ManagedLedgers, VersionedCursor
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.ledgers.custom_metadata import identify_holder
from bookwarden.ledgers.kinds import BucketHolder, CursorHolder, Holder
from bookwarden.ledgers.metadata import StoredLedger
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.references import ReferenceIndex
from bookwarden.wiring.cluster import Cluster
from bookwarden_dev.demo.census import list_ledger_ids
from bookwarden_dev.devcluster import DevCluster
from servers.index_answers import is_referenced
from servers.topic_contents import acknowledge_each, read_back


@dataclass
class Grounds:
    """Where the makers work: a cluster with small ledgers, its metadata, and how to get a fresh namespace."""

    cluster: DevCluster
    opened: Cluster
    make_namespace: Callable[[], str]
    padding: bytes = bytes(range(256)) * 80

    @cached_property
    def admin(self) -> PulsarAdmin:
        return PulsarAdmin(self.cluster.connection(), timeout_s=60)

    def fresh_namespace(self) -> str:
        """Make a namespace in which the broker trims nothing by itself, and notes each acknowledgement."""
        namespace = self.make_namespace()
        self.keep_all(namespace)
        acknowledge_each(self.admin, namespace)
        return namespace

    def keep_all(self, namespace: str) -> None:
        self._retain(namespace, -1)

    def keep_nothing(self, namespace: str) -> None:
        self._retain(namespace, 0)

    def message(self, number: int) -> bytes:
        """Give the message of this number."""
        return b"%d " % number + self.padding

    def send(self, topic: str, count: int, *, first: int = 0, **options: Any) -> None:
        """Send numbered messages, each an entry of its own, with their number as key; wait until they are stored."""
        failed: list[pulsar.Result] = []

        def sent(result: pulsar.Result, _id: object) -> None:
            if result != pulsar.Result.Ok:
                failed.append(result)

        with closing(self.client()) as client:
            producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
            for number in range(first, first + count):
                producer.send_async(self.message(number), sent, partition_key=str(number), **options)
            producer.flush()
        assert not failed, failed

    def read_back(self, topic: str) -> list[bytes]:
        with closing(self.client()) as client:
            return read_back(client, topic)

    def client(self) -> pulsar.Client:
        return self.cluster.connection().client()

    def ledgers_of(self, topic: str) -> list[int]:
        """List the ledgers that the topic's node names."""
        read = ManagedLedgers(self.opened.store).read(TopicName.parse(topic).managed_ledger)
        return [ledger.ledger_id for ledger in read.info.ledgers] if read else []

    def cursor_ledger(self, cursor: CursorHolder) -> int | None:
        """Return the ledger that the cursor's node names."""
        found = self._cursor(cursor.managed_ledger, cursor.cursor)
        return found.info.cursors_ledger_id if found else None

    def buckets(self, holder: BucketHolder) -> frozenset[int]:
        """List the buckets that the cursor's node names."""
        found = self._cursor(holder.managed_ledger, holder.cursor)
        return found.info.delayed_bucket_ids if found else frozenset()

    def stored(self) -> list[tuple[StoredLedger, Holder | None]]:
        """Read all ledgers that have metadata, each with the holder that it names itself."""
        self.opened.store.sync()
        readings = self.opened.bookkeeper.catalog.read_many(list_ledger_ids(self.opened.store))
        return [
            (found, identify_holder(found.metadata.custom)) for found in readings if isinstance(found, StoredLedger)
        ]

    def stored_of(self, holder: Holder) -> list[StoredLedger]:
        return [ledger for ledger, found in self.stored() if found == holder]

    def unnamed(self) -> dict[int, Holder | None]:
        """Find all ledgers that nothing names, each with its holder."""
        stored = self.stored()
        index = ReferenceIndex()
        self.opened.references.pieces.read_into(index)
        assert not index.doubts, index.doubts
        return {
            ledger.ledger_id: holder
            for ledger, holder in stored
            if is_referenced(index, ledger.ledger_id, holder) is False
        }

    def on_bookie(self, ledger_ids: Collection[int]) -> set[int]:
        """Say which of the ledgers the bookie has the first entry of."""
        bookie = Bookie(f"127.0.0.1:{self.cluster.ports.bookie}", self.opened.bookkeeper.bookies)
        return {number for number, held in bookie.holds(list(ledger_ids)).items() if held}

    def close(self) -> None:
        self.admin.close()

    def _cursor(self, managed_ledger: str, cursor: str) -> VersionedCursor | None:
        return ManagedLedgers(self.opened.store).cursors(managed_ledger).get(cursor)

    def _retain(self, namespace: str, limit: int) -> None:
        policy = {"retentionTimeInMinutes": limit, "retentionSizeInMB": limit}
        self.admin.post(f"/namespaces/{namespace}/retention", policy)
