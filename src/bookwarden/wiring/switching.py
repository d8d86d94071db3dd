"""Wiring of the registry of bookie clusters, and of the stores that their metadata is in."""

from __future__ import annotations

from functools import partial

from bookwarden.clusters.bookkeeper.bookie_cluster import ClusterStores
from bookwarden.clusters.bookkeeper.ledger_ids import LedgerIds
from bookwarden.clusters.bookkeeper.service_uris import authority_of, place_for_brokers
from bookwarden.clusters.pulsar.references.pieces import ReferencePieces
from bookwarden.config import MetadataStoreSettings, Settings
from bookwarden.metastore.store_clock import StoreClock
from bookwarden.resources import Resources
from bookwarden.switching.offline.record import owner_of_move_to
from bookwarden.switching.ports import Place
from bookwarden.switching.registering import Registration
from bookwarden.switching.registry_node import RegistryNode, store_of_cluster
from bookwarden.switching.repair import IdRaising, RegistryImport, Upgrade, UriChange
from bookwarden.switching.unregistering import LostClusters, Unregistration
from bookwarden.wiring.stores import bookkeeper_place_of, open_metadata_store


class SwitchingContext(Resources):
    """The registry, and the stores of its clusters; close it, or use it in a with statement.

    The registry is that of the first of ``metadata_store.urls``: other roots are Pulsar clusters with one of their own.
    Stores connect at their first call.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        with self._closed_on_error():
            used = bookkeeper_place_of(settings.metadata_store)
            stores = self._keep(ClusterStores(partial(open_metadata_store, settings.metadata_store)))
            #: Returns the store of a URL, the same one each time.
            self.store_at = store_at = stores.at
            #: Pulsar's own metadata store.
            self.pulsar_url = settings.metadata_store.urls[0]
            self.pulsar_store = store_at(self.pulsar_url)
            self.registry = RegistryNode(self.pulsar_store, self.pulsar_url)
            #: Returns the store that a registered cluster's metadata is in.
            self.store_of = partial(store_of_cluster, self.registry, store_at)

            def ids_at(place: Place) -> LedgerIds:
                return LedgerIds(store_at(place.url), place.ledgers_root)

            self.registration = Registration(
                self.registry,
                self.pulsar_store,
                stores.cluster_at,
                partial(LedgerIds, self.pulsar_store),
                Place(used.url, used.ledgers_root),
                ids_at,
                partial(owner_of_move_to, self.pulsar_store),
            )
            self.upgrade = Upgrade(self.registry, self.pulsar_store, stores.cluster_at, ids_at)
            self.unregistration = Unregistration(
                self.registry, self.pulsar_store, stores.cluster_at, StoreClock(self.pulsar_store)
            )
            references = ReferencePieces({self.pulsar_url: self.pulsar_store})
            self.lost_clusters = LostClusters(self.unregistration, references.read_all)
            self.uri_change = UriChange(self.registry, self.pulsar_store, self.registration)
            self.registry_import = RegistryImport(
                self.registry, self.pulsar_store, stores.cluster_at, partial(LedgerIds, self.pulsar_store)
            )
            self.id_raising = IdRaising(
                self.registry,
                self.pulsar_store,
                stores.cluster_at,
                ids_at,
            )


def place_of_uri(uri: str) -> Place:
    """Parse an operator's metadataServiceUri.

    ConfigError if it is none, RefusedError for one that brokers with the jar would not find the ledgers of.
    """
    place = place_for_brokers(uri)
    return Place(place.url, place.ledgers_root)


def bookkeeper_authority(settings: MetadataStoreSettings) -> str:
    """Return HOST:PORT/ROOT of the BookKeeper in the settings, as a service URI has it after its scheme."""
    return authority_of(bookkeeper_place_of(settings))
