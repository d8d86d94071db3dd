"""Wiring of what moves ledgers between bookie clusters: promotion, cleanup and drain, and the move without the jar."""

from __future__ import annotations

import time
from functools import cached_property

from bookwarden.bookie_clusters.moving.cleanup import Cleanup
from bookwarden.bookie_clusters.moving.copiers import OfflineCopiers
from bookwarden.bookie_clusters.moving.draining import Drainer
from bookwarden.bookie_clusters.moving.former import FormerClusters
from bookwarden.bookie_clusters.moving.promotion import BrokerTopics, Promoter, Stamper
from bookwarden.bookie_clusters.offline.checking import MoveChecks
from bookwarden.bookie_clusters.offline.move import OfflineMove
from bookwarden.bookie_clusters.offline.saved_nodes import NodeRestorer
from bookwarden.clusters.pulsar.metadata.managed_ledgers import ManagedLedgers
from bookwarden.metastore.store_clock import StoreClock
from bookwarden.wiring.bookie_clusters import SwitchOperations
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.deletion import marker_of


class MoveOperations(SwitchOperations):
    """Everything that moves ledgers between bookie clusters.

    With ``looks_only`` times are this machine's: a store is asked for its own by a write.
    """

    def __init__(self, cluster: Cluster, *, looks_only: bool = False) -> None:
        super().__init__(cluster)
        self._clock = time.time if looks_only else StoreClock(cluster.store)

    @cached_property
    def former(self) -> FormerClusters:
        """Finds what former clusters have."""
        bookkeeper, references = self.cluster.bookkeeper, self.cluster.references
        holder_of = references.named_holders.holder_of
        return FormerClusters(bookkeeper.clusters, bookkeeper.catalog, holder_of, references.live.read)

    @cached_property
    def broker_topics(self) -> BrokerTopics:
        """The topics that brokers have loaded."""
        return BrokerTopics(self.cluster.store, self.cluster.connection, self.cluster.topics)

    @property
    def promoter(self) -> Promoter:
        """Has brokers read copies."""
        return Promoter(self.former, self.cluster.store, self.switch, self.broker_topics)

    @property
    def stamper(self) -> Stamper:
        """Writes the proposal's attribution."""
        return Stamper(ManagedLedgers(self.cluster.store), self.broker_topics, self.cluster.bookkeeper.catalog)

    @property
    def cleanup(self) -> Cleanup:
        """Finds and marks what may go."""
        window_s = self.cluster.settings.deletion.rollback_window_hours * 3600
        marker = marker_of(self.cluster)
        return Cleanup(
            *(self.former, self.cluster.store, self.switch, marker.mark, marker.enabled), window_s, self._clock
        )

    @property
    def drainer(self) -> Drainer:
        """Does all of it, and says how far it is."""
        return Drainer(self.cluster.registry, self.cleanup, self.promoter)

    @property
    def offline(self) -> OfflineMove:
        """Moves all ledgers while brokers are stopped, and says how far a move is."""
        cluster, references = self.cluster, self.cluster.references
        copiers = OfflineCopiers(
            cluster.opened,
            cluster.store,
            references.live,
            self.observer.options,
            references.named_holders.holder_of,
        )
        checks = MoveChecks(self.observer, len(cluster.settings.metadata_store.urls))
        return OfflineMove(cluster.bookkeeper.place, references.pieces, copiers, checks)

    @property
    def restorer(self) -> NodeRestorer:
        """Puts saved nodes back."""
        return NodeRestorer(self.cluster.store, self.cluster.url)
