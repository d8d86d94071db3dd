"""One of both clusters of a migration, by the adapters that read and change it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bookwarden.clusters.bookkeeper.bookies.last_entries import LastEntries
from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.messages.topic_policies import read_topic_policies
from bookwarden.clusters.pulsar.metadata.migrations import MigrationNodes
from bookwarden.clusters.pulsar.metadata.topic_policies import stored_policies
from bookwarden.clusters.pulsar.protocol import look_up
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.cluster_contents import ClusterContents, ClusterWriter
from bookwarden.clusters.pulsar.rest.cluster_migration import ClusterMigrationAdmin
from bookwarden.clusters.pulsar.rest.registered_brokers import (
    RegisteredBroker,
    read_broker_addresses,
    read_deadlocked_brokers,
    read_loaded_topics,
    read_registered_brokers,
    read_web_brokers,
)
from bookwarden.disk_space import DiskSpace
from bookwarden.ledgers.metadata import LedgerReading
from bookwarden.metastore.interface import MetadataStore


class ClusterSide:
    """Blue or green, over connections that the caller closes; the store connects at its first call.

    ``named`` is the cluster's name by the settings, "" for the one that its brokers have. ``read_ledgers`` reads
    ledgers of its catalog, and ``disk_space`` asks the bookies that take its new ledgers, by id.
    """

    def __init__(
        self,
        connection: PulsarConnection,
        rest: PulsarAdmin,
        store: MetadataStore,
        entries: LastEntries,
        read_ledgers: Callable[[Sequence[int]], Sequence[LedgerReading]],
        disk_space: Callable[[], Mapping[str, DiskSpace]],
        named: str = "",
    ) -> None:
        self._connection = connection
        self._rest = rest
        self.store = store
        self.admin = ClusterMigrationAdmin(rest, named)
        self.contents = ClusterContents(rest)
        self.writer = ClusterWriter(rest)
        self.nodes = MigrationNodes(store, entries.last_entry, entries.first_entry)
        self.read_ledgers = read_ledgers
        self.disk_space = disk_space

    @property
    def cluster(self) -> str:
        """The cluster's name, by the settings or its broker."""
        return self.admin.cluster

    def brokers(self) -> list[RegisteredBroker]:
        """Ask each registered broker for its version and settings."""
        return read_registered_brokers(self.store, self._connection)

    def addresses(self) -> dict[str, tuple[str, ...]]:
        """Return by broker the addresses that it has registered for clients."""
        return read_broker_addresses(self.store)

    def loaded_topics(self) -> frozenset[str]:
        """Ask every registered broker for the topics that it has loaded; loads none. Errors: `read_loaded_topics`."""
        return read_loaded_topics(self.store, self._connection)

    def deadlocked_brokers(self) -> tuple[str, ...]:
        """Ask every registered broker for its health; return those with deadlocked threads. Raises StoreError."""
        return read_deadlocked_brokers(self.store, self._connection)

    def topic_policies(self, namespace: str) -> Mapping[str, Mapping[str, Any]]:
        """Read the policies of the topics of a namespace that have some, by topic, from its system topic."""
        return read_topic_policies(self._connection, self._rest, namespace)

    def stored_policies(self, namespace: str) -> Mapping[str, Mapping[str, Any]]:
        """Read them from the metadata store, where brokers may keep them for namespaces without that topic."""
        return stored_policies(self.store, namespace)

    def look_up(self, url: str, topic: str) -> tuple[str, str]:
        """Look a topic up through this address, of one host; return its owner's address and the server's version."""
        return look_up(self._connection, url, topic)

    def web_brokers(self, url: str) -> frozenset[str]:
        """List the ids of the brokers of the cluster that a web address leads to."""
        return read_web_brokers(self._connection, url)
