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
from bookwarden.clusters.bookkeeper.bookie_cluster import ClusterStores
from bookwarden.clusters.pulsar.metadata.managed_ledgers import ManagedLedgers
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.config import Settings
from bookwarden.metastore.store_clock import StoreClock
from bookwarden.wiring.deletion import PhaseOneContext
from bookwarden.wiring.stores import bookkeeper_place_of
from bookwarden.wiring.switch import SwitchContext


class MoveContext(SwitchContext):
    """Everything that moves ledgers between bookie clusters; close it, or use it in a with statement.

    With ``looks_only`` times are this machine's: a store is asked for its own by a write.
    """

    def __init__(self, settings: Settings, *, looks_only: bool = False) -> None:
        super().__init__(settings)
        self._clock = time.time if looks_only else StoreClock(self.registry.store)

    def _open(self) -> ClusterStores:
        """Open what marks ledgers, and return its stores, so that each is opened once."""
        self.marking = self._keep(PhaseOneContext(self.settings))
        return self.marking.metadata.opened

    def _open_admin(self) -> PulsarAdmin:
        return self.marking.metadata.admin

    @cached_property
    def former(self) -> FormerClusters:
        """Finds what former clusters have."""
        metadata = self.marking.metadata
        holder_of = metadata.named_holders.holder_of
        return FormerClusters(metadata.bookie_clusters, metadata.catalog, holder_of, metadata.references.read)

    @cached_property
    def broker_topics(self) -> BrokerTopics:
        """The topics that brokers have loaded."""
        return BrokerTopics(self.registry.store, self.connection, self.topics)

    @property
    def promoting(self) -> Promoter:
        """Has brokers read copies."""
        return Promoter(self.former, self.registry.store, self.switch, self.broker_topics)

    @property
    def stamping(self) -> Stamper:
        """Writes the proposal's attribution."""
        return Stamper(ManagedLedgers(self.registry.store), self.broker_topics, self.marking.metadata.catalog)

    @property
    def cleanup(self) -> Cleanup:
        """Finds and marks what may go."""
        window_s = self.settings.deletion.rollback_window_hours * 3600
        marker = self.marking.marker
        return Cleanup(
            *(self.former, self.registry.store, self.switch, marker.mark, marker.enabled), window_s, self._clock
        )

    @property
    def draining(self) -> Drainer:
        """Does all of it, and says how far it is."""
        return Drainer(self.registry, self.cleanup, self.promoting)

    @property
    def offline(self) -> OfflineMove:
        """Moves all ledgers while brokers are stopped, and says how far a move is."""
        metadata, roots = self.marking.metadata, len(self.settings.metadata_store.urls)
        copiers = OfflineCopiers(
            self.registry.stores,
            self.registry.store,
            metadata.references,
            self.observer.options,
            metadata.named_holders.holder_of,
        )
        source = bookkeeper_place_of(self.settings.metadata_store)
        return OfflineMove(source, metadata.reference_scan, copiers, MoveChecks(self.observer, roots))

    @property
    def restoring(self) -> NodeRestorer:
        """Puts saved nodes back."""
        return NodeRestorer(self.registry.store, self.pulsar_url)
