"""Wiring of the registry of bookie clusters, and of the stores that their metadata is in."""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING

from bookwarden.bookie_clusters.registry_node import ClusterRegistry
from bookwarden.clusters.bookkeeper.bookie_cluster import ClusterStores
from bookwarden.clusters.bookkeeper.service_uris import authority_of
from bookwarden.config import MetadataStoreSettings, Settings
from bookwarden.metastore.store_clock import StoreClock
from bookwarden.resources import Resources
from bookwarden.wiring.stores import bookkeeper_place_of, open_metadata_store

if TYPE_CHECKING:
    # Imported when they are asked for: to list what is registered takes none of them.
    from bookwarden.bookie_clusters.registering import Registration
    from bookwarden.bookie_clusters.unregistering import LostClusters, Unregistration


class RegistryContext(Resources):
    """The registry, and the stores of its clusters; close it, or use it in a with statement.

    The registry is that of the first of ``metadata_store.urls``: other roots are Pulsar clusters with one of their own.
    Stores connect at their first call.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        with self._closed_on_error():
            #: Names Pulsar's own metadata store, in which the registry is.
            self.pulsar_url = settings.metadata_store.urls[0]
            self.registry = ClusterRegistry(self._open(), self.pulsar_url)

    def _open(self) -> ClusterStores:
        """Open the stores of all bookie clusters, each once."""
        return self._keep(ClusterStores(partial(open_metadata_store, self.settings.metadata_store)))

    @cached_property
    def registration(self) -> Registration:
        """Registers bookie clusters."""
        from bookwarden.bookie_clusters.offline.record import owner_of_move_to
        from bookwarden.bookie_clusters.registering import Registration

        used = bookkeeper_place_of(self.settings.metadata_store)
        return Registration(self.registry, used, partial(owner_of_move_to, self.registry.store))

    @cached_property
    def unregistration(self) -> Unregistration:
        """Unregisters bookie clusters."""
        from bookwarden.bookie_clusters.unregistering import Unregistration

        return Unregistration(self.registry, StoreClock(self.registry.store))

    @property
    def lost_clusters(self) -> LostClusters:
        """Unregisters bookie clusters whose metadata is gone."""
        from bookwarden.bookie_clusters.unregistering import LostClusters
        from bookwarden.clusters.pulsar.references.pieces import ReferencePieces

        return LostClusters(self.unregistration, ReferencePieces({self.pulsar_url: self.registry.store}))


def bookkeeper_authority(settings: MetadataStoreSettings) -> str:
    """Return HOST:PORT/ROOT of the BookKeeper in the settings, as a service URI has it after its scheme."""
    return authority_of(bookkeeper_place_of(settings))
