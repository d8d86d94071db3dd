"""A cluster as the settings name it: brokers, metadata stores, BookKeeper, stores of offloaded copies."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from bookwarden.bookie_clusters.registry_node import ClusterRegistry
from bookwarden.clusters.bookkeeper.bookie_cluster import ClusterStores
from bookwarden.config import Settings
from bookwarden.metastore.following.store import Migrations
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.wrappers import throttled
from bookwarden.resources import Resources
from bookwarden.wiring.stores import open_metadata_store

if TYPE_CHECKING:
    # Imported where they are first used: a command that reads one node needs none of them.
    from bookwarden.clusters.offload.stores import OffloadStores
    from bookwarden.clusters.pulsar.connection import PulsarConnection
    from bookwarden.clusters.pulsar.messages.mark_sender import PendingDeletionSender
    from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
    from bookwarden.clusters.pulsar.rest.topics import Topics
    from bookwarden.wiring.bookkeeper import BookKeeper
    from bookwarden.wiring.deletion_topics import TwoPhaseTopics
    from bookwarden.wiring.references import References

_REQUEST_S = 10.0
_UNLOAD_S = 60.0


class Cluster(Resources):
    """Each part is made at its first use, once, and closed with the cluster; close it, or use it in a with statement.

    Nothing is connected before the first call of a part. A cluster is for one process, and its parts are first asked
    for by one thread. ``max_reads_per_second`` is for each metadata store; None sets no limit. ``one_of_many`` and
    ``deletes`` are as for `open_metadata_store`. ``request_timeout_s`` is that of requests to brokers.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        max_reads_per_second: float | None = None,
        one_of_many: bool = False,
        deletes: bool = False,
        request_timeout_s: float = _REQUEST_S,
    ) -> None:
        super().__init__()
        self.settings = settings
        #: The state of the metadata stores that Pulsar may move.
        self.migrations = Migrations()
        self._max_reads_per_second = max_reads_per_second
        self._one_of_many = one_of_many
        self._deletes = deletes
        self._request_timeout_s = request_timeout_s

    @cached_property
    def opened(self) -> ClusterStores:
        """Opens metadata stores by their URLs, each once, however its hosts are ordered."""
        return self.keep(ClusterStores(self._open))

    def _open(self, url: str) -> MetadataStore:
        settings = self.settings.metadata_store
        store = open_metadata_store(settings, url, one_of_many=self._one_of_many, deletes=self._deletes)
        self.migrations.follow(url, store)
        return throttled(store, self._max_reads_per_second)

    @cached_property
    def stores(self) -> dict[str, MetadataStore]:
        """The metadata roots by their URLs, in the order of the settings."""
        return {url: self.opened.at(url) for url in dict.fromkeys(self.settings.metadata_store.urls)}

    @property
    def url(self) -> str:
        """The URL of the first metadata root: that of Pulsar's cluster, and of the registry of bookie clusters."""
        return self.settings.metadata_store.urls[0]

    @property
    def store(self) -> MetadataStore:
        """The first metadata root. Others are of Pulsar clusters that share the BookKeeper."""
        return self.opened.at(self.url)

    @cached_property
    def registry(self) -> ClusterRegistry:
        """The registry of bookie clusters, with the stores of their metadata."""
        return ClusterRegistry(self.opened, self.url)

    @cached_property
    def bookkeeper(self) -> BookKeeper:
        """The ledgers, their bookies and ids."""
        from bookwarden.wiring.bookkeeper import BookKeeper

        return self.keep(BookKeeper(self.settings, self.opened, self.migrations))

    @cached_property
    def references(self) -> References:
        """What reads which ledgers Pulsar's metadata names."""
        from bookwarden.wiring.references import References

        return References(self.settings, self.stores, self.bookkeeper, self.admin, lambda: self.offload_stores)

    @cached_property
    def connection(self) -> PulsarConnection:
        """The addresses of the brokers, and credentials."""
        from bookwarden.wiring.pulsar import connection_of

        return connection_of(self.settings.pulsar)

    @cached_property
    def admin(self) -> PulsarAdmin:
        """The client of the brokers' REST API."""
        from bookwarden.wiring.pulsar import admin_of

        return self.keep(admin_of(self.connection, self._request_timeout_s))

    @property
    def topics(self) -> Topics:
        """The topics of the brokers; one with much to flush takes its time to unload."""
        from bookwarden.clusters.pulsar.rest.topics import Topics

        return Topics(self.admin, unload_timeout_s=_UNLOAD_S)

    @cached_property
    def deletion_topics(self) -> TwoPhaseTopics:
        """The topics of two-phase deletion."""
        from bookwarden.wiring.deletion_topics import TwoPhaseTopics

        return self.keep(TwoPhaseTopics(self.settings.deletion, self.connection, self.admin, lambda: self.store))

    @cached_property
    def mark_sender(self) -> PendingDeletionSender:
        """Sends marks to the deletion topic."""
        from bookwarden.wiring.deletion_topics import mark_sender_of

        return self.keep(mark_sender_of(self.settings, self.settings.deletion.topic))

    @cached_property
    def offload_stores(self) -> OffloadStores:
        """The stores of offloaded copies; MissingExtraError if a driver's library is not installed."""
        from bookwarden.wiring.offload import offload_stores_of

        return self.keep(offload_stores_of(self.settings.offload))
