"""Wiring of the registry of bookie clusters, and of the stores that their metadata is in."""

from __future__ import annotations

from functools import partial
from typing import Final

from bookwarden.clusters.bookkeeper.bookie_cluster import BookieClusterMetadata
from bookwarden.clusters.bookkeeper.ledger_ids import LedgerIds
from bookwarden.clusters.bookkeeper.service_uris import bookkeeper_place, is_service_uri
from bookwarden.config import MetadataStoreSettings, Settings
from bookwarden.errors import ConfigError, RefusedError
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.urls import split_chroot
from bookwarden.resources import Resources
from bookwarden.switching.ports import Place
from bookwarden.switching.registering import Registration
from bookwarden.switching.registry import BookieCluster
from bookwarden.switching.registry_node import RegistryNode
from bookwarden.switching.unregistering import Unregistration
from bookwarden.wiring.stores import bookkeeper_place_of, open_metadata_store

_OTHER_PATHS: Final = ("longhierarchical", "flat")


class SwitchingContext(Resources):
    """The registry, and the stores of its clusters; close it, or use it in a with statement.

    The registry is that of the first of ``metadata_store.urls``: other roots are Pulsar clusters with one of their own.
    Stores connect at their first call.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        self._stores: dict[tuple[str, str], MetadataStore] = {}
        with self._closed_on_error():
            used = bookkeeper_place_of(settings.metadata_store)
            #: Pulsar's own metadata store.
            self.pulsar_url = settings.metadata_store.urls[0]
            self.pulsar_store = self.store_at(self.pulsar_url)
            self.registry = RegistryNode(self.pulsar_store, self.pulsar_url)
            self.registration = Registration(
                self.registry,
                self.pulsar_store,
                self.cluster_at,
                partial(LedgerIds, self.pulsar_store),
                Place(used.url, used.ledgers_root),
            )
            self.unregistration = Unregistration(self.registry, self.pulsar_store, self.cluster_at)

    def store_at(self, url: str) -> MetadataStore:
        """Return the store of this URL; the same one each time."""
        key = split_chroot(url)
        store = self._stores.get(key)
        if store is None:
            store = self._stores[key] = self._keep(open_metadata_store(self.settings.metadata_store, url))
        return store

    def store_of(self, cluster: BookieCluster) -> MetadataStore:
        """Return the store that a registered cluster's metadata is in."""
        return self.store_at(self.registry.place_of(cluster).url)

    def cluster_at(self, place: Place) -> BookieClusterMetadata:
        """Return the bookie cluster at this place."""
        return BookieClusterMetadata(self.store_at(place.url), place.url, place.ledgers_root)


def place_of_uri(uri: str) -> Place:
    """Parse an operator's metadataServiceUri.

    ConfigError if it is none, RefusedError for one that brokers with the jar would not find the ledgers of.
    """
    if not is_service_uri(uri):
        raise ConfigError(
            f"{uri} is no metadataServiceUri: expected zk+hierarchical://host:port/ledgers or "
            "metadata-store:zk:host:port, as bookies have it"
        )
    place = bookkeeper_place(uri)
    manager = uri.strip().lower().partition("://")[0].partition("+")[2]
    if manager in _OTHER_PATHS:
        raise RefusedError(f"{uri}: Pulsar's ledger manager has the paths of hierarchical alone, not of {manager}")
    return Place(place.url, place.ledgers_root)


def bookkeeper_authority(settings: MetadataStoreSettings) -> str:
    """Return HOST:PORT/ROOT of the BookKeeper in the settings, as a service URI has it after its scheme."""
    place = bookkeeper_place_of(settings)
    ensemble, chroot = split_chroot(place.url)
    hosts = ensemble.partition(":")[2].removeprefix("//").partition("/")[0]
    return f"{hosts.replace(',', ';')}{chroot}{place.ledgers_root}"
