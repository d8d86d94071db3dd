"""Stores that the metadata of bookie clusters is in, each opened once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Protocol

from bookwarden.clusters.bookkeeper.bookie_cluster import BookieClusterMetadata
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.urls import split_chroot


class ClusterPlace(Protocol):
    """The place of a bookie cluster's metadata."""

    @property
    def url(self) -> str:
        """The URL of the store that it is in."""

    @property
    def ledgers_root(self) -> str:
        """The path there."""


class ClusterStores:
    """Opens stores with ``open_store``, the same one for the same ensemble and chroot; closes them all."""

    def __init__(self, open_store: Callable[[str], MetadataStore]) -> None:
        self._open_store = open_store
        self._stores: dict[tuple[str, str], MetadataStore] = {}
        self._opened = ExitStack()

    def at(self, url: str) -> MetadataStore:
        """Return the store of this URL; it connects at its first call."""
        key = split_chroot(url)
        store = self._stores.get(key)
        if store is None:
            store = self._stores[key] = self._open_store(url)
            self._opened.callback(store.close)
        return store

    def cluster_at(self, place: ClusterPlace) -> BookieClusterMetadata:
        """Return the bookie cluster at this place."""
        return BookieClusterMetadata(self.at(place.url), place.url, place.ledgers_root)

    def close(self) -> None:
        """Close all that were opened, the last one first; the second time does nothing."""
        self._opened.close()
