"""Wiring of the registry of bookie clusters, and of the stores that their metadata is in."""

from __future__ import annotations

from bookwarden.config import Settings
from bookwarden.metastore.interface import MetadataStore
from bookwarden.resources import Resources
from bookwarden.switching.registry import BookieCluster
from bookwarden.switching.registry_node import RegistryNode
from bookwarden.wiring.stores import open_metadata_store


class SwitchingContext(Resources):
    """The registry, and the stores of its clusters; close it, or use it in a with statement.

    The registry is that of the first of ``metadata_store.urls``: other roots are Pulsar clusters with one of their own.
    Stores connect at their first call.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        self._stores: dict[str, MetadataStore] = {}
        with self._closed_on_error():
            #: Pulsar's own metadata store.
            self.pulsar_url = settings.metadata_store.urls[0]
            self.pulsar_store = self.store_at(self.pulsar_url)
            self.registry = RegistryNode(self.pulsar_store, self.pulsar_url)

    def store_at(self, url: str) -> MetadataStore:
        """Return the store of this URL; the same one each time."""
        store = self._stores.get(url)
        if store is None:
            store = self._stores[url] = self._keep(open_metadata_store(self.settings.metadata_store, url))
        return store

    def store_of(self, cluster: BookieCluster) -> MetadataStore:
        """Return the store that a registered cluster's metadata is in."""
        return self.pulsar_store if cluster.store_url is None else self.store_at(cluster.store_url)
