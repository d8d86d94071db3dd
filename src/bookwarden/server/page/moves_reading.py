"""Readers of the moves for the page: of metadata, of bookie clusters, and of clients from blue to green."""

from __future__ import annotations

from bookwarden.bookie_clusters.documents import read_overview
from bookwarden.bookie_clusters.operation import Switch
from bookwarden.config import Settings
from bookwarden.errors import FormatError, StoreError
from bookwarden.metadata_migration.control import read_snapshot
from bookwarden.metastore.interface import MetadataStore
from bookwarden.resources import Resources
from bookwarden.server.page.values import ClientMove, Moves, StoreMove
from bookwarden.wiring.bookie_clusters import SwitchOperations
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.cluster_migration import ClusterMigration
from bookwarden.wiring.metadata_migration import movable_stores_of


class MoveSources(Resources):
    """The stores that have the records of moves; each is opened when it is first read, and closed with this one."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._openers = movable_stores_of(settings.metadata_store)
        self._stores: dict[str, MetadataStore] = {}
        self._cluster = self.keep(Cluster(settings))
        self._switch: Switch | None = None

    def read(self) -> Moves:
        """Read them; StoreError where the store of the records does not answer."""
        stores = tuple(self._store_move(url) for url in self._openers)
        if self._switch is None:
            self._switch = SwitchOperations(self._cluster).switch
        try:
            return Moves(stores, read_overview(self._switch))
        except FormatError as error:
            return Moves(stores, error=str(error))

    def _store_move(self, url: str) -> StoreMove:
        try:
            # As it is: a store that follows its migration would read elsewhere.
            if url not in self._stores:
                self._stores[url] = self.keep(self._openers[url]())
            return StoreMove(url, read_snapshot(self._stores[url]))
        except (FormatError, StoreError) as error:
            # One that was moved may be switched off: the rest is shown without it.
            return StoreMove(url, error=str(error))


def read_clients(migration: ClusterMigration) -> ClientMove:
    """Look at all namespaces that are migrated; reads no topic where none is. Raises the errors of stores."""
    names = sorted({*migration.observer.flagged_namespaces(), *migration.record.begun()})
    if not names:
        return ClientMove(has_green=True)
    return ClientMove(True, migration.observer.snapshot(names, migration.record.expected(names)))
